"""Verified parts of packs for the event loop: cached, and fetched once however many want them."""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict, deque
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import HoldfastError, PackCorruptError, StoreError
from holdfast.format.packs import BLOCK_BYTES, checksum
from holdfast.storage.counters import ColdCounters

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.objects.store import RangeReader
    from holdfast.storage.catalog import Located

    # A block's bytes, or the offsets at which an extent's messages end.
    Part = memoryview | array[int]
    Waiter = Callable[[Part | HoldfastError], None]

_log = logging.getLogger(__name__)
# Neighbouring blocks are fetched together, up to this many bytes a request.
_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
_REQUEST_BLOCKS_MAX: Final = _REQUEST_BYTES_MAX // BLOCK_BYTES
# Requests to the store at one time; others wait for their turn.
REQUESTS_MAX: Final = 64
# What a part takes up in the cache besides its bytes, as measured.
ENTRY_COST_BYTES: Final = 768


class Key(NamedTuple):
    """A part of a pack: the byte it starts at, and which kind it is."""

    pack: str
    at: int
    is_index: bool = False


class BlockCache:
    """The parts used last, up to a number of bytes.

    Blocks that were fetched together share one buffer, so they also go together: what is counted is
    what is really kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._parts: OrderedDict[Key, tuple[Part, tuple[Key, ...]]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    def get(self, key: Key) -> Part | None:
        """The part if it is kept; it counts as used."""
        found = self._parts.get(key)
        if found is None:
            return None
        self._parts.move_to_end(key)
        return found[0]

    def put(self, parts: dict[Key, Part]) -> None:
        """Keep parts that came together, and let go of the ones not used for longest."""
        together = tuple(parts)
        for key, part in parts.items():
            self._drop(key)
            self._parts[key] = part, together
            self.size_bytes += _size(part)
        while self.size_bytes > self.bytes_max:
            _, oldest = next(iter(self._parts.values()))
            for key in oldest:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        found = self._parts.pop(key, None)
        if found is not None:
            self.size_bytes -= _size(found[0])


def _size(part: Part) -> int:
    return len(part) * part.itemsize + ENTRY_COST_BYTES


class Blocks:
    """Gets parts of packs; `done` is called at once for what is in the cache."""

    def __init__(self, ranges: RangeReader, cache_bytes: int) -> None:
        self._ranges = ranges
        self.cache = BlockCache(cache_bytes)
        self.counters = ColdCounters()
        self._waiting: dict[Key, list[Waiter]] = {}
        self._under_way = 0
        self._queued: deque[tuple[str, int, int, Callable[[bytes | HoldfastError], None]]] = deque()

    def ends(self, extent: Located, done: Waiter) -> None:
        """The offsets at which the extent's messages end."""
        key = Key(extent.pack, extent.lengths_at, is_index=True)
        if self._is_there(key, done):
            return

        def fetched(data: bytes | HoldfastError) -> None:
            if isinstance(data, HoldfastError):
                self._answer({key: data})
            elif checksum(data, extent.salt).to_bytes(8, "little") != extent.index_sum:
                self._answer({key: _corrupt(extent, "its message index")})
            else:
                ends = accumulate(array("I", data), initial=extent.start)
                next(ends)
                self._answer({key: array("Q", ends)})

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

    def read_raw(
        self, pack: str, at: int, size: int, done: Callable[[bytes | HoldfastError], None]
    ) -> None:
        """Bytes of a pack as they are, neither verified nor kept, in turn with the others."""
        self._fetch(pack, at, size, done)

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
            answers: dict[Key, Part | HoldfastError] = {}
            for number in numbers:
                key = _block_key(extent, number)
                if isinstance(data, HoldfastError):
                    answers[key] = data
                    continue
                # A view: blocks that came together are used together, and copied only once.
                inside = number * BLOCK_BYTES - at
                block = memoryview(data)[inside : inside + BLOCK_BYTES]
                expected = extent.sums[8 * number : 8 * number + 8]
                if checksum(block, extent.salt).to_bytes(8, "little") == expected:
                    answers[key] = block
                else:
                    answers[key] = _corrupt(extent, f"a block {number * BLOCK_BYTES} bytes in")
            self._answer(answers)

        self._fetch(extent.pack, extent.data_at + at, size, fetched)

    def _fetch(
        self, pack: str, at: int, size: int, fetched: Callable[[bytes | HoldfastError], None]
    ) -> None:
        if self._under_way < REQUESTS_MAX:
            self._request(pack, at, size, fetched)
        else:
            self._queued.append((pack, at, size, fetched))

    def _request(
        self, pack: str, at: int, size: int, fetched: Callable[[bytes | HoldfastError], None]
    ) -> None:
        self.counters.fetches += 1
        self._under_way += 1

        def done(data: bytes | HoldfastError) -> None:
            self._under_way -= 1
            if isinstance(data, HoldfastError):
                self.counters.fetch_failures += 1
                _log.error("reading %s failed: %s", pack, data.message)
            else:
                self.counters.fetched_bytes += len(data)
            fetched(data)
            if self._queued and self._under_way < REQUESTS_MAX:
                self._request(*self._queued.popleft())

        try:
            self._ranges.read(pack, at, size, done)
        except Exception as error:  # noqa: BLE001 (those who wait must be told)
            done(StoreError(f"Reading {pack} failed: {error!r}."))

    def _answer(self, answers: dict[Key, Part | HoldfastError]) -> None:
        """Keep what is sound, then tell everyone who waits."""
        sound = {key: part for key, part in answers.items() if not isinstance(part, HoldfastError)}
        if sound:
            self.cache.put(sound)
        for key, part in answers.items():
            if isinstance(part, PackCorruptError):
                _log.error("%s", part.message)
            for done in self._waiting.pop(key):
                try:
                    done(part)
                except Exception:  # noqa: BLE001 (a defect in one reader must not stop the others)
                    _log.exception("a cold read could not go on")


def _block_key(extent: Located, number: int) -> Key:
    return Key(extent.pack, extent.data_at + number * BLOCK_BYTES)


def _corrupt(extent: Located, what: str) -> PackCorruptError:
    return PackCorruptError(
        f"The pack {extent.pack} is damaged: {what} of the extent at byte {extent.data_at} does "
        "not match its checksum. Run 'holdfast check' and restore the pack from a backup."
    )
