"""Verified parts of packs for the event loop: cached, and fetched once however many want them."""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import HoldfastError, PackCorruptError
from holdfast.format.packs import BLOCK_BYTES, checksum
from holdfast.storage.counters import ColdCounters

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.storage.catalog import Located
    from holdfast.storage.objects import RangeReader

    # A block's bytes, or the offsets at which an extent's messages end.
    Part = memoryview | array[int]
    Waiter = Callable[[Part | HoldfastError], None]

_log = logging.getLogger(__name__)
# Neighbouring blocks are fetched together, up to this many bytes a request.
_REQUEST_BYTES_MAX: Final = 1024 * 1024
_REQUEST_BLOCKS_MAX: Final = _REQUEST_BYTES_MAX // BLOCK_BYTES


class Key(NamedTuple):
    """A part of a pack: the byte it starts at, and which kind it is."""

    pack: str
    at: int
    is_index: bool = False


class BlockCache:
    """The parts used last, up to a number of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: OrderedDict[Key, Part] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    def get(self, key: Key) -> Part | None:
        """The part if it is kept; it counts as used."""
        part = self._parts.get(key)
        if part is not None:
            self._parts.move_to_end(key)
        return part

    def put(self, key: Key, part: Part) -> None:
        """Keep a part, and let go of the ones not used for longest."""
        if key in self._parts:
            return
        self._parts[key] = part
        self.size_bytes += _size(part)
        while self.size_bytes > self._bytes_max:
            _, old = self._parts.popitem(last=False)
            self.size_bytes -= _size(old)


def _size(part: Part) -> int:
    return len(part) * part.itemsize


class Blocks:
    """Gets parts of packs; `done` is called at once for what is in the cache."""

    def __init__(self, ranges: RangeReader, cache_bytes: int) -> None:
        self._ranges = ranges
        self.cache = BlockCache(cache_bytes)
        self.counters = ColdCounters()
        self._waiting: dict[Key, list[Waiter]] = {}

    def ends(self, extent: Located, done: Waiter) -> None:
        """The offsets at which the extent's messages end."""
        key = Key(extent.pack, extent.lengths_at, is_index=True)
        if self._is_there(key, done):
            return

        def fetched(data: bytes | HoldfastError) -> None:
            if isinstance(data, HoldfastError):
                self._answer(key, data)
            elif checksum(data, extent.salt).to_bytes(8, "little") != extent.index_sum:
                self._answer(key, _corrupt(extent, "its message index"))
            else:
                ends = accumulate(array("I", data), initial=extent.start)
                next(ends)
                self._answer(key, array("Q", ends))

        self._fetch(extent.pack, extent.lengths_at, 4 * extent.messages, fetched)

    def blocks(
        self,
        extent: Located,
        first: int,
        last: int,
        done: Callable[[int, Part | HoldfastError], None],
    ) -> None:
        """Blocks from `first` to `last`: `done(number, block)` is called for each."""
        missing = [
            number
            for number in range(first, last + 1)
            if not self._is_there(_block_key(extent, number), partial(done, number))
        ]
        self._fetch_runs(extent, missing)

    def prefetch(self, extent: Located, first: int, last: int) -> None:
        """Have blocks in the cache before somebody asks for them."""
        missing = []
        for number in range(first, last + 1):
            key = _block_key(extent, number)
            if key not in self._waiting and self.cache.get(key) is None:
                self._waiting[key] = []
                missing.append(number)
        self._fetch_runs(extent, missing)

    def _fetch_runs(self, extent: Located, numbers: list[int]) -> None:
        run: list[int] = []
        for number in numbers:
            if run and (number != run[-1] + 1 or len(run) == _REQUEST_BLOCKS_MAX):
                self._fetch_blocks(extent, run)
                run = []
            run.append(number)
        if run:
            self._fetch_blocks(extent, run)

    def _is_there(self, key: Key, done: Waiter) -> bool:
        """Answer from the cache or join those who wait; otherwise the caller has to fetch it."""
        part = self.cache.get(key)
        if part is not None:
            self.counters.cache_hits += 1
            done(part)
            return True
        waiting = self._waiting.get(key)
        if waiting is not None:
            self.counters.joined += 1
            waiting.append(done)
            return True
        self.counters.cache_misses += 1
        self._waiting[key] = [done]
        return False

    def _fetch_blocks(self, extent: Located, numbers: list[int]) -> None:
        at = numbers[0] * BLOCK_BYTES
        size = min(extent.length, (numbers[-1] + 1) * BLOCK_BYTES) - at

        def fetched(data: bytes | HoldfastError) -> None:
            for number in numbers:
                key = _block_key(extent, number)
                if isinstance(data, HoldfastError):
                    self._answer(key, data)
                    continue
                # A view: blocks that came together are used together, and copied only once.
                inside = number * BLOCK_BYTES - at
                block = memoryview(data)[inside : inside + BLOCK_BYTES]
                expected = extent.sums[8 * number : 8 * number + 8]
                if checksum(block, extent.salt).to_bytes(8, "little") != expected:
                    self._answer(key, _corrupt(extent, f"a block {number * BLOCK_BYTES} bytes in"))
                else:
                    self._answer(key, block)

        self._fetch(extent.pack, extent.data_at + at, size, fetched)

    def _fetch(
        self, pack: str, at: int, size: int, fetched: Callable[[bytes | HoldfastError], None]
    ) -> None:
        self.counters.fetches += 1

        def done(data: bytes | HoldfastError) -> None:
            if isinstance(data, HoldfastError):
                self.counters.fetch_failures += 1
                _log.error("reading %s failed: %s", pack, data.message)
            else:
                self.counters.fetched_bytes += len(data)
            fetched(data)

        self._ranges.read(pack, at, size, done)

    def _answer(self, key: Key, part: Part | HoldfastError) -> None:
        waiting = self._waiting.pop(key)
        if isinstance(part, HoldfastError):
            if isinstance(part, PackCorruptError):
                _log.error("%s", part.message)
        else:
            self.cache.put(key, part)
        for done in waiting:
            done(part)


def _block_key(extent: Located, number: int) -> Key:
    return Key(extent.pack, extent.data_at + number * BLOCK_BYTES)


def _corrupt(extent: Located, what: str) -> PackCorruptError:
    return PackCorruptError(
        f"The pack {extent.pack} is damaged: {what} of the extent at byte {extent.data_at} does "
        "not match its checksum. Run 'holdfast check' and restore the pack from a backup."
    )
