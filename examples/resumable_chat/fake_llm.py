"""A language model that knows one thing, and streams it as OpenAI's API would: word by word."""

import json
import re
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

from serving import Server

PATH = "/v1/chat/completions"
WORD_S = 0.08
ANSWER = """A holdfast is what keeps kelp where it is. It looks like a root, but it takes nothing \
up: it only holds on to the rock, while everything above it gives way to the waves.

An answer that is streamed to a browser usually has no such thing. It lives in one connection, and \
when a tab is reloaded, a train enters a tunnel or a laptop is closed, the words that were yet to \
come are lost, although they have been paid for.

This one is written down word by word as it arrives. Reload the page now: it will go on from here \
as if nothing had happened, because I never knew that you were gone. I was talking to the proxy, \
and the proxy stayed.

If you have heard enough, press Stop. That is something else than leaving: it reaches me, and I \
fall silent at once. What I have said until then stays on the page, and in the stream."""


def chunks() -> Iterator[str]:
    """The data of each event."""
    words = re.findall(r"\s*\S+", ANSWER)

    def chunk(delta: dict[str, str], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return json.dumps(
            {
                "id": "chatcmpl-fake",
                "object": "chat.completion.chunk",
                "created": int(time.time()),
                "model": "fake",
                "choices": [choice],
            }
        )

    yield chunk({"role": "assistant", "content": ""})
    for word in words:
        time.sleep(WORD_S)
        yield chunk({"content": word})
    yield chunk({}, "stop")
    yield "[DONE]"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        # Whatever the question may be.
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != PATH:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for data in chunks():
                self._send(f"data: {data}\n\n".encode())
            self._send(b"")
        except OSError:
            # The client has gone: a real model would stop costing money here.
            print("fake_llm: stopped in mid-answer", file=sys.stderr)
            self.close_connection = True

    def _send(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def log_message(self, *_arguments: object) -> None:
        """Say nothing about requests."""


def fake_llm() -> Server:
    """The model, on a port that the system chose; it serves `PATH`."""
    return Server(0, _Handler)
