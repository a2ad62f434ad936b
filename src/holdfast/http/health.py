"""Health, readiness, status and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from holdfast.errors import UnavailableError
from holdfast.http.access.scopes import Need
from holdfast.http.routes import Resource, Route
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

JSON_HEADERS: Final = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
_encode = msgspec.json.Encoder().encode


def _health(_app: App, _request: Request, slot: Slot, _name: str) -> None:
    """The process is alive."""
    slot.respond(200, JSON_HEADERS, b'{"status":"ok"}')


def _ready(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """The server takes requests: it has recovered and is not shutting down."""
    if app.not_ready:
        raise UnavailableError(app.not_ready)
    if app.draining:
        raise UnavailableError("The server is shutting down.")
    if app.shard.commits.stalled:
        raise UnavailableError("The log has not answered for an earlier write.")
    slot.respond(200, JSON_HEADERS, b'{"status":"ready"}')


def _status(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """What a single node can say of its cluster: that it is one, and where its log stands."""
    state = "recovering" if app.not_ready else "draining" if app.draining else "ready"
    shard = app.shard
    status = {
        "mode": "single",
        "version": __version__,
        "state": state,
        "durability": app.settings.server.durability,
        "started_at_ms": app.started_ms,
        "shards": [
            {
                "shard": 0,
                "role": "owner",
                "last_position": shard.commits.last_position,
                "stalled": shard.commits.stalled,
                "streams": shard.state.streams,
            }
        ],
    }
    slot.respond(200, JSON_HEADERS, _encode(status))


def _metrics(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Every count, for Prometheus."""
    headers = b"Content-Type: %b\r\nCache-Control: no-store\r\n" % CONTENT_TYPE_LATEST.encode()
    slot.respond(200, headers, app.metrics.render())


def _resource(route: Route) -> Resource:
    return Resource({b"GET": route, b"HEAD": route})


RESOURCES: Final = {
    b"/healthz": _resource(Route(_health, "health", needs_engine=False, need=Need.NOTHING)),
    b"/readyz/local": _resource(Route(_ready, "ready", needs_engine=False, need=Need.NOTHING)),
    b"/readyz/cluster": _resource(Route(_ready, "ready", needs_engine=False, need=Need.NOTHING)),
    b"/cluster/status": _resource(Route(_status, "status", needs_engine=False, need=Need.READ)),
    b"/metrics": _resource(Route(_metrics, "metrics", needs_engine=False, need=Need.READ)),
}
