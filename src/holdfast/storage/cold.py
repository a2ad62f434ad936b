"""Cold reads: a stream's bytes from packs, cut exactly where a read from memory would be cut.

A read ends after the last whole message that fits. Extents are whole messages, so only the message
index of the extent that contains the limit is needed. A message that does not fit alone is returned
whole if it is JSON, and cut otherwise: text between characters, other bytes anywhere.

Packs can be replaced by merged ones during a read. The replaced objects are kept for a long time;
if one is gone nevertheless, the catalog is queried again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import CatalogError, InvalidOffsetError, ObjectMissingError
from holdfast.format.packs import BLOCK_BYTES
from holdfast.protocol.content import (
    CHARACTER_BYTES_MAX,
    JSON,
    SEPARATOR_BYTE,
    cut_text,
    is_text,
)
from holdfast.storage.blocks import Blocks
from holdfast.storage.pending import all_of

if TYPE_CHECKING:
    from holdfast.objects.store import RangeReader
    from holdfast.storage.catalog import Catalog, Located

# The most extents that one read uses; merging sees to it that few are needed.
EXTENTS_MAX: Final = 64
_EXTENTS_AT_FIRST: Final = 3
_RECENT_MAX: Final = 256
# The next bytes for a client that catches up are fetched while it processes the last ones.
READ_AHEAD_BYTES: Final = 8 * 1024 * 1024
# A read of less than this part of a block does not count as catching up.
_CATCH_UP_PART: Final = 8


class ColdBytes(NamedTuple):
    """Stored bytes up to the offset `end`."""

    end: int
    data: bytes


class ColdRequest(NamedTuple):
    """A read of `stream` from `start`; everything up to `limit` is in packs.

    With `at_least_one` a first message that does not fit is returned nevertheless. `with_ends`
    fetches together with the bytes what `message_ends` will need for them. With `ends_only` only
    the end counts, and the bytes are fetched for the reads that follow.
    """

    stream: int
    media: str
    start: int
    limit: int
    bytes_max: int
    at_least_one: bool = True
    with_ends: bool = False
    ends_only: bool = False


class ColdReader:
    """Reads streams from packs."""

    def __init__(self, catalog: Catalog, ranges: RangeReader, cache_bytes: int) -> None:
        self._catalog = catalog
        self.blocks = Blocks(ranges, cache_bytes)
        # The last extents looked up for a stream. Merging may have replaced them since; then their
        # packs still exist, or the extents are looked up again.
        self._recent: OrderedDict[int, list[Located]] = OrderedDict()
        # Where the last read of a stream ended, and the end of what was read ahead.
        self._ended: OrderedDict[int, tuple[int, int]] = OrderedDict()

    async def read(self, request: ColdRequest) -> ColdBytes:
        self.blocks.counters.reads += not request.ends_only
        try:
            return await self._read(request, await self._extents(request))
        except ObjectMissingError as error:
            # The pack was replaced meanwhile. A traceback would keep alive what was read.
            error.with_traceback(None)
        return await self._read(request, await self._extents(request, anew=True))

    async def message_ends(self, stream: int, start: int, end: int) -> list[int]:
        """The offsets in (start, end] where messages end; all of it is in packs."""
        found: list[int] = []
        request = ColdRequest(stream, "", start, end, end - start)
        at, anew = start, False
        while at < end:
            try:
                for extent in await self._extents(request._replace(start=at), anew=anew):
                    if extent.start >= end:
                        break
                    ends = await self.blocks.ends(extent)
                    found += ends[bisect_right(ends, at) : bisect_right(ends, end)]
                    at = extent.end
                anew = False
            except ObjectMissingError as error:
                if anew:
                    raise
                error.with_traceback(None)
                anew = True
        return found

    async def _read(self, request: ColdRequest, extents: list[Located]) -> ColdBytes:
        start = request.start
        end, is_cut = await self._end_of_read(request, extents)
        if end <= start:
            return ColdBytes(start, b"")
        if request.ends_only and not is_cut:
            self._prefetch(extents, start, end)
            return ColdBytes(end, b"")
        # An offset of a JSON stream is valid if the byte before it ends a message, which is
        # certain at the start of an extent.
        is_checked = request.media == JSON and start > extents[0].start
        at = start - 1 if is_checked else start
        if request.with_ends:
            for extent in extents:
                if extent.start < end:
                    self.blocks.ends(extent)
        parts = await all_of(
            [
                part
                for extent in extents
                if extent.start < end
                for part in self.blocks.blocks(extent, *_block_range(extent, at, end))
            ]
        )
        parts[0] = parts[0][(at - extents[0].start) % BLOCK_BYTES :]
        surplus = sum(map(len, parts)) - (end - at)
        parts[-1] = parts[-1][: len(parts[-1]) - surplus]
        if is_checked:
            if parts[0][0] != SEPARATOR_BYTE:
                raise InvalidOffsetError(f"Offset {start:020d} is inside a JSON message.")
            parts[0] = parts[0][1:]
        data = b"".join(parts)
        if is_cut:
            data = data[: cut_text(data, 0, request.bytes_max)]
        self.blocks.counters.read_bytes += len(data)
        end = start + len(data)
        self._read_ahead(request, end, extents)
        return ColdBytes(end, data)

    async def _end_of_read(self, request: ColdRequest, extents: list[Located]) -> tuple[int, bool]:
        """Where to read up to, and whether the text up to there has to be cut afterwards."""
        end = min(request.limit, extents[-1].end)
        target = request.start + request.bytes_max
        if target >= end:
            return end, False
        extent = next(each for each in extents if each.start <= target < each.end)
        if target == extent.start:
            return target, False
        ends = await self.blocks.ends(extent)
        index = bisect_right(ends, target)
        end = ends[index - 1] if index else extent.start
        if end > request.start:
            return end, False
        if not request.at_least_one:
            return request.start, False
        if request.media == JSON:
            return ends[index], False
        if not is_text(request.media):
            return target, False
        # The cut must be between characters, so the bytes around it are needed.
        around = max(target, request.start + CHARACTER_BYTES_MAX) + 1
        return min(around, ends[index], request.limit), True

    def _read_ahead(self, request: ColdRequest, end: int, extents: list[Located]) -> None:
        """Fetch the next bytes for a client that catches up: it began at 0 or continued a read.

        Nothing is fetched while more than half of the last read-ahead is unread, so that requests
        are few and large.
        """
        last, ahead = self._ended.pop(request.stream, (0, 0))
        is_long = end - request.start >= BLOCK_BYTES // _CATCH_UP_PART
        goes_on = request.start in {0, last} and is_long
        window = min(READ_AHEAD_BYTES, self.blocks.cache.bytes_max // 4)
        start, until = max(end, ahead), min(end + window, request.limit)
        if not goes_on or not end <= ahead <= end + window:
            start = end
        if not goes_on or start - end > window // 2:
            until = start
        self._ended[request.stream] = end, max(start, until)
        if len(self._ended) > _RECENT_MAX:
            self._ended.popitem(last=False)
        if start < until:
            self._prefetch(extents, start, until)

    def _prefetch(self, extents: list[Located], start: int, until: int) -> None:
        for extent in extents:
            if start < extent.end and extent.start < until:
                self.blocks.prefetch(extent, *_block_range(extent, start, until))

    async def _extents(self, request: ColdRequest, *, anew: bool = False) -> list[Located]:
        """The extents that a read may need, without gaps."""
        start, needed = request.start, min(request.start + request.bytes_max, request.limit)
        known = self._recent.get(request.stream)
        if known is not None and not anew and known[0].start <= start and needed <= known[-1].end:
            return [extent for extent in known if start < extent.end]
        extents = await self._catalog.look_up(partial(self._look_up, request, needed))
        self._recent[request.stream] = extents
        self._recent.move_to_end(request.stream)
        if len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)
        return extents

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


def _block_range(extent: Located, start: int, end: int) -> tuple[int, int]:
    """The numbers of the first and the last block of an extent with bytes from start to end."""
    return (
        (max(start, extent.start) - extent.start) // BLOCK_BYTES,
        (min(end, extent.end) - extent.start - 1) // BLOCK_BYTES,
    )
