"""An S3 server (moto) in a process of its own; `tests.moto_server` starts it and talks to it.

It does what its standard input says, `down`, `up`, `behind SECONDS` or `keys`, and answers with a
line. While it is down its port refuses connections, and nothing is lost. Objects get the times of a
clock that is so many seconds behind. `keys` are the ids of the keys that requests were signed with
since the last time. It ends with its standard input.
"""

import os
import re
import socket
import sys
import threading
from contextlib import suppress
from datetime import timedelta

from moto.s3 import models
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler


class QuietHandler(WSGIRequestHandler):
    def log(self, *args, **kwargs):
        pass


class S3Server(ThreadedWSGIServer):
    daemon_threads = True

    def __init__(self, port, app):
        super().__init__("127.0.0.1", port, app, QuietHandler)
        self._connections = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def process_request(self, request, client_address):
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self._connections.discard(request)
        super().shutdown_request(request)

    def take_down(self):
        self.shutdown()
        self._thread.join()
        self.socket.close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class SeenKeys:
    """An application that notes the keys of requests."""

    def __init__(self, app):
        self._app = app
        self.keys = set()

    def __call__(self, environ, start_response):
        found = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        self.keys.add(found[1] if found else "none")
        return self._app(environ, start_response)


def main():
    # Moto reads it when it makes up addresses.
    os.environ.setdefault("MOTO_PORT", "0")
    app = SeenKeys(DomainDispatcherApplication(create_backend_app))
    server = S3Server(0, app)
    port = server.port
    print(f"up {port}", flush=True)
    utcnow = models.utcnow
    for line in sys.stdin:
        if line.startswith("behind"):
            behind = timedelta(seconds=float(line.split()[1]))
            models.utcnow = lambda behind=behind: utcnow() - behind
            print("behind", flush=True)
        elif line.strip() == "keys":
            keys, app.keys = app.keys, set()
            print("keys", *sorted(keys), flush=True)
        elif line.strip() == "down":
            server.take_down()
            print("down", flush=True)
        else:
            server = S3Server(port, app)
            print(f"up {port}", flush=True)


if __name__ == "__main__":
    main()
