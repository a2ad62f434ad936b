"""What jobs ask about packs: which there are, what is in them, their bytes, and where they are.

A pack holds the bytes of all buckets, so all of this takes a token that may read everything.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import InvalidRequestError, NotFoundError, ObjectMissingError
from holdfast.http.access.scopes import Need
from holdfast.http.awaiting import answer_of
from holdfast.http.health import JSON_FIELDS
from holdfast.http.query import parse_query
from holdfast.http.routes import Resource, Route
from holdfast.http.scan_request import (
    NDJSON_FIELDS,
    catalog_of,
    cursor_text,
    lines_in_thread,
    whole_number,
)
from holdfast.http.store_url import store_id, store_url
from holdfast.storage.catalog_packs import used_extents, used_packs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.storage.cold import ColdReader

PACK_NAME: Final = r"\Apacks/[0-9A-Za-z._-]+\.pack\Z"
PACK_NAME_CHARACTERS_MAX: Final = 200
DATA_BYTES_MAX: Final = 16 * 1024 * 1024
_AT_MAX: Final = 10**18 - 1
_BYTES_FIELDS: Final = b"Content-Type: application/octet-stream\r\nCache-Control: no-store\r\n"
_encode = msgspec.json.Encoder().encode


def _store(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Where the packs are, and up to where everything is in them."""
    flushed = cursor_text(catalog_of(app).flushed)
    found = {"store": store_url(app), "store_id": store_id(app), "flushed": flushed}
    slot.answer(200, JSON_FIELDS, _encode(found))


def _packs(app: App, request: Request, slot: Slot, _name: str) -> None:
    """A line of JSON for each pack in use."""
    pieces = lines_in_thread(_pack_lines(catalog_of(app).path))
    app.stream_answer(request, slot, NDJSON_FIELDS, pieces)


def _pack_lines(path: Path) -> Iterator[bytes]:
    for pack in used_packs(path):
        yield _encode(pack)


def _extents(app: App, request: Request, slot: Slot, _name: str) -> None:
    """A line of JSON for each extent in use of a pack."""
    catalog = catalog_of(app)
    name = _pack_name(parse_query(request.query))
    if not catalog.is_used(name):
        raise NotFoundError(f"The pack {name!r} is not in use.")
    pieces = lines_in_thread(_extent_lines(catalog.path, name))
    app.stream_answer(request, slot, NDJSON_FIELDS, pieces)


def _extent_lines(path: Path, name: str) -> Iterator[bytes]:
    for each in used_extents(path, name):
        yield _encode(each)


def _data(app: App, request: Request, slot: Slot, _name: str) -> None:
    """The bytes of a part of a pack, as they are."""
    catalog_of(app)
    query = parse_query(request.query)
    name = _pack_name(query)
    at = whole_number(query, "at", 0, _AT_MAX)
    size = whole_number(query, "size", 1, DATA_BYTES_MAX)
    if at is None or size is None:
        raise InvalidRequestError("The parameters 'at' and 'size' are needed.")
    cold = app.shard.reader.cold
    assert cold is not None, "where there is a catalog, packs can be read"
    app.spawn(_read(cold, slot, name, at, size), slot)


async def _read(cold: ColdReader, slot: Slot, name: str, at: int, size: int) -> None:
    try:
        data = await answer_of(partial(cold.blocks.read_raw, name, at, size))
    except ObjectMissingError:
        raise NotFoundError(f"There is no object {name!r} in the store.") from None
    slot.on_gone = None
    slot.answer(200, _BYTES_FIELDS, data)


def _pack_name(query: dict[str, str]) -> str:
    name = query.get("pack")
    if name is None:
        raise InvalidRequestError("The parameter 'pack' is needed.")
    if len(name) > PACK_NAME_CHARACTERS_MAX or re.match(PACK_NAME, name) is None:
        raise NotFoundError(f"{name[:PACK_NAME_CHARACTERS_MAX]!r} is not the name of a pack.")
    return name


def _reading(route: Route) -> Resource:
    return Resource({b"GET": route, b"HEAD": route})


RESOURCES: Final = {
    b"/cluster/store": _reading(Route(_store, "storage", need=Need.READ)),
    b"/cluster/packs": _reading(Route(_packs, "packs", need=Need.READ)),
    b"/cluster/packs/extents": _reading(Route(_extents, "packs", need=Need.READ)),
    b"/cluster/packs/data": _reading(Route(_data, "packs", need=Need.READ)),
}
