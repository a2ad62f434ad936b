"""Reads that tell where the messages in their answer end, for clients that asked for it.

JSON tells that by itself. For other streams the answer lists the lengths of the messages that end
in its body. Proxies refuse large heads, so the list has a limit, and the answer ends where the list
does: what is left is for the next one.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.engine.few_messages import first_ends
from holdfast.engine.reading import end_of_read
from holdfast.http.awaiting import answer_later
from holdfast.http.bytes_answer import answer_bytes, answer_found, read_fields
from holdfast.protocol.content import CHARACTER_BYTES_MAX, JSON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.bytes_answer import ReadRequest
    from holdfast.http.exchange import Slot
    from holdfast.storage.cold import ColdBytes

VALUE_BYTES_MAX: Final = 2000
# More than can be listed: the shortest length is a digit with a comma.
_ENDS_MAX: Final = VALUE_BYTES_MAX // 2 + 1
_FIELD: Final = b"Stream-Message-Lengths: %b\r\n"
_NONE: Final = b"none"
_JSON_FIELD: Final = _FIELD % b"json"
_EVENTS_FIELD: Final = _FIELD % b"events"


class Listed(NamedTuple):
    """As many lengths as fit, as text, and the offset where the last of these messages ends."""

    value: bytes
    end: int
    is_cut: bool


def list_lengths(start: int, ends: Sequence[int]) -> Listed:
    """The lengths of the messages that end at these offsets, the first one counted from `start`."""
    lengths: list[bytes] = []
    size = -1
    at = start
    for end in ends:
        length = b"%d" % (end - at)
        size += len(length) + 1
        if size > VALUE_BYTES_MAX:
            return Listed(b",".join(lengths), at, is_cut=True)
        lengths.append(length)
        at = end
    return Listed(b",".join(lengths) or _NONE, at, is_cut=False)


def events_field(asked: ReadRequest) -> bytes:
    """What the head of an event stream says."""
    return _JSON_FIELD if asked.stream.media == JSON else _EVENTS_FIELD


def answer_read(app: App, slot: Slot, asked: ReadRequest, extra_fields: bytes = b"") -> None:
    """Answer with stored bytes, and tell where messages end in them if that was asked for."""
    stream, start = asked.stream, asked.start
    if not asked.lengths:
        answer_bytes(app, slot, asked, extra_fields)
    elif stream.media == JSON:
        answer_bytes(app, slot, asked, extra_fields + _JSON_FIELD)
    elif start < stream.base:
        _answer_elsewhere(app, slot, asked, extra_fields)
    else:
        listed = list_lengths(start, _ends_in_memory(asked))
        if listed.is_cut:
            asked = asked._replace(bytes_max=listed.end - start)
        answer_bytes(app, slot, asked, extra_fields + _FIELD % listed.value)


def answer_at_tail(slot: Slot, asked: ReadRequest) -> None:
    """Answer that there is nothing behind the tail."""
    stream = asked.stream
    is_json = stream.media == JSON
    fields = read_fields(stream, stream.tail) + b"Cache-Control: no-store\r\n"
    if asked.lengths:
        fields += _JSON_FIELD if is_json else _FIELD % _NONE
    slot.answer(200, fields, b"[]" if is_json else b"")


def _ends_in_memory(asked: ReadRequest) -> list[int]:
    """Where messages end in what is in memory; not many more than can be listed."""
    stream, ends = asked.stream, asked.stream.ends
    end = end_of_read(stream, asked.start, asked.bytes_max)
    first = bisect_right(ends, asked.start)
    return ends[first : min(bisect_right(ends, end, first), first + _ENDS_MAX)]


def _answer_elsewhere(app: App, slot: Slot, asked: ReadRequest, extra_fields: bytes) -> None:
    """The start is in packs, or another stream's: look where messages end, then read them.

    In this order no more is read than can be listed. What is appended meanwhile is left out.
    """
    reader, stream, start = app.shard.reader, asked.stream, asked.start
    bytes_max = min(asked.bytes_max, stream.tail - start)

    def located(ends: list[int]) -> None:
        listed = list_lengths(start, ends)
        limit = listed.end - start if listed.is_cut else bytes_max
        answer_later(slot, partial(reader.read, stream, start, limit), partial(found, ends))

    def found(ends: list[int], stored: ColdBytes) -> None:
        # Less may have been read than was looked at.
        listed = list_lengths(start, ends[: bisect_right(ends, stored.end)])
        answer_found(app, slot, asked, stored, extra_fields + _FIELD % listed.value)

    until = _reach(stream, start, bytes_max)
    answer_later(slot, partial(first_ends, reader, stream, start, until, _ENDS_MAX), located)


def _reach(stream: Stream, start: int, bytes_max: int) -> int:
    """Where a read can end at most: a character is given whole, whatever the limit is."""
    return min(stream.tail, start + max(bytes_max, CHARACTER_BYTES_MAX))
