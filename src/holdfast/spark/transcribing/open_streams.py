"""What is not over where a table ends: responses under way, by stream.

It is kept beside the table, in a file that is named after the cursor it is true for, and which is
written before the table gets there. So it is there whenever the table says that cursor, and one
that no commit followed is of no account.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.errors import ObjectMissingError, StoreError
from holdfast.spark.archiving.names import CONTROL
from holdfast.spark.archiving.places import Place
from holdfast.spark.archiving.state import BEGINNING

_OPEN: Final = f"{CONTROL}/open/"


class OpenResponse(msgspec.Struct, frozen=True):
    """A response that had begun."""

    response_id: int
    started_at_ms: int
    status: int | None
    # Where between two frames, before its first, reading can begin again.
    boundary: int
    # Of the body, so far.
    size_bytes: int
    checksum: int


class OpenStream(msgspec.Struct, frozen=True):
    """A stream that has such responses, or ends within a frame."""

    stream_id: str
    # Between two frames, from where it has to be read again, and up to where it was read.
    start: int
    end: int
    responses: list[OpenResponse]
    # Whether its bytes are no frames from there on: nothing more can come of it.
    damaged: bool = False


_decode: Final = msgspec.json.Decoder(list[OpenStream]).decode


def read_open(place: Place, until: str) -> list[OpenStream]:
    """What was not over at the cursor up to which a table goes."""
    if until == BEGINNING:
        return []
    try:
        return _decode(place.objects.read(_name(until)))
    except (ObjectMissingError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"{_name(until)} of the table at {place.name} is missing or damaged: {error}"
        ) from None


def write_open(place: Place, until: str, streams: Iterable[OpenStream]) -> None:
    """Keep what is not over at a cursor; the table goes there next."""
    ordered = sorted(streams, key=lambda each: each.stream_id)
    place.objects.put(_name(until), msgspec.json.encode(ordered))


def forget_before(place: Place, until: str) -> None:
    """Remove what was kept for cursors before this one. Later ones may be another run's."""
    for each in list(place.objects.list(_OPEN)):
        if each.name < _name(until):
            place.objects.remove(each.name)


def _name(until: str) -> str:
    return f"{_OPEN}{until}.json"
