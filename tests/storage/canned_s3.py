"""A server that answers every request alike, for errors that moto does not make."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EMPTY_LISTING = "<ListBucketResult></ListBucketResult>"


def error_body(code, message="Words of the store."):
    """An error as S3, GCS and Azure spell it."""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
        f"<Message>{message}</Message><StringToSign>AKIA-SECRET</StringToSign></Error>"
    )


class CannedS3:
    """`answer` says what comes back; `requests` are the methods, paths and headers seen."""

    def __init__(self):
        self.requests = []
        self._status, self._body = 200, EMPTY_LISTING
        canned = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                canned.requests.append((self.command, self.path, dict(self.headers)))
                body = canned._body.encode()
                self.send_response(canned._status)
                if canned._body == EMPTY_LISTING:
                    self.send_header("ETag", '"tag"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - what it has to be called

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, status, body=""):
        self._status, self._body = status, body

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
