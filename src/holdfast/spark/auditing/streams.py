"""Whether the extents of each stream lead from its start to its tail, across all packs.

Everything that packs and catalog say of streams is sent round as rows, and arrives here sorted by
stream; a stream is looked at as a whole, so memory holds the extents of one.

- `STATE`: a stream's row in a delta: `at` is the end of the pack's range of the log, `end` the
  tail, `start` where its bytes start, `name` its name. The one that is furthest in the log counts.
- `ENDED`: the same for a stream that ended in the range.
- `EXTENT`: an extent in use: `at` and `end` are its offsets, `start` is where the bytes that are
  needed start and `tail` where the stream ends, both as the catalog has it. `pack` is the number of
  the pack in the list that was made at the beginning; -1 if it came into use since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.spark.auditing.findings import StreamFinding, StreamsReport

__all__ = ["ENDED", "EXTENT", "STATE", "Place", "StreamsCheck"]

# In the order in which they are wanted of a stream.
STATE: Final = 0
ENDED: Final = 1
EXTENT: Final = 2


class Place(NamedTuple):
    """A row: something that a pack or the catalog says of a stream."""

    stream: int
    kind: int
    at: int
    end: int = 0
    start: int = 0
    tail: int = 0
    pack: int = -1
    name: str = ""


class StreamsCheck:
    """Takes rows sorted by stream, and looks at each stream once it is complete."""

    def __init__(self) -> None:
        self.report = StreamsReport()
        self._held: list[Place] = []

    def take(self, places: Iterable[Place]) -> None:
        """Take the next rows."""
        held = self._held
        for place in places:
            if held and held[0].stream != place.stream:
                self._look(held)
                held = []
            held.append(place)
        self._held = held

    def finish(self) -> StreamsReport:
        """Look at the last stream; what was found."""
        if self._held:
            self._look(self._held)
            self._held = []
        return self.report

    def _look(self, places: Sequence[Place]) -> None:
        extents = sorted(
            (place for place in places if place.kind == EXTENT), key=lambda place: place.at
        )
        told = max(
            (place for place in places if place.kind != EXTENT),
            key=lambda place: (place.at, place.kind),
            default=None,
        )
        if told is not None and told.kind == ENDED:
            if extents:
                self._found(told, "ended", 0, "it ended, and the catalog has bytes of it in a pack")
            return
        self.report.streams += 1
        if told is None:
            self._found(extents[0], "rowless", 0, "no pack has the row that belongs to its bytes")
        elif extents:
            self._compare(told, extents)
        elif told.end > told.start:
            what = f"it misses bytes {told.start} to {told.end}, all that it has"
            self._found(told, "absent", 0, what)
        if extents:
            self._walk(told, extents)

    def _compare(self, told: Place, extents: Sequence[Place]) -> None:
        """The catalog knows at least what the packs say; it may know more by now."""
        tail, start = max(each.tail for each in extents), max(each.start for each in extents)
        if tail < told.end:
            what = f"it ends at {told.end}, and the catalog says at {tail}"
            self._found(told, "behind", tail, what)
        if start < told.start:
            what = f"it starts at {told.start}, and the catalog says at {start}"
            self._found(told, "behind", start, what)

    def _walk(self, told: Place | None, extents: Sequence[Place]) -> None:
        starts = [each.start for each in extents]
        at = needed = max(starts if told is None else [*starts, told.start])
        who = told or extents[0]
        last: Place | None = None
        for each in extents:
            if each.end <= needed:
                # It was read before the stream was trimmed.
                continue
            if each.at > at:
                self._found(who, "misses", at, f"it misses bytes {at} to {each.at}")
            elif last is not None and each.at < at and min(each.pack, last.pack) >= 0:
                self._found(who, "doubled", each.at, f"it has byte {each.at} twice")
            if each.end > at:
                at, last = each.end, each
        if told is not None and at < told.end:
            self._found(who, "misses", at, f"it misses bytes {at} to {told.end}, its end")
        known = max(each.tail for each in extents)
        if at > known:
            self._found(who, "beyond", known, f"it ends at {known}, and has bytes up to {at}")

    def _found(self, who: Place, code: str, at: int, what: str) -> None:
        self.report.add(StreamFinding(who.stream, code, at, who.name, what))  # type: ignore[arg-type]
