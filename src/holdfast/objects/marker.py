"""The object that says whose store this is, so that nobody takes one for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import ObjectMissingError, UnknownFormatError

if TYPE_CHECKING:
    from holdfast.objects.store import ObjectStore

MARKER: Final = "holdfast-store.json"
FORMAT_VERSION: Final = 1


class _Marker(msgspec.Struct):
    """What the marker says. Later formats may add to it, so other fields are passed over."""

    format: int
    id: str = ""


def encode_marker(identity: str) -> bytes:
    """The marker of the store of `identity`."""
    return msgspec.json.encode(_Marker(FORMAT_VERSION, identity))


def read_marker(store: ObjectStore) -> str:
    """Whose store it is; an ObjectMissingError if nothing says so."""
    try:
        marker = msgspec.json.decode(store.read(MARKER), type=_Marker)
    except msgspec.DecodeError:
        marker = _Marker(0)
    if marker.format > FORMAT_VERSION:
        raise UnknownFormatError(
            f"{store.url} is in format {marker.format}; this version knows {FORMAT_VERSION}."
        )
    if marker.format != FORMAT_VERSION or not marker.id:
        raise UnknownFormatError(f"{MARKER} in {store.url} is not a marker of Holdfast.")
    return marker.id


def store_owner(store: ObjectStore) -> str:
    """The mark of a store that packs are flushed to; empty if it has none."""
    try:
        return read_marker(store)
    except ObjectMissingError:
        return ""
