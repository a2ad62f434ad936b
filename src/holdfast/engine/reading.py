"""Reading streams: from memory and packs, through forks and their sources.

A read ends after the last whole message that fits: an append, or an element of a JSON stream. A
message that does not fit alone is returned whole if it is JSON, and cut otherwise: text between
characters, other bytes anywhere. `storage.cold` cuts what it reads from packs in the same places.

The bytes of a fork before its start are its source's, which may be a fork itself. A read therefore
goes through *stretches*: bytes that one stream owns, up to where the next one begins. In each
stretch the bytes in packs come first, and the bytes in memory after them. Stretches in packs are
read at the same time.

The coroutines here await packs only, so they complete at once if everything is in memory or in the
block cache. `storage.pending.run` runs them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from holdfast.errors import (
    HoldfastError,
    InvalidOffsetError,
    OffsetGoneError,
    StreamDeletedError,
)
from holdfast.protocol.content import JSON, SEPARATOR, SEPARATOR_BYTE, cut_text, is_text
from holdfast.protocol.names import not_found
from holdfast.storage.cold import ColdBytes, ColdRequest
from holdfast.storage.pending import Pending, all_of, run

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream
    from holdfast.storage.cold import ColdReader

T = TypeVar("T")
# Searches for a few messages look at a window of this size first, and then at twice as much each
# time, so their cost depends on these messages and not on the length of the stream.
WINDOW_BYTES: Final = 64 * 1024


def check_offset(stream: Stream, offset: int) -> None:
    """Raise unless a read may start here: retained, and between JSON messages.

    Whether an offset in packs is between messages is checked when it is read.
    """
    if offset > stream.tail:
        raise InvalidOffsetError(
            f"Offset {offset:020d} is past the tail of the stream, {stream.tail:020d}."
        )
    if offset < stream.earliest:
        raise OffsetGoneError(stream.earliest)
    if stream.media == JSON and not _starts_message(stream, offset):
        raise InvalidOffsetError(f"Offset {offset:020d} is inside a JSON message.")


def _starts_message(owner: Stream, at: int) -> bool:
    """Whether a message starts at an offset in memory; unknown counts as yes."""
    if owner.media != JSON or not owner.base < at < owner.tail:
        return True
    index = bisect_right(owner.ends, at)
    chunk = owner.chunks[index]
    inside = at - (owner.ends[index] - len(chunk))
    return not inside or chunk[inside - 1] == SEPARATOR_BYTE


def end_of_read(
    stream: Stream,
    offset: int,
    bytes_max: int,
    *,
    at_least_one: bool = True,
    limit: int | None = None,
) -> int:
    """Where a read from `offset`, which is in memory, ends.

    With `at_least_one` a first message that does not fit is returned nevertheless. `limit` is where
    a fork leaves this stream.
    """
    target = offset + bytes_max
    if limit is None:
        limit = stream.tail
    if target >= limit:
        return limit
    ends = stream.ends
    first = bisect_right(ends, offset)
    last = bisect_right(ends, target, first)
    whole = ends[last - 1] if last > first else offset
    if stream.media != JSON:
        if whole > offset or not at_least_one:
            return whole
        chunk = stream.chunks[first]
        start = ends[first] - len(chunk)
        inside = offset - start
        cut = cut_text(chunk, inside, bytes_max) if is_text(stream.media) else inside + bytes_max
        return min(limit, start + cut)
    if whole == target:
        return whole
    # Some messages of the append that does not fit may fit.
    chunk = stream.chunks[last]
    start = ends[last] - len(chunk)
    at = max(offset - start, 0)
    fitting = chunk.rfind(SEPARATOR, at, target - start)
    if fitting >= 0:
        return start + fitting + 1
    if whole > offset or not at_least_one:
        return whole
    return start + chunk.index(SEPARATOR, at) + 1


def read(stream: Stream, offset: int, end: int) -> bytes:
    """The stored bytes from `offset` to `end`, a result of `end_of_read`."""
    if offset >= end:
        return b""
    ends = stream.ends
    first = bisect_right(ends, offset)
    last = bisect_left(ends, end, first)
    chunks = stream.chunks[first : last + 1]
    if end < ends[last]:
        chunks[-1] = chunks[-1][: end - ends[last]]
    inside = offset - (ends[first] - len(stream.chunks[first]))
    if inside:
        chunks[0] = chunks[0][inside:]
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def ends_in_memory(owner: Stream, start: int, end: int) -> list[int]:
    """The offsets in (start, end] where messages in memory end."""
    first, last = bisect_right(owner.ends, start), bisect_left(owner.ends, end)
    if owner.media != JSON:
        return [each for each in owner.ends[first : last + 1] if each <= end]
    found: list[int] = []
    for index in range(first, min(last + 1, len(owner.ends))):
        chunk = owner.chunks[index]
        chunk_start = owner.ends[index] - len(chunk)
        at = chunk.find(SEPARATOR, max(0, start - chunk_start))
        while at >= 0 and chunk_start + at + 1 <= end:
            if chunk_start + at + 1 > start:
                found.append(chunk_start + at + 1)
            at = chunk.find(SEPARATOR, at + 1)
    return found


class Stretch(NamedTuple):
    """Bytes of a stream up to `end` that belong to `owner`.

    An owner that has left memory since is as good: all its bytes up to there are in packs.
    """

    owner: Stream
    end: int


class ShardReader:
    """Reads the streams of one shard, wherever their bytes are.

    A stream may grow, be trimmed or be removed, and its bytes may move to packs, while a read waits
    for packs.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        # Set if there is storage.
        self.cold: ColdReader | None = None

    async def read(
        self,
        stream: Stream,
        start: int,
        bytes_max: int,
        *,
        with_ends: bool = False,
        ends_only: bool = False,
    ) -> ColdBytes:
        """Read up to `bytes_max` bytes from an offset.

        With `with_ends`, `message_ends` for the same bytes does not have to wait again. With
        `ends_only` only the end counts, and the bytes may be missing.
        """
        at, left = start, bytes_max
        parts: list[bytes] = []
        stretches = await self._stretches(stream, at)
        while True:
            if stream.gone:
                raise not_found(stream.meta.name)
            if at < stream.earliest:
                raise OffsetGoneError(stream.earliest)
            owner, limit = _stretch_at(stream, stretches, at)
            if at < owner.base:
                wanted = ColdRequest(0, "", at, 0, left, at == start, with_ends, ends_only)
                requests = _cold_requests(stream, stretches, wanted)
                limit = requests[-1].limit
                end, data = await self._from_packs(stream, at, self._read_cold(requests))
            else:
                end = end_of_read(owner, at, left, at_least_one=at == start, limit=limit)
                if start == at < end and not _starts_message(owner, at):
                    raise InvalidOffsetError(f"Offset {at:020d} is inside a JSON message.")
                data = b"" if ends_only else read(owner, at, end)
            parts.append(data)
            left -= end - at
            if end < limit or end in {at, stream.tail} or left <= 0:
                return ColdBytes(end, parts[0] if len(parts) == 1 else b"".join(parts))
            at = end

    async def _read_cold(self, requests: list[ColdRequest]) -> ColdBytes:
        """Read stretches from packs at the same time, up to the first one that is not complete."""
        assert self.cold is not None, "bytes are in packs only with storage"
        if len(requests) == 1:
            return await self.cold.read(requests[0])
        reads: list[Pending[ColdBytes]] = [Pending() for _ in requests]
        for request, pending in zip(requests, reads, strict=True):
            run(self.cold.read(request), pending.set)
        parts, end = [], requests[0].start
        for request, found in zip(requests, await all_of(reads), strict=True):
            parts.append(found.data)
            end = found.end
            if end < request.limit:
                break
        return ColdBytes(end, b"".join(parts))

    async def _from_packs(self, stream: Stream, at: int, read: Awaitable[T]) -> T:
        """Wait for a read of packs, during which the stream may be removed or trimmed."""
        try:
            result = await read
        except HoldfastError as error:
            if not stream.gone and at >= stream.earliest:
                raise
            # A traceback would keep alive what was read.
            error.with_traceback(None)
        else:
            if not stream.gone:
                return result
        if stream.gone:
            name = stream.meta.name
            raise StreamDeletedError(name) if stream.deleted else not_found(name)
        # A snapshot was published meanwhile, and the packs are removed already.
        raise OffsetGoneError(stream.earliest)

    async def message_ends(self, stream: Stream, start: int, end: int) -> list[int]:
        """The offsets in (start, end] where messages end: appends, or elements of a JSON stream.

        A fork may start inside a message of its source; then that message ends there.
        """
        at = start
        found: list[int] = []
        stretches = await self._stretches(stream, at)
        while at < end:
            owner, stretch_end = _stretch_at(stream, stretches, at)
            limit = min(end, stretch_end)
            if at < owner.base:
                assert self.cold is not None, "bytes are in packs only with storage"
                limit = min(limit, owner.base)
                ends = self.cold.message_ends(owner.number, at, limit)
                found += await self._from_packs(stream, at, ends)
            else:
                found += ends_in_memory(owner, at, limit)
            if limit == stretch_end and (not found or found[-1] != limit):
                found.append(limit)
            at = limit
        return found

    async def first_ends(self, stream: Stream, start: int, end: int, enough: int) -> list[int]:
        """Like `message_ends`, but may stop as soon as it has `enough` offsets."""
        found: list[int] = []
        window_bytes = WINDOW_BYTES
        while start < end and len(found) < enough:
            until = min(end, start + window_bytes)
            found += await self.message_ends(stream, start, until)
            start = until
            window_bytes *= 2
        return found

    async def last_start(self, stream: Stream, count: int) -> int:
        """The offset where the last `count` messages start; the earliest one if there are fewer."""
        # Messages start where the one before ends. The tail is an end, too, so one more is needed.
        missing = count + 1
        at, window_bytes = stream.tail, WINDOW_BYTES
        while at > stream.earliest:
            start = max(stream.earliest, at - window_bytes)
            try:
                ends = await self.message_ends(stream, start, at)
            except HoldfastError:
                if start < stream.earliest:
                    # A snapshot was published meanwhile: there is less to look at.
                    continue
                raise
            if len(ends) >= missing:
                return ends[-missing]
            missing -= len(ends)
            window_bytes *= 2
            at = start
        return stream.earliest

    async def is_boundary(self, stream: Stream, offset: int) -> bool:
        """Whether a message ends at this offset, or the stream starts there."""
        if offset in {0, stream.tail, stream.earliest}:
            return True
        try:
            ends = await self.message_ends(stream, offset - 1, offset)
        except HoldfastError:
            if offset != stream.earliest:
                raise
            # A snapshot was published there meanwhile.
            return True
        return offset in ends or offset == stream.earliest

    async def _stretches(self, stream: Stream, offset: int) -> list[Stretch]:
        if stream.meta.fork is None or offset >= stream.meta.fork.offset:
            return [Stretch(stream, stream.tail)]
        catalog = self.state.catalog
        if catalog is None:
            return self.find_stretches(stream, offset)
        return await catalog.look_up(partial(self.find_stretches, stream, offset))

    def find_stretches(self, stream: Stream, offset: int) -> list[Stretch]:
        """The stretches from an offset on, the first one last; loads their owners."""
        owner, end = stream, stream.tail
        stretches = [Stretch(owner, end)]
        while (fork := owner.meta.fork) is not None and offset < fork.offset:
            source = self.state.find_number(fork.source)
            if source is None:
                # A source outlives its forks, so this fork is gone itself.
                raise not_found(stream.meta.name)
            if fork.offset >= end:
                # The fork has no bytes of its own here.
                stretches.pop()
            owner, end = source, min(end, fork.offset)
            stretches.append(Stretch(owner, end))
        return stretches


def _stretch_at(stream: Stream, stretches: list[Stretch], at: int) -> Stretch:
    """The stretch with the bytes from `at` on; those before it are dropped."""
    while len(stretches) > 1 and stretches[-1].end <= at:
        stretches.pop()
    owner, end = stretches[-1]
    # The stream itself may have grown.
    return Stretch(owner, stream.tail if owner is stream else end)


def _cold_requests(
    stream: Stream, stretches: list[Stretch], wanted: ColdRequest
) -> list[ColdRequest]:
    """The reads of the first stretch, and of those behind it that are needed whole."""
    requests: list[ColdRequest] = []
    at, left = wanted.start, wanted.bytes_max
    for owner, stretch_end in reversed(stretches):
        end = stream.tail if owner is stream else stretch_end
        limit = min(end, owner.base)
        if requests and (at >= limit or limit - at > left):
            break
        requests.append(
            wanted._replace(
                stream=owner.number,
                media=owner.media,
                start=at,
                limit=limit,
                bytes_max=left,
                at_least_one=wanted.at_least_one and not requests,
            )
        )
        left -= limit - at
        at = limit
        if limit < end or left <= 0:
            break
    return requests
