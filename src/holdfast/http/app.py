"""The application: every route and handler over one shard, however requests get here."""

from __future__ import annotations

import logging
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, OverloadedError, UnavailableError
from holdfast.http import health, storage_routes
from holdfast.http.append import append
from holdfast.http.create import create
from holdfast.http.errors import answer_error
from holdfast.http.metrics import HttpCounters, MetricsPage
from holdfast.http.read import read
from holdfast.http.routes import Resource, Route, Router
from holdfast.http.sse import EventEncoder
from holdfast.http.stream_info import delete, head, options

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.http.exchange import Request, Slot
    from holdfast.settings import Settings

_log = logging.getLogger(__name__)
_EXPOSED: Final = (
    "ETag, Location, Retry-After, Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, "
    "Stream-Closed, Stream-TTL, Stream-Expires-At, Stream-SSE-Data-Encoding, "
    "Producer-Epoch, Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq"
)

_STREAM: Final = Resource(
    {
        b"POST": Route(append, "append"),
        b"GET": Route(read, "read"),
        b"PUT": Route(create, "create"),
        b"HEAD": Route(head, "head"),
        b"DELETE": Route(delete, "delete"),
        b"OPTIONS": Route(options, "options", needs_engine=False),
    }
)


class App:
    """Handlers, and what they share: shard, settings, clock, counters."""

    def __init__(self, shard: Shard, settings: Settings, clock: Clock) -> None:
        self.shard = shard
        self.settings = settings
        self.clock = clock
        self.events = EventEncoder()
        self.counters = HttpCounters()
        self.metrics = MetricsPage(self.counters, shard)
        # What keeps the server from working, in words; empty once it works.
        self.not_ready = "The server is recovering its log."
        self.draining = False
        self.started_ms = clock.now_ms()
        self._router = Router(_STREAM, health.RESOURCES | storage_routes.RESOURCES)
        self.security_fields = (
            "X-Content-Type-Options: nosniff\r\n"
            "Cross-Origin-Resource-Policy: cross-origin\r\n"
            f"Access-Control-Allow-Origin: {settings.server.cors_origin}\r\n"
            f"Access-Control-Expose-Headers: {_EXPOSED}\r\n"
        ).encode()
        self.common_fields = self.head_end = b""
        self.update_date()

    def update_date(self) -> None:
        """Make the fields that every native answer carries; once a second is enough."""
        date = formatdate(self.clock.now_ms() / 1000, usegmt=True).encode()
        self.common_fields = b"Date: %b\r\n%b" % (date, self.security_fields)
        self.head_end = self.common_fields + b"\r\n"

    def handle(self, request: Request, slot: Slot) -> None:
        """Answer a request, now or later; never raises."""
        try:
            route, name = self._router.find(request.method, request.path)
            slot.route = route.label
            if self.not_ready and route.needs_engine:
                answer_error(slot, UnavailableError(self.not_ready))
            else:
                route.handler(self, request, slot, name)
        except HoldfastError as error:
            answer_error(slot, error)
        except Exception:  # noqa: BLE001 (a defect in one handler must not end the server)
            _log.exception("%r %r failed", request.method, request.path)
            answer_error(slot, HoldfastError("The server has a defect here; its log says more."))

    def check_live_readers(self) -> None:
        """Raise if no more live readers can be taken."""
        if self.draining:
            raise UnavailableError("The server is shutting down.")
        if len(self.shard.live) >= self.settings.read.live_readers_max:
            raise OverloadedError("Too many live readers are connected.")

    def location(self, request: Request) -> bytes:
        """The absolute URL of the request's resource, as the client knows it."""
        public_url = self.settings.server.public_url
        if public_url:
            return public_url.encode() + request.prefix + request.path
        host = request.fields.get(b"host", b"localhost")
        return b"%b://%b%b%b" % (request.scheme, host, request.prefix, request.path)
