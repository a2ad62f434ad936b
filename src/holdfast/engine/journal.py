"""The journal: what each batch did to which stream, for the retained log and some time before it.

The changes feed and the hot part of a scan read it. An entry is the stream's number, the offset it
reached and how many bytes it gained. The entries of a batch are stored in arrays, so a record costs
28 bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import CursorGoneError
from holdfast.format.records import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.format.records import Record

# Entries that are kept after the bytes they describe have moved to packs.
KEPT_ENTRIES: Final = 262_144
_APPENDED: Final = (int(Kind.APPEND), "")
_WITH_BYTES: Final = frozenset({Kind.APPEND, Kind.CREATE})
ENDINGS: Final = frozenset({Kind.DELETE, Kind.EXPIRE})
# Changes that a caller processes without yielding to the event loop.
PAGE_ENTRIES_MAX: Final = 2_000


class StreamChange(NamedTuple):
    """The effect of one record on a stream."""

    position: int
    stream: int
    # The bytes it gained.
    offset: int
    length: int
    kind: int
    at_ms: int
    # Set for streams that were created or removed; others are found by their number.
    name: str


class JournalBatch:
    """The effects of one batch, in arrays with an entry for each record."""

    __slots__ = ("ends", "lengths", "position", "rare", "streams", "times_ms")

    def __init__(
        self,
        position: int,
        records: Sequence[Record],
        ends: Sequence[int],
        rare: dict[int, tuple[int, str]],
    ) -> None:
        self.position = position
        self.streams = array("Q", [record.stream for record in records])
        # The tail of the stream after each record.
        self.ends = array("Q", ends)
        self.lengths = array("I", [len(record.payload) for record in records])
        self.times_ms = array("q", [record.at_ms for record in records])
        # Kind and name of records other than appends, by index.
        self.rare = rare

    def changes(self) -> Iterator[StreamChange]:
        """The changes to streams, in order."""
        rare = self.rare
        for index, (stream, end, length, at_ms) in enumerate(
            zip(self.streams, self.ends, self.lengths, self.times_ms, strict=True)
        ):
            kind, name = rare.get(index, _APPENDED)
            if kind in _WITH_BYTES:
                yield StreamChange(self.position, stream, end - length, length, kind, at_ms, name)
            elif kind in ENDINGS:
                yield StreamChange(self.position, stream, end, 0, kind, at_ms, name)


class Journal:
    """Batches in order; the oldest are dropped once they are flushed and the limit is exceeded."""

    def __init__(self, *, keeps_unflushed: bool) -> None:
        # Entries before `_first` are dropped. A list, because readers start anywhere in it.
        self._batches: list[JournalBatch] = []
        self._first = 0
        self._entries = 0
        # Without storage nothing is ever flushed, and the limit alone decides.
        self._keeps_unflushed = keeps_unflushed
        self._flushed = 0
        # The journal has the changes after `earliest`, up to `last`.
        self.earliest = 0
        self.last = 0

    def start_after(self, position: int) -> None:
        self.earliest = self.last = self._flushed = position

    def add(self, batch: JournalBatch) -> None:
        self.last = batch.position
        self._batches.append(batch)
        self._entries += len(batch.streams)
        if self._entries > KEPT_ENTRIES:
            self._trim()

    def flushed(self, through: int) -> None:
        """Everything up to this position is in packs."""
        self._flushed = through
        self._trim()

    def _trim(self) -> None:
        batches = self._batches
        while self._entries > KEPT_ENTRIES and self._first < len(batches):
            oldest = batches[self._first]
            if self._keeps_unflushed and oldest.position > self._flushed:
                break
            batches[self._first] = _GONE
            self._first += 1
            self._entries -= len(oldest.streams)
            self.earliest = oldest.position
        if 2 * self._first > len(batches):
            # Rarely, so that the cost per batch is negligible.
            del batches[: self._first]
            self._first = 0

    def after(self, position: int) -> Iterator[JournalBatch]:
        """The batches after a position that is not before `earliest`.

        Consume it without awaiting.
        """
        batches = self._batches
        at = bisect_right(batches, position, self._first, key=lambda batch: batch.position)
        return islice(batches, at, None)

    def between(self, after: int, until: int) -> list[JournalBatch]:
        """The batches at positions (after, until]; raises CursorGoneError if some are dropped."""
        if after < min(self.earliest, until):
            raise CursorGoneError(self.earliest)
        return list(takewhile(lambda batch: batch.position <= until, self.after(after)))


_GONE: Final = JournalBatch(0, (), (), {})
