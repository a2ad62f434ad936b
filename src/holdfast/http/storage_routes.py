"""What operators and jobs ask of the storage: how full it is, flush now, swap packs, pin them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec

from holdfast.errors import HoldfastError, InvalidRequestError, NotFoundError
from holdfast.http.access.scopes import Need
from holdfast.http.errors import answer_error
from holdfast.http.health import JSON_FIELDS
from holdfast.http.pack_routes import PACK_NAME, PACK_NAME_CHARACTERS_MAX
from holdfast.http.routes import Resource, Route
from holdfast.http.storage_stats import hot_cold_stats
from holdfast.protocol.content import JSON, media_type
from holdfast.storage.commands import CollectGarbage, PinPacks, SwapPacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.tier import Tier
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.storage.commands import Command

Asked = TypeVar("Asked")
PackName = Annotated[str, msgspec.Meta(pattern=PACK_NAME, max_length=PACK_NAME_CHARACTERS_MAX)]
PackNames = Annotated[list[PackName], msgspec.Meta(max_length=1000)]


class SwapRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Packs in the store that shall replace others."""

    add: PackNames
    remove: PackNames


class PinRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Who keeps everything that is in use now, and for how many seconds; 0 lets go."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    ttl: Annotated[float, msgspec.Meta(ge=0, le=604_800)]


_encode = msgspec.json.Encoder().encode
_decode_swap = msgspec.json.Decoder(SwapRequest).decode
_decode_pin = msgspec.json.Decoder(PinRequest).decode


def _stats(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """How much is hot and cold, and whether the flush keeps up."""
    slot.answer(200, JSON_FIELDS, _encode(hot_cold_stats(app)))


def _flush(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Flush everything that is durable now; answers once it is in packs."""
    _tier(app).flush(lambda error: _answer(slot, error))


def _swap(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Replace packs by others, by compare-and-set."""
    asked = _decoded(request, _decode_swap)
    _submit(app, slot, SwapPacks(asked.add, asked.remove))


def _pin(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Keep the objects of everything in use now, for a while."""
    asked = _decoded(request, _decode_pin)
    _submit(app, slot, PinPacks(asked.name, asked.ttl))


def _collect(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Remove the objects that are due now."""
    _submit(app, slot, CollectGarbage())


def _decoded(request: Request, decode: Callable[[bytes], Asked]) -> Asked:
    # A page in somebody's browser can send anything but JSON without asking first.
    if media_type(request.fields.get(b"content-type", b"").decode("latin-1")) != JSON:
        raise InvalidRequestError("The request needs the Content-Type application/json.")
    try:
        return decode(request.body)
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"Malformed request: {error}.") from None


def _submit(app: App, slot: Slot, command: Command) -> None:
    def done(answer: int | HoldfastError) -> None:
        _answer(slot, answer if isinstance(answer, HoldfastError) else None)

    _tier(app).worker.submit(command, done)


def _tier(app: App) -> Tier:
    if app.shard.tier is None:
        raise NotFoundError("This server keeps everything in memory and has no storage.")
    return app.shard.tier


def _answer(slot: Slot, error: HoldfastError | None) -> None:
    if error is None:
        slot.answer(204, b"")
    else:
        answer_error(slot, error)


RESOURCES: Final = {
    b"/cluster/hot-cold-stats": Resource(
        {
            b"GET": Route(_stats, "storage_stats", need=Need.READ),
            b"HEAD": Route(_stats, "storage_stats", need=Need.READ),
        }
    ),
    b"/cluster/flush": Resource({b"POST": Route(_flush, "storage")}),
    b"/cluster/swap-packs": Resource({b"POST": Route(_swap, "storage")}),
    b"/cluster/pin-packs": Resource({b"POST": Route(_pin, "storage")}),
    b"/cluster/collect-garbage": Resource({b"POST": Route(_collect, "storage")}),
}
