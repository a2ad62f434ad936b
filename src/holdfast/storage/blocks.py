"""Verified blocks and message indexes of packs: cached, and fetched once for all readers."""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.errors import HoldfastError, PackCorruptError, StoreError
from holdfast.format.packs import BLOCK_BYTES, checksum
from holdfast.storage.pending import Pending, ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.objects.store import RangeReader
    from holdfast.storage.catalog import Located

    # The bytes of a block, or the offsets where the messages of an extent end.
    Part = memoryview | array[int]
    Fetched = Callable[[bytes | HoldfastError], None]

_log = logging.getLogger(__name__)
# Neighbouring blocks are fetched together, up to this many bytes per request.
_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
_REQUEST_BLOCKS_MAX: Final = _REQUEST_BYTES_MAX // BLOCK_BYTES
# Concurrent requests to the store; others wait in a queue.
REQUESTS_MAX: Final = 64
# Memory that a cached part takes besides its bytes, as measured.
ENTRY_COST_BYTES: Final = 768
SMALL_INDEX_BYTES_MAX: Final = 16 * 1024
# Small indexes may take one such share of the cache.
_INDEX_SHARE: Final = 8


@dataclass(slots=True)
class ColdCounters:
    """Totals of cold reads since the start."""

    reads: int = 0
    read_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    # Parts for which a reader waited for a fetch that another one had started.
    joined: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    fetch_failures: int = 0


class BlockKey(NamedTuple):
    """A part of a pack: the byte where it starts, and whether it is a message index."""

    pack: str
    at: int
    is_index: bool = False


class BlockCache:
    """The most recently used parts, up to a number of bytes.

    Blocks that were fetched together share one buffer, so they are dropped together: the size is
    that of the memory in use. Small indexes take a fetch like a block does, and hardly any memory:
    blocks do not displace them while they take less than their share.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._parts: OrderedDict[BlockKey, tuple[Part, tuple[BlockKey, ...]]] = OrderedDict()
        self._indexes: OrderedDict[BlockKey, Part] = OrderedDict()
        self.size_bytes = self._indexes_bytes = 0

    def __len__(self) -> int:
        return len(self._parts) + len(self._indexes)

    def get(self, key: BlockKey) -> Part | None:
        """The part, if it is cached; marks it as used."""
        entry = self._parts.get(key)
        if entry is not None:
            self._parts.move_to_end(key)
            return entry[0]
        index = self._indexes.get(key)
        if index is not None:
            self._indexes.move_to_end(key)
        return index

    def put(self, parts: dict[BlockKey, Part]) -> None:
        """Cache parts that were fetched together, and drop the least recently used ones."""
        together = tuple(parts)
        for key, part in parts.items():
            self._drop(key)
            size_bytes = _size(part)
            if key.is_index and size_bytes <= SMALL_INDEX_BYTES_MAX:
                self._indexes[key] = part
                self._indexes_bytes += size_bytes
            else:
                self._parts[key] = part, together
            self.size_bytes += size_bytes
        while self.size_bytes > self.bytes_max:
            if not self._parts or self._indexes_bytes * _INDEX_SHARE > self.bytes_max:
                self._drop(next(iter(self._indexes)))
                continue
            _, oldest = next(iter(self._parts.values()))
            for key in oldest:
                self._drop(key)

    def _drop(self, key: BlockKey) -> None:
        entry = self._parts.pop(key, None)
        index = self._indexes.pop(key, None)
        if entry is not None:
            self.size_bytes -= _size(entry[0])
        if index is not None:
            self.size_bytes -= _size(index)
            self._indexes_bytes -= _size(index)


def _size(part: Part) -> int:
    return len(part) * part.itemsize + ENTRY_COST_BYTES


class Blocks:
    """Gets parts of packs from the cache or the store."""

    def __init__(self, ranges: RangeReader, cache_bytes: int) -> None:
        self._ranges = ranges
        self.cache = BlockCache(cache_bytes)
        self.counters = ColdCounters()
        self._fetching: dict[BlockKey, Pending[Any]] = {}
        self._requests = 0
        self._queued: deque[tuple[str, int, int, Fetched]] = deque()

    def ends(self, extent: Located) -> Pending[array[int]]:
        """The offsets where the extent's messages end."""
        key = BlockKey(extent.pack, extent.lengths_at, is_index=True)
        part, is_missing = self._find(key)
        if is_missing:
            fetched = partial(self._index_fetched, extent, key)
            self.read_raw(extent.pack, extent.lengths_at, 4 * extent.messages, fetched)
        return part

    def blocks(self, extent: Located, first: int, last: int) -> list[Pending[memoryview]]:
        """The blocks from number `first` to `last`; missing ones are being fetched."""
        parts, missing = [], []
        for number in range(first, last + 1):
            part, is_missing = self._find(_block_key(extent, number))
            parts.append(part)
            if is_missing:
                missing.append(number)
        self._fetch(extent, missing)
        return parts

    def prefetch(self, extent: Located, first: int, last: int) -> None:
        """Fetch blocks into the cache before they are read."""
        missing = []
        for number in range(first, last + 1):
            key = _block_key(extent, number)
            if key not in self._fetching and self.cache.get(key) is None:
                self._fetching[key] = Pending()
                missing.append(number)
        self._fetch(extent, missing)

    def _find(self, key: BlockKey) -> tuple[Pending[Any], bool]:
        """The part, from the cache or a fetch under way; and whether the caller must fetch it."""
        part = self.cache.get(key)
        if part is not None:
            self.counters.cache_hits += 1
            return ready(part), False
        pending = self._fetching.get(key)
        if pending is not None:
            self.counters.joined += 1
            return pending, False
        self.counters.cache_misses += 1
        pending = self._fetching[key] = Pending()
        return pending, True

    def _fetch(self, extent: Located, numbers: list[int]) -> None:
        """Request blocks, neighbours together."""
        run: list[int] = []
        for number in [*numbers, -1]:
            if run and (number != run[-1] + 1 or len(run) == _REQUEST_BLOCKS_MAX):
                at = run[0] * BLOCK_BYTES
                size = min(extent.length, (run[-1] + 1) * BLOCK_BYTES) - at
                fetched = partial(self._blocks_fetched, extent, run)
                self.read_raw(extent.pack, extent.data_at + at, size, fetched)
                run = []
            run.append(number)

    def read_raw(self, pack: str, at: int, size: int, fetched: Fetched) -> None:
        """Read bytes of a pack, neither verified nor cached, in turn with other requests."""
        if self._requests >= REQUESTS_MAX:
            self._queued.append((pack, at, size, fetched))
            return
        self.counters.fetches += 1
        self._requests += 1
        done = partial(self._request_done, pack, fetched)
        try:
            self._ranges.read(pack, at, size, done)
        except Exception as error:  # noqa: BLE001 (the waiting readers must be told)
            done(StoreError(f"Reading {pack} failed: {error!r}."))

    def _request_done(self, pack: str, fetched: Fetched, data: bytes | HoldfastError) -> None:
        self._requests -= 1
        if isinstance(data, HoldfastError):
            self.counters.fetch_failures += 1
            _log.error("reading %s failed: %s", pack, data.message)
        else:
            self.counters.fetched_bytes += len(data)
        fetched(data)
        if self._queued and self._requests < REQUESTS_MAX:
            self.read_raw(*self._queued.popleft())

    def _index_fetched(self, extent: Located, key: BlockKey, data: bytes | HoldfastError) -> None:
        if isinstance(data, HoldfastError):
            self._deliver({key: data})
        elif checksum(data, extent.salt).to_bytes(8, "little") != extent.index_sum:
            self._deliver({key: _corrupt(extent, "its message index")})
        else:
            ends = accumulate(array("I", data), initial=extent.start)
            next(ends)
            self._deliver({key: array("Q", ends)})

    def _blocks_fetched(
        self, extent: Located, numbers: list[int], data: bytes | HoldfastError
    ) -> None:
        results: dict[BlockKey, Part | HoldfastError] = {}
        for number in numbers:
            key = _block_key(extent, number)
            if isinstance(data, HoldfastError):
                results[key] = data
                continue
            # A view: blocks that were fetched together are used together, and copied only once.
            inside = (number - numbers[0]) * BLOCK_BYTES
            block = memoryview(data)[inside : inside + BLOCK_BYTES]
            expected = extent.sums[8 * number : 8 * number + 8]
            if checksum(block, extent.salt).to_bytes(8, "little") == expected:
                results[key] = block
            else:
                results[key] = _corrupt(extent, f"a block {number * BLOCK_BYTES} bytes in")
        self._deliver(results)

    def _deliver(self, results: dict[BlockKey, Part | HoldfastError]) -> None:
        """Cache the valid parts, then resume the readers that wait for them."""
        valid = {key: part for key, part in results.items() if not isinstance(part, HoldfastError)}
        if valid:
            self.cache.put(valid)
        for key, part in results.items():
            if isinstance(part, PackCorruptError):
                _log.error("%s", part.message)
            self._fetching.pop(key).set(part)


def _block_key(extent: Located, number: int) -> BlockKey:
    return BlockKey(extent.pack, extent.data_at + number * BLOCK_BYTES)


def _corrupt(extent: Located, what: str) -> PackCorruptError:
    return PackCorruptError(
        f"The pack {extent.pack} is damaged: {what} of the extent at byte {extent.data_at} does "
        "not match its checksum. Run 'holdfast check' and restore the pack from a backup."
    )
