"""`/cluster/…`: the storage's numbers and commands for operators, and its packs for jobs.

A pack holds the bytes of all buckets, so reading packs takes a token that may read everything.
"""

from __future__ import annotations

import asyncio
import os
import re
from functools import partial
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from holdfast.errors import HoldfastError, InvalidRequestError, NotFoundError, ObjectMissingError
from holdfast.http.access.gate import admit_to_packs
from holdfast.http.access.scopes import Need
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.responses import encode_json, respond_error, respond_json, result_of
from holdfast.http.routes import Resource, Route
from holdfast.protocol.content import JSON, decode_request, media_type
from holdfast.storage.catalog import used_extents, used_packs
from holdfast.storage.commands import CollectGarbage, PinPacks, SwapPacks
from holdfast.storage.open_objects import store_location

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from holdfast.engine.shard import Shard
    from holdfast.engine.stream import Stream
    from holdfast.engine.tier import Tier
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.storage.catalog import Catalog
    from holdfast.storage.cold import ColdReader
    from holdfast.storage.commands import Command

T = TypeVar("T")
NDJSON_HEADERS: Final = b"Content-Type: application/x-ndjson\r\nCache-Control: no-store\r\n"
PACK_NAME: Final = r"\Apacks/[0-9A-Za-z._-]+\.pack\Z"
PACK_NAME_CHARACTERS_MAX: Final = 200
DATA_BYTES_MAX: Final = 16 * 1024 * 1024
_BYTES_HEADERS: Final = b"Content-Type: application/octet-stream\r\nCache-Control: no-store\r\n"
_AT_MAX: Final = 10**18 - 1
_LINES: Final = 250
_HOTTEST_MAX: Final = 20
# With more changed streams than this, the hottest are looked for in a sample.
_SAMPLE_STREAMS: Final = 20_000
PackName = Annotated[str, msgspec.Meta(pattern=PACK_NAME, max_length=PACK_NAME_CHARACTERS_MAX)]
PackNames = Annotated[list[PackName], msgspec.Meta(max_length=1000)]


class SwapRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Packs in the store that replace others."""

    add: PackNames
    remove: PackNames


class PinRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Keep everything that is in use now for `ttl` seconds under a name; 0 lets go."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    ttl: Annotated[float, msgspec.Meta(ge=0, le=604_800)]


_decode_swap = msgspec.json.Decoder(SwapRequest).decode
_decode_pin = msgspec.json.Decoder(PinRequest).decode


# Commands.


def _flush(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Flush everything that is durable now; respond once it is in packs."""
    _tier(app).flush(lambda error: _respond_done(slot, error))


def _swap(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Replace packs by others, by compare-and-set."""
    swap = _decoded(request, _decode_swap)
    _submit(app, slot, SwapPacks(swap.add, swap.remove))


def _pin(app: App, request: Request, slot: Slot, _name: str) -> None:
    pin = _decoded(request, _decode_pin)
    _submit(app, slot, PinPacks(pin.name, pin.ttl))


def _collect(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Remove the objects that are due now."""
    _submit(app, slot, CollectGarbage())


def _decoded(request: Request, decode: Callable[[bytes], T]) -> T:
    # A page in a browser can send anything but JSON without a preflight.
    if media_type(request.headers.get(b"content-type", b"").decode("latin-1")) != JSON:
        raise InvalidRequestError("The request needs the Content-Type application/json.")
    return decode_request(decode, request.body, InvalidRequestError)


def _submit(app: App, slot: Slot, command: Command) -> None:
    def done(result: int | HoldfastError) -> None:
        _respond_done(slot, result if isinstance(result, HoldfastError) else None)

    _tier(app).worker.submit(command, done)


def _tier(app: App) -> Tier:
    if app.shard.tier is None:
        raise NotFoundError("This server keeps everything in memory and has no storage.")
    return app.shard.tier


def _respond_done(slot: Slot, error: HoldfastError | None) -> None:
    if error is None:
        slot.respond(204, b"")
    else:
        respond_error(slot, error)


# Numbers.


def _stats(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """What is in memory, what is in packs, and whether the flush keeps up."""
    shard = app.shard
    tier, cold = shard.tier, shard.reader.cold
    stats: dict[str, Any] = {"hot": _hot_stats(shard, tier)}
    if tier is None or cold is None:
        stats |= {"cold": None, "flush": None, "backpressure": None, "cache": None}
    else:
        stats |= {
            "cold": _cold_stats(shard),
            "flush": _flush_stats(shard, tier),
            "backpressure": {
                "active": bool(shard.commits.full),
                "reason": shard.commits.full or None,
                "refused": shard.commits.refusals,
                "delayed_s": shard.commits.delayed_s,
            },
            "cache": _cache_stats(cold, app.settings.storage.block_cache_bytes),
        }
    respond_json(slot, stats)


def _hot_stats(shard: Shard, tier: Tier | None) -> dict[str, Any]:
    state = shard.state
    changed = list(state.by_number.values()) if tier is None else tier.changed
    return {
        "bytes": state.stored_bytes if tier is None else tier.hot_bytes,
        "cost_bytes": None if tier is None else tier.cost_bytes,
        "soft_limit_bytes": None if tier is None else tier.soft_bytes,
        "hard_limit_bytes": None if tier is None else tier.hard_bytes,
        "streams_in_memory": len(state.by_number),
        "streams_changed": len(changed),
        "hottest": _hottest(changed),
    }


def _hottest(changed: list[Stream]) -> list[dict[str, Any]]:
    stride = max(1, len(changed) // _SAMPLE_STREAMS)
    hottest = nlargest(_HOTTEST_MAX, changed[::stride], key=_hot_bytes)
    return [
        {"stream": stream.meta.name, "hot_bytes": _hot_bytes(stream), "tail": stream.tail}
        for stream in hottest
        if not stream.gone and _hot_bytes(stream)
    ]


def _hot_bytes(stream: Stream) -> int:
    return stream.tail - stream.base


def _cold_stats(shard: Shard) -> dict[str, Any]:
    assert shard.catalog is not None, "a tier has a catalog"
    totals = shard.catalog.totals()
    return {
        "bytes": totals.stored_bytes,
        "streams": totals.streams,
        "packs": totals.packs,
        "pack_bytes": totals.pack_bytes,
        "dead_bytes": totals.dead_bytes,
        "retired_packs": totals.retired_packs,
    }


def _flush_stats(shard: Shard, tier: Tier) -> dict[str, Any]:
    log = shard.log.stats()
    return {
        "position": shard.commits.last_position,
        "flushed_position": tier.flushed,
        "backlog_log_bytes": log.size_bytes,
        "backlog_segments": log.segments,
        "in_progress": tier.flushing,
        "trouble": tier.trouble or None,
        "retries": tier.retries,
        "process_restarts": tier.worker.restarts,
    }


def _cache_stats(cold: ColdReader, limit_bytes: int) -> dict[str, Any]:
    blocks = cold.blocks
    return {
        "bytes": blocks.cache.size_bytes,
        "limit_bytes": limit_bytes,
        "blocks": len(blocks.cache),
        "hits": blocks.counters.cache_hits,
        "misses": blocks.counters.cache_misses,
    }


# Packs.


def _store(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Where the packs are, and the position up to which they hold everything."""
    flushed = cursor_text(catalog_of(app).flushed)
    respond_json(slot, {"store": store_url(app), "store_id": store_id(app), "flushed": flushed})


def _packs(app: App, request: Request, slot: Slot, _name: str) -> None:
    """A line of JSON for each pack in use."""
    admit_to_packs(app, request)
    pieces = lines_in_thread(_pack_lines(catalog_of(app).path))
    app.respond_streamed(request, slot, NDJSON_HEADERS, pieces)


def _pack_lines(path: Path) -> Iterator[bytes]:
    for pack in used_packs(path):
        yield encode_json(pack)


def _extents(app: App, request: Request, slot: Slot, _name: str) -> None:
    """A line of JSON for each extent in use of a pack."""
    admit_to_packs(app, request)
    catalog = catalog_of(app)
    name = pack_name(parse_query(request.query))
    if not catalog.is_used(name):
        raise NotFoundError(f"The pack {name!r} is not in use.")
    pieces = lines_in_thread(_extent_lines(catalog.path, name))
    app.respond_streamed(request, slot, NDJSON_HEADERS, pieces)


def _extent_lines(path: Path, name: str) -> Iterator[bytes]:
    for extent in used_extents(path, name):
        yield encode_json(extent)


def _data(app: App, request: Request, slot: Slot, _name: str) -> None:
    """The raw bytes of a part of a pack."""
    admit_to_packs(app, request)
    catalog_of(app)
    query = parse_query(request.query)
    name = pack_name(query)
    at = int_parameter(query, "at", 0, _AT_MAX)
    size = int_parameter(query, "size", 1, DATA_BYTES_MAX)
    if at is None or size is None:
        raise InvalidRequestError("The parameters 'at' and 'size' are needed.")
    cold = app.shard.reader.cold
    assert cold is not None, "a shard with a catalog can read packs"
    app.spawn(_read_raw(cold, slot, name, at, size), slot)


async def _read_raw(cold: ColdReader, slot: Slot, name: str, at: int, size: int) -> None:
    try:
        data = await result_of(partial(cold.blocks.read_raw, name, at, size))
    except ObjectMissingError:
        raise NotFoundError(f"There is no object {name!r} in the store.") from None
    slot.on_gone = None
    slot.respond(200, _BYTES_HEADERS, data)


def pack_name(query: dict[str, str]) -> str:
    name = query.get("pack")
    if name is None:
        raise InvalidRequestError("The parameter 'pack' is needed.")
    if len(name) > PACK_NAME_CHARACTERS_MAX or re.match(PACK_NAME, name) is None:
        raise NotFoundError(f"{name[:PACK_NAME_CHARACTERS_MAX]!r} is not the name of a pack.")
    return name


# What scans use as well.


def catalog_of(app: App) -> Catalog:
    """The catalog; raises NotFoundError on a server that keeps everything in memory."""
    if app.shard.catalog is None:
        raise NotFoundError("This server keeps everything in memory and has no packs.")
    return app.shard.catalog


def store_url(app: App) -> str:
    """The store as a URL, a directory as `file:///path`; empty if everything is in memory."""
    catalog = app.shard.catalog
    if catalog is None:
        return ""
    url = store_location(app.settings.storage, catalog.path.parent / "objects").url
    if url.startswith("file:"):
        path = Path(os.fsdecode(unquote_to_bytes(urlsplit(url).path)))
    elif "://" in url:
        return url
    else:
        path = Path(url).expanduser()
    return path.absolute().as_uri()


def store_id(app: App) -> str:
    """The id in the store's marker, by which jobs check that they have the right store."""
    catalog = app.shard.catalog
    return "" if catalog is None else str(catalog.fact("store"))


def cursor_text(position: int) -> str:
    """The cursor for a position in the log."""
    return f"{position:020d}"


async def lines_in_thread(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Lines in pieces; each piece is made in a thread, since it reads the catalog."""

    def next_piece() -> bytes:
        piece = [line for _, line in zip(range(_LINES), lines, strict=False)]
        return b"\n".join([*piece, b""]) if piece else b""

    while piece := await asyncio.to_thread(next_piece):
        yield piece


RESOURCES: Final = {
    b"/cluster/hot-cold-stats": Resource.reading(Route(_stats, "storage_stats", need=Need.READ)),
    b"/cluster/flush": Resource({b"POST": Route(_flush, "storage")}),
    b"/cluster/swap-packs": Resource({b"POST": Route(_swap, "storage")}),
    b"/cluster/pin-packs": Resource({b"POST": Route(_pin, "storage")}),
    b"/cluster/collect-garbage": Resource({b"POST": Route(_collect, "storage")}),
    b"/cluster/store": Resource.reading(Route(_store, "storage", need=Need.READ)),
    b"/cluster/packs": Resource.reading(Route(_packs, "packs", need=Need.READ)),
    b"/cluster/packs/extents": Resource.reading(Route(_extents, "packs", need=Need.READ)),
    b"/cluster/packs/data": Resource.reading(Route(_data, "packs", need=Need.READ)),
}
