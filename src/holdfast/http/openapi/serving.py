"""GET /openapi.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.access.scopes import Need
from holdfast.http.routes import Resource, Route

if TYPE_CHECKING:
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

_FIELDS: Final = b"Content-Type: application/json\r\nCache-Control: public, max-age=300\r\n"


def _openapi(_app: App, _request: Request, slot: Slot, _name: str) -> None:
    """The document, which is made when it is asked for first."""
    # Only here: most servers are never asked, and it takes a while to put together.
    from holdfast.http.openapi.document import render  # noqa: PLC0415

    slot.respond(200, _FIELDS, render())


_ROUTE: Final = Route(_openapi, "openapi", needs_engine=False, need=Need.NOTHING)
RESOURCES: Final = {b"/openapi.json": Resource({b"GET": _ROUTE, b"HEAD": _ROUTE})}
