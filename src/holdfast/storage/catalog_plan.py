"""Planning a scan: how what the catalog knows is divided among workers.

By packs: the plan lists packs, and parts that say which positions and streams a worker takes. Packs
are sorted by stream number and offset, so a large pack is cut at places that a few look-ups find.
Nothing else is read, however many streams there are. A part does not depend on its packs: if they
are merged meanwhile, whatever holds these positions and streams has the same messages.

By names: the plan lists ranges of stream names with whole streams in each. SQLite adds up the
extents of some thousands of streams at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.format.packs import TIME_MAX_MS, TIME_MIN_MS, PackInfo, ScanPart
from holdfast.storage.catalog_scan import (
    BY_PACK,
    CANDIDATES_MAX,
    IN_RANGE,
    NAMES,
    REACHING,
    WITHIN,
    CatalogScan,
)
from holdfast.storage.catalog_writer import PACK_COLUMNS, pack_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Reading a message takes as long as reading this many bytes more.
_MESSAGE_BYTES: Final = 64
# Ranges of packs in a partition, at most.
_PARTITION_RANGES: Final = 100_000
# A scan of this many extents is planned by names, if it is not clear that there are more.
_FEW_EXTENTS: Final = 20_000
_EXAMINED_EXTENTS: Final = 500_000
# Streams that are added up in one step by names, at most.
_STEP_STREAMS: Final = 4096
# Unless more parts are asked for.
_PARTS_MAX: Final = 20_000
# A pack is cut this many times finer than parts are, because other packs share its parts, ...
_FINER: Final = 4
# ... and each cut is right up to such a share of a piece.
_PRECISION: Final = 8

_PACKS: Final = (
    f"SELECT {PACK_COLUMNS}, id FROM packs WHERE {REACHING} AND data_bytes > dead_bytes "  # noqa: S608 (ours)
    "ORDER BY after, through, id"
)
_EXTENT: Final = (
    "SELECT stream, start, data_at, message_at FROM extents INDEXED BY extents_by_pack "
    "WHERE pack = ? AND (stream, start) >= (?, ?) ORDER BY stream, start LIMIT 1"
)
_LAST_EXTENT: Final = (
    "SELECT stream, start, data_at, message_at FROM extents INDEXED BY extents_by_pack "
    "WHERE pack = ? ORDER BY stream DESC, start DESC LIMIT 1"
)
_COUNT_STREAMS: Final = f"SELECT count(*) FROM (SELECT 1 FROM streams WHERE {NAMES} LIMIT :limit)"  # noqa: S608 (ours)
_COUNT_BY_NAME: Final = (
    "SELECT count(*) FROM (SELECT 1 FROM streams CROSS JOIN extents "  # noqa: S608 (ours)
    f"ON extents.stream = streams.number WHERE {NAMES} AND {IN_RANGE} LIMIT :limit)"
)
_COUNT_BY_PACK: Final = (
    "SELECT count(*), total(hit) FROM (SELECT "  # noqa: S608 (ours)
    f"{IN_RANGE} AS hit {BY_PACK} WHERE {REACHING} LIMIT :limit)"
)
_NAME: Final = f"SELECT name FROM streams WHERE {NAMES} ORDER BY name LIMIT 1 OFFSET :offset"  # noqa: S608 (ours)
_LAST_NAME: Final = f"SELECT max(name) FROM streams WHERE {NAMES}"  # noqa: S608 (ours)
_SIZE: Final = (
    "SELECT total(length), count(*) FROM streams CROSS JOIN extents "  # noqa: S608 (ours)
    f"ON extents.stream = streams.number WHERE {NAMES} AND {IN_RANGE}"
)
_SIZES_BY_PACK: Final = (
    f"SELECT streams.name, sum(length), count(*) {BY_PACK} {WITHIN} "
    "GROUP BY streams.number ORDER BY streams.name LIMIT :limit"
)


class NameRange(NamedTuple):
    """Streams from one name to another, both included, and about what they have."""

    first: str
    last: str
    size_bytes: int
    ranges: int

    def cost(self, size: int) -> int:
        """The size, with so much for a range that a partition has not too many of them."""
        return self.size_bytes + self.ranges * max(1, size // _PARTITION_RANGES)


class PackPlan(NamedTuple):
    packs: list[PackInfo]
    parts: list[ScanPart]


class _Piece(NamedTuple):
    """What a pack has from a place on."""

    first: tuple[int, int]
    size_bytes: int
    messages: int

    @property
    def cost(self) -> int:
        return self.size_bytes + _MESSAGE_BYTES * self.messages


class _Reach(NamedTuple):
    """A pack, its place in the plan, and its key in the catalog."""

    info: PackInfo
    place: int
    id: int

    @property
    def cost(self) -> int:
        return self.info.data_bytes + _MESSAGE_BYTES * self.info.messages


class ScanPlanner(CatalogScan):
    """Plans one scan; blocks on the catalog."""

    def narrow(self, from_ms: int | None, to_ms: int | None) -> tuple[int, int]:
        """Scan only positions that may have messages of a range of times, and return them."""
        with self.opened():
            after, until = self._scanned.after, self._scanned.until
            if from_ms is not None:
                ((first,),) = self._all(
                    "SELECT min(first_position) FROM times WHERE max_ms >= :from_ms",
                    from_ms=max(from_ms, TIME_MIN_MS),
                )
                after = max(after, (self._file.flushed if first is None else first - 1))
            if to_ms is not None:
                ((last,),) = self._all(
                    "SELECT max(last_position) FROM times WHERE min_ms <= :to_ms",
                    to_ms=min(to_ms, TIME_MAX_MS),
                )
                until = min(until, last or 0)
        self._scanned = self._scanned._replace(after=after, until=max(after, until))
        self._values = self._scanned.values
        return self._scanned.after, self._scanned.until

    def first_time(self, position: int) -> int | None:
        """When the message at a position was appended, at the earliest; None if that is unknown.

        To be called while the catalog is open.
        """
        found = self._all(
            "SELECT min_ms FROM times WHERE last_position >= :position ORDER BY first_position "
            "LIMIT 1",
            position=position,
        )
        return next((at for (at,) in found if at > TIME_MIN_MS), None)

    def last_before(self, after: int, end_ms: int) -> int:
        """The last position before messages that were all appended at a time or later.

        To be called while the catalog is open.
        """
        ((first,),) = self._all(
            "SELECT min(first_position) FROM times WHERE first_position > :after "
            "AND min_ms >= :end_ms AND min_ms <= max_ms",
            after=after,
            end_ms=end_ms,
        )
        return self._scanned.until if first is None else min(first - 1, self._scanned.until)

    def is_large(self) -> bool:
        """Whether there is too much to list the extents of all streams."""
        with self.opened():
            packs = self._all(_PACKS)
            if sum(pack_info(columns[:-1]).messages for columns in packs) <= _FEW_EXTENTS:
                return False
            some = self._count(_COUNT_STREAMS, _FEW_EXTENTS + 1)
            if some <= _FEW_EXTENTS:
                return self._count(_COUNT_BY_NAME, _FEW_EXTENTS + 1) > _FEW_EXTENTS
            if self._scanned.after:
                ((examined, hits),) = self._all(_COUNT_BY_PACK, limit=_EXAMINED_EXTENTS)
                if examined < _EXAMINED_EXTENTS and hits <= _FEW_EXTENTS:
                    return False
            return not self.is_minor()

    def by_packs(self, part_bytes: int, parts_min: int) -> PackPlan:
        """The packs, and parts of about this size; more of them if there would be too few."""
        with self.opened():
            # One transaction: packs may be swapped meanwhile.
            self._file.read("BEGIN")
            rows = self._all(_PACKS)
            found = [_Reach(pack_info(row[:-1]), at, row[-1]) for at, row in enumerate(rows)]
            total = sum(pack.cost for pack in found)
            size = max(1, min(part_bytes, total // max(1, parts_min)))
            # Parts of huge buckets are larger, so that a plan of them stays small.
            size = max(size, total // max(_PARTS_MAX, parts_min))
            return PackPlan([pack.info for pack in found], list(self._parts(found, size)))

    def _parts(self, packs: Sequence[_Reach], size: int) -> Iterator[ScanPart]:
        """Neighbouring small packs become one part, large ones several."""
        open_packs: list[_Reach] = []
        for group in _overlapping(packs):
            cost = sum(pack.cost for pack in group)
            if open_packs and sum(pack.cost for pack in open_packs) + cost > size:
                yield self._whole(open_packs)
                open_packs = []
            if cost > size:
                yield from self._cut(group, size)
            else:
                open_packs += group
        if open_packs:
            yield self._whole(open_packs)

    def _whole(self, packs: Sequence[_Reach]) -> ScanPart:
        size_bytes = sum(pack.info.data_bytes for pack in packs)
        messages = sum(pack.info.messages for pack in packs)
        return self._part(packs, (0, 0), None, size_bytes, messages)

    def _part(
        self,
        packs: Sequence[_Reach],
        first: tuple[int, int],
        last: tuple[int, int] | None,
        size_bytes: int,
        messages: int,
    ) -> ScanPart:
        return ScanPart(
            max(self._scanned.after, min(pack.info.after for pack in packs)),
            min(self._scanned.until, max(pack.info.through for pack in packs)),
            first,
            last,
            [pack.place for pack in packs],
            size_bytes,
            messages,
        )

    def _cut(self, group: Sequence[_Reach], size: int) -> Iterator[ScanPart]:
        """Cut packs that overlap in the log into parts by stream and offset."""
        pieces: list[_Piece] = []
        spans: list[tuple[_Reach, tuple[int, int], tuple[int, int]]] = []
        for pack in group:
            (last,) = self._file.read(_LAST_EXTENT, (pack.id,))
            found = self._pieces(pack, last, size)
            pieces += found
            spans.append((pack, found[0].first, last[:2]))
        pieces.sort()
        held: list[_Piece] = []
        begin = (0, 0)
        for piece in pieces:
            if held and sum(each.cost for each in held) + piece.cost > size and piece.first > begin:
                yield self._between(spans, begin, piece.first, held)
                begin, held = piece.first, []
            held.append(piece)
        yield self._between(spans, begin, None, held)

    def _between(
        self,
        spans: Sequence[tuple[_Reach, tuple[int, int], tuple[int, int]]],
        begin: tuple[int, int],
        end: tuple[int, int] | None,
        held: Sequence[_Piece],
    ) -> ScanPart:
        packs = [
            pack for pack, first, last in spans if last >= begin and (end is None or first < end)
        ]
        size_bytes = sum(piece.size_bytes for piece in held)
        return self._part(packs, begin, end, size_bytes, sum(piece.messages for piece in held))

    def _pieces(self, pack: _Reach, last: Sequence[int], size: int) -> list[_Piece]:
        """Cut a pack into pieces of similar cost, each a run of extents."""
        (first,) = self._file.read(_EXTENT, (pack.id, 0, 0))
        count = max(1, min(_FINER * pack.cost // size, pack.info.messages))
        places: list[Any] = [first]
        for number in range(1, count):
            self.check_cancelled()
            target = _cost(first) + number * pack.cost // count
            if target <= _cost(places[-1]):
                continue
            place = self._place(pack, places[-1], last, target, pack.cost // count // _PRECISION)
            if place[:2] > places[-1][:2]:
                places.append(place)
        pieces = []
        data_end = first[2] + pack.info.data_bytes
        for at, place in enumerate(places):
            following = places[at + 1] if at + 1 < len(places) else None
            end = (data_end, pack.info.messages) if following is None else following[2:]
            size_bytes, messages = max(0, end[0] - place[2]), max(0, end[1] - place[3])
            pieces.append(_Piece((place[0], place[1]), size_bytes, messages))
        return pieces

    def _place(
        self, pack: _Reach, low: Sequence[int], high: Sequence[int], target: int, slack: int
    ) -> Sequence[int]:
        """The extent at which about so much of the pack is behind; look-ups halve what is left."""
        best = high
        below, above = _key(low), _key(high)
        while below < above:
            middle = (below + above) // 2
            (found,) = self._file.read(_EXTENT, (pack.id, middle >> 63, middle & (1 << 63) - 1))
            cost = _cost(found)
            if abs(cost - target) <= slack:
                return found  # type: ignore[no-any-return]
            if cost < target:
                # Everything up to the found extent is below.
                below = max(middle + 1, _key(found) + 1)
            else:
                best, above = found, middle
        return best

    def by_names(self, partition_bytes: int, partitions_min: int) -> list[NameRange]:
        """Ranges of names with about as much in each, or one stream that is larger."""
        with self.opened():
            size = partition_bytes
            if partitions_min > 1:
                ((total,),) = self._all(
                    f"SELECT total(data_bytes - dead_bytes) FROM packs WHERE {REACHING}"  # noqa: S608 (ours)
                )
                size = max(1, min(size, int(total) // partitions_min))
            if self.is_less_by_pack():
                changed = self._all(_SIZES_BY_PACK, limit=CANDIDATES_MAX + 1)
                if len(changed) <= CANDIDATES_MAX:
                    streams = (NameRange(name, name, *each) for name, *each in changed)
                    return list(_joined_ranges(streams, size))
            return list(_joined_ranges(self._steps(size), size))

    def _steps(self, size: int) -> Iterator[NameRange]:
        """Neighbouring streams that are not too large together, in small steps.

        The names are read from an index, and SQLite adds up the extents of each step.
        """
        at, streams = self._name(self._values["least"], 0), _STEP_STREAMS
        while at is not None:
            following = self._name(at, streams)
            names = {"least": at, "beyond": following or self._values["beyond"]}
            ((size_bytes, ranges),) = self._all(_SIZE, **names)
            step = NameRange(at, at, int(size_bytes), ranges)
            if streams > 1:
                fitting = streams * (size // _FINER) // max(1, step.cost(size))
                is_too_large = step.cost(size) > size
                streams = min(max(fitting, 1), _STEP_STREAMS)
                if is_too_large:
                    continue
                ((last,),) = self._all(_LAST_NAME, **names)
                step = step._replace(last=last)
            else:
                streams = _STEP_STREAMS if step.cost(size) <= size // _FINER else 1
            if ranges:
                yield step
            at = following

    def _name(self, least: object, offset: int) -> str | None:
        found = self._all(_NAME, least=least, offset=offset)
        return found[0][0] if found else None


def _joined_ranges(steps: Iterable[NameRange], size: int) -> Iterator[NameRange]:
    """Join neighbours as long as they are not too large together."""
    joined: NameRange | None = None
    for each in steps:
        if joined is None or joined.cost(size) + each.cost(size) > size:
            if joined is not None:
                yield joined
            joined = each
        else:
            sizes = joined.size_bytes + each.size_bytes, joined.ranges + each.ranges
            joined = NameRange(joined.first, each.last, *sizes)
    if joined is not None:
        yield joined


def _overlapping(packs: Sequence[_Reach]) -> Iterator[list[_Reach]]:
    """Groups of packs whose positions overlap; packs are sorted by position."""
    group: list[_Reach] = []
    through = 0
    for pack in packs:
        if group and pack.info.after >= through:
            yield group
            group = []
        group.append(pack)
        through = max(through, pack.info.through)
    if group:
        yield group


def _key(extent: Sequence[int]) -> int:
    return extent[0] << 63 | extent[1]


def _cost(extent: Sequence[int]) -> int:
    return extent[2] + _MESSAGE_BYTES * extent[3]
