"""Upstreams and clients of the proxy that do what the test says."""

import asyncio
import re
from contextlib import asynccontextmanager

from holdfast.proxy.upstreams import UpstreamResponse

_END = object()


class HandUpstream:
    """One answer of an upstream, which the test gives piece by piece."""

    def __init__(self):
        self.headers = {"content-type": "text/plain"}
        self.answered = asyncio.Event()
        self.refusal = None
        self._pieces = asyncio.Queue()
        # Whether the proxy has let go of it.
        self.left = False
        # What was sent, and whether that was all.
        self.sent = b""
        self.ended = False

    def send(self, piece):
        self.answered.set()
        self.sent += piece
        self._pieces.put_nowait(piece)

    def end(self):
        self.answered.set()
        self.ended = True
        self._pieces.put_nowait(_END)

    def fail(self, error):
        """Break off in the middle of the body."""
        self.answered.set()
        self._pieces.put_nowait(error)

    def refuse(self, error):
        """Answer with an error, or not at all."""
        self.refusal = error
        self.answered.set()

    @property
    def unread(self):
        return self._pieces.qsize()

    async def deliver(self, take, room):
        while (piece := await self._pieces.get()) is not _END:
            if isinstance(piece, Exception):
                raise piece
            if not take(piece) and not await room():
                return


class HandUpstreams:
    """Upstreams that answer when the test says so."""

    def __init__(self):
        self.all = []

    def check(self, url):
        """Every URL is allowed."""

    @asynccontextmanager
    async def call(self, asked, request):
        upstream = HandUpstream()
        self.all.append(upstream)
        try:
            await upstream.answered.wait()
            if upstream.refusal is not None:
                raise upstream.refusal
            yield UpstreamResponse(200, upstream.headers, "text/plain", upstream.deliver)
        finally:
            upstream.left = True

    async def aclose(self):
        """There are no connections."""


class HandSlot:
    """What a client was answered."""

    def __init__(self):
        self.route = ""
        self.on_gone = self.on_resume = None
        self.answers = []
        # Whether the server was killed before it could answer.
        self.lost = False

    def respond(self, status, fields, body=b""):
        if not self.answers and not self.lost:
            self.answers.append((status, fields, body))

    def abort(self):
        self.lost = True

    def refuse_rest(self):
        """There is nothing more to come."""

    @property
    def answered(self):
        return bool(self.answers)

    @property
    def status(self):
        assert self.answered, "not answered yet"
        return self.answers[0][0]

    @property
    def code(self):
        found = re.search(rb'"code":"(\w+)"', self.answers[0][2])
        return found and found[1].decode()

    def field(self, name):
        found = re.search(rf"^{name}: (.*)\r$".encode(), self.answers[0][1], re.MULTILINE)
        return found and found[1].decode()

    @property
    def response_id(self):
        found = self.field("Stream-Response-Id")
        return found and int(found)
