"""Cold reads: a stream's bytes from packs, cut exactly where a read from memory would be cut.

A read ends behind the last whole message that fits. Extents are whole messages, so only the extent
that holds the limit needs a look at its message index. A message that does not fit alone is given
whole if it is JSON, and cut otherwise: text between characters, other bytes anywhere.

Packs can be swapped for others while a read is under way; their objects stay for long after, and
where one is gone all the same the catalog is asked again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import CatalogError, HoldfastError, InvalidOffsetError, ObjectMissingError
from holdfast.format.packs import BLOCK_BYTES
from holdfast.protocol.content import CHARACTER_BYTES_MAX, JSON, SEPARATOR_BYTE, cut_text, is_text
from holdfast.storage.blocks import Blocks

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    from holdfast.objects.store import RangeReader
    from holdfast.storage.catalog import Catalog, Located

    Reply = Callable[["ColdBytes | HoldfastError"], None]

# A read looks at no more extents than this; merging sees to it that few are needed.
EXTENTS_MAX: Final = 64
_EXTENTS_AT_FIRST: Final = 3
_RECENT_MAX: Final = 256
# What a client that catches up will ask for next is fetched while it takes in what it got.
READ_AHEAD_BYTES: Final = 8 * 1024 * 1024
_ATTEMPTS: Final = 2
_NOTHING: Final = memoryview(b"")


class ColdBytes(NamedTuple):
    """Stored bytes up to the offset `end`."""

    end: int
    data: bytes


class ColdRequest(NamedTuple):
    """A read of `stream` from `start`; everything up to `limit` is cold.

    `must_give` is whether a first message that does not fit is given all the same.
    """

    stream: int
    media: str
    start: int
    limit: int
    bytes_max: int
    must_give: bool = True


class ColdReader:
    """Reads what is in packs."""

    def __init__(self, catalog: Catalog, ranges: RangeReader, cache_bytes: int) -> None:
        self._catalog = catalog
        self.blocks = Blocks(ranges, cache_bytes)
        # Extents that were looked up last. Merging may have replaced them since; their packs are
        # still there, or they are looked up again.
        self._recent: OrderedDict[int, list[Located]] = OrderedDict()
        # Where the last read of a stream ended, and up to where was read ahead: the next one may
        # go on from there.
        self._ended: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def read(self, request: ColdRequest, done: Reply) -> None:
        """Read; `done` is called once, perhaps before this returns."""
        self.blocks.counters.reads += 1
        _Read(self, request, done).start()

    def message_ends(
        self, stream: int, start: int, end: int, done: Callable[[list[int] | HoldfastError], None]
    ) -> None:
        """The offsets in (start, end] where messages end; all of it is cold."""
        _Ends(self, ColdRequest(stream, "", start, end, end - start), done).start()

    def extents(self, request: ColdRequest, *, anew: bool) -> list[Located]:
        """The extents a read may need, which leave no gap; raises if they do."""
        start, needed = request.start, min(request.start + request.bytes_max, request.limit)
        known = self._recent.get(request.stream)
        if known is not None and not anew and known[0].start <= start and needed <= known[-1].end:
            return [extent for extent in known if start < extent.end]
        extents = self._look_up(request, needed)
        self._recent[request.stream] = extents
        self._recent.move_to_end(request.stream)
        if len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)
        return extents

    def read_ahead(self, request: ColdRequest, end: int) -> tuple[int, int]:
        """What to fetch for a client that catches up: it began at 0, or where one ended.

        Nothing while half of what was fetched ahead is still to be read, so that requests are few
        and large.
        """
        last, ahead = self._ended.pop(request.stream, (0, 0))
        goes_on = request.start in {0, last} and end - request.start >= BLOCK_BYTES
        window = min(READ_AHEAD_BYTES, self.blocks.cache.bytes_max // 4)
        start, until = max(end, ahead), min(end + window, request.limit)
        if not goes_on or not end <= ahead <= end + window:
            start = end
        if not goes_on or start - end > window // 2:
            until = start
        self._ended[request.stream] = end, max(start, until)
        if len(self._ended) > _RECENT_MAX:
            self._ended.popitem(last=False)
        return start, until

    def _look_up(self, request: ColdRequest, needed: int) -> list[Located]:
        extents = self._catalog.extents(request.stream, request.start, _EXTENTS_AT_FIRST)
        if len(extents) == _EXTENTS_AT_FIRST and extents[-1].end < needed:
            extents = self._catalog.extents(request.stream, request.start, EXTENTS_MAX)
        at = request.start
        for extent in extents:
            if not extent.start <= at < extent.end:
                break
            at = extent.end
        if at == request.start or at < min(extents[-1].end, request.limit):
            raise CatalogError(
                f"The catalog has no extent for stream {request.stream:x} at offset {at}."
            )
        return extents


class _Read:
    """One read under way: find its end, get its blocks, put them together."""

    def __init__(self, reader: ColdReader, request: ColdRequest, done: Reply) -> None:
        self._reader = reader
        self._request = request
        self._done = done
        self._attempts = _ATTEMPTS
        self._extents: list[Located] = []
        # What is fetched; more than is given where a character or a message has to be looked at.
        self._at = self._end = request.start
        self._is_cut = False
        self._parts: list[memoryview] = []
        self._missing = 0

    def start(self) -> None:
        """Look the extents up and find the end."""
        request = self._request
        self._attempts -= 1
        try:
            anew = self._attempts < _ATTEMPTS - 1
            self._extents = self._reader.extents(request, anew=anew)
        except HoldfastError as error:
            self._done(error)
            return
        end = min(request.limit, self._extents[-1].end)
        target = request.start + request.bytes_max
        if target >= end:
            self._fetch(end)
            return
        extent = next(each for each in self._extents if each.start <= target < each.end)
        if target == extent.start:
            self._fetch(target)
        else:
            self._reader.blocks.ends(extent, lambda ends: self._choose_end(extent, target, ends))

    def _choose_end(
        self, extent: Located, target: int, ends: memoryview | array[int] | HoldfastError
    ) -> None:
        """The message index is here: end behind the last message that fits, if one does."""
        if isinstance(ends, HoldfastError):
            self._fail(ends)
            return
        assert not isinstance(ends, memoryview), "a message index is an array"
        request = self._request
        index = bisect_right(ends, target)
        end = ends[index - 1] if index else extent.start
        if end > request.start:
            self._fetch(end)
        elif not request.must_give:
            self._done(ColdBytes(request.start, b""))
        elif request.media == JSON:
            self._fetch(ends[index])
        else:
            # To cut text the bytes around the cut have to be looked at.
            self._is_cut = is_text(request.media)
            around = max(target, request.start + CHARACTER_BYTES_MAX) + 1
            self._fetch(min(around, ends[index], request.limit) if self._is_cut else target)

    def _fetch(self, end: int) -> None:
        """Get the blocks up to `end`."""
        request = self._request
        self._at, self._end = request.start, end
        if request.media == JSON and request.start > self._extents[0].start:
            # An offset is sound if the byte before it ends a message; extents start with one.
            self._at -= 1
        runs = [
            (
                extent,
                (max(self._at, extent.start) - extent.start) // BLOCK_BYTES,
                (min(end, extent.end) - extent.start - 1) // BLOCK_BYTES,
            )
            for extent in self._extents
            if extent.start < end
        ]
        self._missing = sum(last - first + 1 for _, first, last in runs)
        self._parts = [_NOTHING] * self._missing
        place = 0
        for extent, first, last in runs:
            got = partial(self._got, self._attempts, place - first)
            self._reader.blocks.blocks(extent, first, last, got)
            place += last - first + 1

    def _got(
        self,
        attempt: int,
        shift: int,
        number: int,
        part: memoryview | array[int] | HoldfastError,
    ) -> None:
        if attempt != self._attempts or self._missing <= 0:
            # It was asked for before another part failed.
            return
        if isinstance(part, HoldfastError):
            self._missing = 0
            self._fail(part)
            return
        assert isinstance(part, memoryview), "a block is bytes"
        self._parts[shift + number] = part
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        """Everything is here: put it together, and cut off what is not asked for."""
        request, parts = self._request, self._parts
        parts[0] = parts[0][(self._at - self._extents[0].start) % BLOCK_BYTES :]
        surplus = sum(map(len, parts)) - (self._end - self._at)
        parts[-1] = parts[-1][: len(parts[-1]) - surplus]
        if self._at < request.start:
            if parts[0][0] != SEPARATOR_BYTE:
                self._done(
                    InvalidOffsetError(f"Offset {request.start:020d} is inside a JSON message.")
                )
                return
            parts[0] = parts[0][1:]
        data = b"".join(parts)
        if self._is_cut:
            data = data[: cut_text(data, 0, request.bytes_max)]
        size = len(data)
        self._reader.blocks.counters.read_bytes += size
        end = request.start + size
        start, until = self._reader.read_ahead(request, end)
        self._done(ColdBytes(end, data))
        if start < until:
            self._fetch_ahead(start, until)

    def _fetch_ahead(self, at: int, end: int) -> None:
        """The client will ask for more: fetch it meanwhile."""
        for extent in self._extents:
            if at < extent.end and extent.start < end:
                first = (max(at, extent.start) - extent.start) // BLOCK_BYTES
                last = (min(end, extent.end) - extent.start - 1) // BLOCK_BYTES
                self._reader.blocks.prefetch(extent, first, last)

    def _fail(self, error: HoldfastError) -> None:
        """Try again where a pack was merged away meanwhile; otherwise say so."""
        if isinstance(error, ObjectMissingError) and self._attempts:
            self.start()
        else:
            self._done(error)


class _Ends:
    """Looks up the message indexes of the extents of a range, one after the other."""

    def __init__(
        self,
        reader: ColdReader,
        request: ColdRequest,
        done: Callable[[list[int] | HoldfastError], None],
    ) -> None:
        self._reader = reader
        self._request = request
        self._done = done
        self._attempts = _ATTEMPTS
        self._found: list[int] = []
        self._reached = 0

    def start(self) -> None:
        """Look the extents up, and go through them."""
        self._attempts -= 1
        request = self._request
        at = max(request.start, self._found[-1] if self._found else 0)
        try:
            anew = self._attempts < _ATTEMPTS - 1
            extents = self._reader.extents(request._replace(start=at), anew=anew)
        except HoldfastError as error:
            self._done(error)
            return
        self._reached = extents[-1].end
        self._next([each for each in extents if each.start < request.limit])

    def _next(self, extents: list[Located]) -> None:
        if not extents:
            self._finish()
            return
        extent, *rest = extents
        self._reader.blocks.ends(extent, lambda ends: self._got(ends, rest))

    def _got(self, ends: memoryview | array[int] | HoldfastError, rest: list[Located]) -> None:
        if isinstance(ends, HoldfastError):
            if isinstance(ends, ObjectMissingError) and self._attempts:
                self.start()
            else:
                self._done(ends)
            return
        assert not isinstance(ends, memoryview), "a message index is an array"
        start = self._found[-1] if self._found else self._request.start
        first, last = bisect_right(ends, start), bisect_right(ends, self._request.limit)
        self._found += ends[first:last]
        self._next(rest)

    def _finish(self) -> None:
        """So many extents are looked at in one round; what is left comes in another."""
        if self._reached < self._request.limit:
            self._attempts = _ATTEMPTS
            self.start()
        else:
            self._done(self._found)
