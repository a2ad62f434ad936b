"""Reading packs, on executors: several extents at once, verified, as one chunk.

Executors read packs from the object store if they can reach it and it is the server's own, which
its marker shows; otherwise through the server. The server's ranges say where everything is, so only
the bytes of extents and their part of the message index are read. Parts near one another are read
together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from math import inf
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from holdfast.client import Client, ScanRange
from holdfast.clock import Clock, SystemClock
from holdfast.errors import (
    HoldfastError,
    NotFoundError,
    ObjectMissingError,
    PackCorruptError,
    StoreError,
)
from holdfast.format.packs import BLOCK_BYTES, HEADER_BYTES, checksum, padded
from holdfast.objects.bucket_objects import PROBING, ObstoreObjects
from holdfast.objects.locations import StoreLocation, open_store
from holdfast.objects.store import ObjectStore, cut_short, read_marker
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.arrow import (
    BATCH_BYTES,
    ROW_BYTES,
    Chunk,
    Numbers,
    StreamName,
    binary_array,
)
from holdfast.spark.reading.source import ReadSource

# Up to this gap, reading too much is cheaper than another read.
GAP_BYTES: Final = 128 * 1024
# Below this size one read with a copy costs less than two reads without.
_UNCOPIED_BYTES_MIN: Final = 256 * 1024
# Bounds a chunk whose extents are tiny.
_CHUNK_RANGES_MAX: Final = 20_000
# How much of a pack the server is asked for at a time.
_PART_BYTES: Final = 8 * 1024 * 1024
# For so long a store that could not be used is not tried again: each attempt takes seconds.
_UNREACHABLE_S: Final = 60.0
_log: Final = logging.getLogger(__name__)
_warned: set[str] = set()
# Shared by all tasks of the process: a store, or why it cannot be used, and until when.
_stores: dict[tuple[StoreLocation, str], tuple[ObjectStore | str, float]] = {}


class PackBytes(Protocol):
    """Where the bytes of packs come from: an `ObjectStore`, or `ServerPacks`."""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """The bytes of each (start, size)."""


def open_packs(source: ReadSource, server: SparkClient) -> PackBytes:
    if source.via == "server":
        return ServerPacks(server, "")
    store = reachable_store(source.place, source.store_id, insist=source.via == "store")
    if not isinstance(store, str):
        return store
    if source.via == "store":
        raise StoreError(store)
    _warn_of_detour(store)
    return ServerPacks(server, store)


def check_store(source: ReadSource) -> None:
    """Warn on the driver, which is seen, if executors will probably not reach the store."""
    if source.via == "auto":
        store = reachable_store(source.place, source.store_id)
        if isinstance(store, str):
            _warn_of_detour(store)


def _warn_of_detour(reason: str) -> None:
    """Say, once in a process, that packs are read through the server, and why."""
    if reason not in _warned:
        _warned.add(reason)
        _log.warning(
            "%s So packs are read through the server, which is slower: give the options 'store' "
            "and 'store…' as executors reach it, or set 'via' to 'server' if this is meant.",
            reason,
        )


def reachable_store(
    place: StoreLocation, store_id: str, *, insist: bool = False, clock: Clock | None = None
) -> ObjectStore | str:
    """The store, or a sentence that says why it cannot be used.

    With `insist` it is tried even if it could not be used a moment ago.
    """
    key = place, store_id
    now_s = (clock or SystemClock()).monotonic_s()
    store, valid_until_s = _stores.get(key, ("", 0.0))
    if now_s >= valid_until_s or (insist and isinstance(store, str)):
        store = _open_store(place, store_id)
        valid_for_s = _UNREACHABLE_S if isinstance(store, str) else inf
        _stores[key] = store, now_s + valid_for_s
    return store


def _open_store(place: StoreLocation, store_id: str) -> ObjectStore | str:
    try:
        store = open_store(place)
        probed = store.with_timeouts(PROBING) if isinstance(store, ObstoreObjects) else store
        owner = read_marker(probed)
    except ObjectMissingError:
        return f"The object store {place.url} does not exist, or is not one of Holdfast's."
    except HoldfastError as error:
        return error.message
    if owner != store_id:
        return f"The object store {place.url} is not the server's own."
    return store


class ServerPacks:
    """Packs read through the server. `reason` says why the store itself is not used."""

    def __init__(self, server: SparkClient, reason: str) -> None:
        self._server = server
        self._reason = reason

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        try:
            return self._server.run(lambda client: _read_parts(client, name, ranges))
        except NotFoundError as error:
            # Merged into another pack: the caller asks the server for the ranges again.
            raise ObjectMissingError(error.message) from None
        except HoldfastError as error:
            if self._reason:
                error.message = (
                    f"{self._reason} The server was asked for the packs instead: {error.message}"
                )
            raise


async def _read_parts(
    client: Client, name: str, ranges: Sequence[tuple[int, int]]
) -> list[memoryview]:
    parts = [
        [(at + done, min(_PART_BYTES, size - done)) for done in range(0, size, _PART_BYTES)]
        for at, size in ranges
    ]
    found = await asyncio.gather(
        *(client.storage.pack_data(name, at, size) for each in parts for at, size in each)
    )
    if any(len(data) != size for data, (_, size) in zip(found, chain(*parts), strict=True)):
        raise cut_short(client.url, name)
    rest = iter(found)
    return [memoryview(b"".join(next(rest) for _ in each)) for each in parts]


class PositionRange(NamedTuple):
    """Log positions in (after, until]."""

    after: int
    until: int


class WantedRange(NamedTuple):
    """A range of a pack, and the offsets of its stream that are read."""

    range: ScanRange
    start: int
    end: int


def group_ranges(
    ranges: Iterable[WantedRange], *, with_data: bool = True
) -> Iterator[list[WantedRange]]:
    """Group ranges, in their order, into chunks of about a batch."""
    held: list[WantedRange] = []
    size = 0
    for each in ranges:
        more = ROW_BYTES * each.range.messages + (each.range.length if with_data else 0)
        if held and (size + more > BATCH_BYTES * 2 or len(held) >= _CHUNK_RANGES_MAX):
            yield held
            held, size = [], 0
        held.append(each)
        size += more
    if held:
        yield held


def read_extents(
    packs: PackBytes,
    ranges: Sequence[WantedRange],
    positions: PositionRange,
    *,
    with_data: bool = True,
) -> tuple[Chunk, list[int]]:
    """Read the messages of these ranges at the given positions.

    Also returns the indexes of ranges with messages at these positions that are trimmed by now.
    Without the data only the index of the messages is read and verified.
    """
    buffers = _Buffers(ranges, with_data=with_data)

    def pack_of(at: int) -> str:
        return ranges[at].range.pack

    for pack, indexes in groupby(sorted(range(len(ranges)), key=pack_of), key=pack_of):
        _read_pack(packs, pack, [(at, ranges[at].range) for at in indexes], buffers)
    return _extent_messages(ranges, buffers).chunk(positions)


class _Buffers:
    """Room for everything that the ranges hold."""

    def __init__(self, ranges: Sequence[WantedRange], *, with_data: bool) -> None:
        self.with_data = with_data
        sizes = np.fromiter((each.range.length for each in ranges), np.int64, len(ranges))
        self.counts = np.fromiter((each.range.messages for each in ranges), np.int64, len(ranges))
        self.byte_ends = np.cumsum(sizes)
        self.row_ends = np.cumsum(self.counts)
        rows = int(self.row_ends[-1])
        # Bytes that lie in the pack as they are wanted stay in the buffer they were read into.
        self.is_uncopied = (
            with_data and _is_contiguous(ranges) and self.byte_ends[-1] >= _UNCOPIED_BYTES_MIN
        )
        size = int(self.byte_ends[-1]) if with_data and not self.is_uncopied else 0
        self.data: npt.NDArray[np.uint8] = np.empty(size, dtype=np.uint8)
        self.lengths = np.empty(rows, dtype=np.uint32)
        self.timestamps = np.empty(rows, dtype=np.int64)
        self.positions = np.empty(rows, dtype=np.int64)

    def bytes_of(self, at: int) -> npt.NDArray[np.uint8]:
        return self.data[_bounds(self.byte_ends, at)]

    def rows_of(self, array: npt.NDArray[Any], at: int) -> npt.NDArray[Any]:
        return array[_bounds(self.row_ends, at)]


def _bounds(ends: Numbers, at: int) -> slice:
    return slice(int(ends[at - 1]) if at else 0, int(ends[at]))


def _is_contiguous(ranges: Sequence[WantedRange]) -> bool:
    return all(
        one.range.pack == other.range.pack
        and one.range.data_at + one.range.length == other.range.data_at
        for one, other in pairwise(ranges)
    )


def _read_pack(
    packs: PackBytes, pack: str, ranges: list[tuple[int, ScanRange]], buffers: _Buffers
) -> None:
    """Fill the buffers of the ranges in one pack, and verify them."""
    first = ranges[0][1]
    lengths_at = padded(HEADER_BYTES + first.pack_data_bytes)
    timestamps_at = padded(lengths_at + 4 * first.pack_messages)
    positions_at = timestamps_at + 8 * first.pack_messages
    spans = []
    for at, each in ranges:
        targets = [
            (lengths_at + 4 * each.message_at, buffers.rows_of(buffers.lengths, at)),
            (timestamps_at + 8 * each.message_at, buffers.rows_of(buffers.timestamps, at)),
            (positions_at + 8 * each.message_at, buffers.rows_of(buffers.positions, at)),
        ]
        if buffers.with_data and not buffers.is_uncopied:
            targets.append((each.data_at, buffers.bytes_of(at)))
        spans += [_Span(start, target.view(np.uint8)) for start, target in targets]
    if buffers.is_uncopied:
        whole = first.data_at, int(buffers.byte_ends[-1])
        buffers.data = _fill(packs, pack, spans, [whole])[0]
    else:
        _fill(packs, pack, spans, [])
    salt = int(first.salt, 16)
    for at, each in ranges:
        data = buffers.bytes_of(at) if buffers.with_data else None
        _verify(salt, each, data, buffers.rows_of(buffers.lengths, at))


class _Span(NamedTuple):
    """Bytes of a pack, and the buffer they go to."""

    at: int
    target: npt.NDArray[np.uint8]

    @property
    def end(self) -> int:
        return self.at + len(self.target)


def _fill(
    packs: PackBytes, pack: str, spans: list[_Span], uncopied: list[tuple[int, int]]
) -> list[npt.NDArray[np.uint8]]:
    """Read spans into their buffers, near ones together; return what was read uncopied."""
    runs: list[list[_Span]] = []
    end = 0
    for span in sorted(spans, key=lambda span: span.at):
        if runs and span.at - end <= GAP_BYTES:
            runs[-1].append(span)
            end = max(end, span.end)
        else:
            runs.append([span])
            end = span.end
    wanted = [(run[0].at, max(span.end for span in run) - run[0].at) for run in runs]
    parts = packs.read_ranges(pack, [*uncopied, *wanted])
    found = [np.frombuffer(part, dtype=np.uint8) for part in parts]
    for run, data in zip(runs, found[len(uncopied) :], strict=True):
        for span in run:
            inside = span.at - run[0].at
            span.target[:] = data[inside : inside + len(span.target)]
    return found[: len(uncopied)]


def _verify(
    salt: int, each: ScanRange, data: npt.NDArray[np.uint8] | None, lengths: npt.NDArray[Any]
) -> None:
    sums = each.sums
    if data is not None:
        view = data.data
        blocks = (view[at : at + BLOCK_BYTES] for at in range(0, each.length, BLOCK_BYTES))
        sums = "".join(_hex_sum(block, salt) for block in blocks)
    if sums != each.sums or _hex_sum(lengths.view(np.uint8).data, salt) != each.index_sum:
        raise PackCorruptError(
            f"The pack {each.pack} is damaged: the extent of stream {each.stream_id!r} at offset "
            f"{each.offset} does not match its checksum."
        )


def _hex_sum(data: memoryview, salt: int) -> str:
    return checksum(data, salt).to_bytes(8, "little").hex()


class ExtentMessages(NamedTuple):
    """Extents back to back, and the messages in them.

    There is an entry for each extent, up to `counts`, and then one for each message.
    """

    streams: Sequence[StreamName]
    # For each extent the index of its stream in `streams`, its bytes and its offset in the stream.
    stream_indexes: npt.NDArray[np.int32]
    sizes: Numbers
    offsets: Numbers
    # The offsets that are read, and the one before which messages are missed if they are wanted.
    starts: Numbers
    ends: Numbers
    earliest: Numbers
    # Messages in each extent.
    counts: Numbers
    lengths: npt.NDArray[Any]
    timestamps: Numbers
    positions: Numbers
    # The bytes, if they are read.
    data: npt.NDArray[np.uint8] | None

    def chunk(self, wanted: PositionRange) -> tuple[Chunk, list[int]]:
        """The wanted messages, and the indexes of extents with wanted messages that are trimmed."""
        whole = self._all()
        assert isinstance(whole.offsets, np.ndarray)
        extents = np.repeat(np.arange(len(self.counts)), self.counts)
        inside = (self.positions > wanted.after) & (self.positions <= wanted.until)
        trimmed = np.unique(extents[inside & (whole.offsets < self.earliest[extents])])
        keep = inside & (whole.offsets >= self.starts[extents])
        keep &= whole.offsets < self.ends[extents]
        return whole if keep.all() else whole.filter(keep), trimmed.tolist()

    def _all(self) -> Chunk:
        lengths, counts = self.lengths.astype(np.int64), self.counts
        ends = np.cumsum(lengths)
        stream_indexes = np.repeat(self.stream_indexes, counts)
        # Offsets are not stored: they follow from the extent's offset and the lengths.
        first_bytes = np.cumsum(self.sizes) - self.sizes
        next_offsets = ends + np.repeat(self.offsets - first_bytes, counts)
        return Chunk(
            self.streams,
            stream_indexes,
            next_offsets - lengths,
            next_offsets,
            self.timestamps,
            None if self.data is None else self._payloads(self.data, ends, stream_indexes),
            self.positions,
        )

    def _payloads(
        self, data: npt.NDArray[np.uint8], ends: Numbers, stream_indexes: npt.NDArray[np.int32]
    ) -> Any:
        types = {each.content_type: each for each in self.streams}
        json_types = {name for name, each in types.items() if each.is_json}
        if not json_types:
            return binary_array(data, ends)
        if len(json_types) == len(types):
            return pc.binary_slice(binary_array(data, ends), 0, -1)
        is_json = np.fromiter(
            (each.content_type in json_types for each in self.streams), bool, len(self.streams)
        )
        return _without_separators(data, ends, is_json[stream_indexes])


def _extent_messages(ranges: Sequence[WantedRange], buffers: _Buffers) -> ExtentMessages:
    def numbers(values: Iterable[int]) -> Numbers:
        return np.fromiter(values, np.int64, len(ranges))

    return ExtentMessages(
        [StreamName(each.range.stream_id, each.range.content_type) for each in ranges],
        np.arange(len(ranges), dtype=np.int32),
        numbers(each.range.length for each in ranges),
        numbers(each.range.offset for each in ranges),
        numbers(each.start for each in ranges),
        numbers(each.end for each in ranges),
        numbers(each.range.earliest for each in ranges),
        buffers.counts,
        buffers.lengths,
        buffers.timestamps,
        buffers.positions,
        buffers.data if buffers.with_data else None,
    )


def _without_separators(
    data: npt.NDArray[np.uint8], ends: Numbers, is_json: npt.NDArray[np.bool_]
) -> Any:
    """Drop the last byte of JSON messages, which separates them, where only some are JSON."""
    kept = np.ones(len(data), dtype=bool)
    kept[ends[is_json] - 1] = False
    return binary_array(data[kept], ends - np.cumsum(is_json))
