"""A real receiver of webhooks, in a thread of the test."""

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from types import TracebackType
from typing import Any, NamedTuple, Self

DEADLINE_S = 20.0


class Received(NamedTuple):
    """A webhook as it arrived."""

    raw: bytes
    signature: str

    @property
    def json(self) -> Any:
        """What it says."""
        return json.loads(self.raw)

    def tails(self) -> dict[str, str]:
        """The streams with something new, and where they end."""
        streams = self.json["streams"]
        return {each["path"]: each["tail_offset"] for each in streams if each["has_pending"]}


class WebhookReceiver:
    """Keeps what it receives, and answers with whatever `answer` says: a status and a body."""

    def __init__(self, answer: Callable[[Received], tuple[int, bytes]] | None = None) -> None:
        self.answer = answer or (lambda _received: (200, b"{}"))
        self.received: Queue[Received] = Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        """Where webhooks are to be sent."""
        return f"http://127.0.0.1:{self._server.server_port}/hook?secret=1"

    def next(self, timeout_s: float = DEADLINE_S) -> Received:
        """The next webhook."""
        return self.received.get(timeout=timeout_s)

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - two selves in one place
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                received = Received(raw, self.headers["Webhook-Signature"])
                status, body = receiver.answer(received)
                receiver.received.put(received)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", receiver.url)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
