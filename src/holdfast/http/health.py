"""Health, readiness, status and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CONTENT_TYPE_LATEST

from holdfast.errors import UnavailableError
from holdfast.http.access.scopes import Need
from holdfast.http.responses import respond_json
from holdfast.http.routes import Resource, Route
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot


def _health(_app: App, _request: Request, slot: Slot, _name: str) -> None:
    respond_json(slot, {"status": "ok"})


def _ready(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Whether the server has recovered, is not shutting down, and its log responds."""
    if app.not_ready:
        raise UnavailableError(app.not_ready)
    if app.draining:
        raise UnavailableError("The server is shutting down.")
    if app.shard.commits.stalled:
        raise UnavailableError("The log has not answered for an earlier write.")
    respond_json(slot, {"status": "ready"})


def _status(app: App, _request: Request, slot: Slot, _name: str) -> None:
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
    respond_json(slot, status)


def _metrics(app: App, _request: Request, slot: Slot, _name: str) -> None:
    headers = b"Content-Type: %b\r\nCache-Control: no-store\r\n" % CONTENT_TYPE_LATEST.encode()
    slot.respond(200, headers, app.metrics.render())


RESOURCES: Final = {
    b"/healthz": Resource.reading(Route(_health, "health", needs_engine=False, need=Need.NOTHING)),
    b"/readyz/local": Resource.reading(
        Route(_ready, "ready", needs_engine=False, need=Need.NOTHING)
    ),
    b"/readyz/cluster": Resource.reading(
        Route(_ready, "ready", needs_engine=False, need=Need.NOTHING)
    ),
    b"/cluster/status": Resource.reading(
        Route(_status, "status", needs_engine=False, need=Need.READ)
    ),
    b"/metrics": Resource.reading(Route(_metrics, "metrics", needs_engine=False, need=Need.READ)),
}
