"""Reading parts of packs, on executors: streams and positions, found by the packs' own directories.

A part names streams between two numbers, log positions, and the packs that hold them. The directory
of a pack says where the extents are, and its delta how the streams are called. The server is asked
once for each pack which of its streams are deleted or trimmed by now. Extents that lie next to one
another are read together, and nothing is done for each message.

Packs can be merged away meanwhile. Then the server is asked which packs hold the part now, and what
was read before is left out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.errors import NotFoundError, ObjectMissingError
from holdfast.format.packs import (
    PackInfo,
)
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.arrow import BATCH_BYTES, ROW_BYTES, Chunk, Numbers, StreamName
from holdfast.spark.reading.pack_directory import UNKNOWN, OpenPack, PackEntries
from holdfast.spark.reading.packs import (
    GAP_BYTES,
    ExtentMessages,
    PackBytes,
    PositionRange,
    open_packs,
)
from holdfast.spark.reading.selection import ALL_TEXTS
from holdfast.spark.reading.source import PackPart, ReadSource

# How often in a row packs may be merged away before they could be read.
_ATTEMPTS: Final = 10
# Bounds a chunk whose extents are tiny.
_CHUNK_EXTENTS_MAX: Final = 50_000


class PackPartReader:
    """Reads parts of one source."""

    def __init__(self, source: ReadSource, server: SparkClient) -> None:
        self._source = source
        self._server = server
        self._store: PackBytes | None = None
        # Whether there is less than was planned; perhaps only bytes that were dead already.
        self._lacks_some = False

    def chunks(self, part: PackPart) -> Generator[Chunk]:
        """The messages of a part, those of a stream in order."""
        packs: Sequence[PackInfo] = part.packs
        read: list[PackEntries] = []
        done: _ReadExtents | None = None
        failures = 0
        while True:
            try:
                for group in _overlapping(packs):
                    for named, chunk in self._chunks_of(part, group):
                        wanted = chunk if done is None else done.without(named.numbers, chunk)
                        if len(wanted):
                            yield wanted
                        failures = 0
                        read.append(named.entries)
            except (ObjectMissingError, NotFoundError):
                # Merged into other packs: the server knows which.
                failures += 1
                if failures >= _ATTEMPTS:
                    raise
                packs = self._source.rescan(self._server, part).packs
                done = _ReadExtents(read)
                self._lacks_some = True
            else:
                break
        if self._lacks_some and self._reports_losses(part):
            self._source.check_lost(self._server, self._source.rescan(self._server, part))

    def _reports_losses(self, part: PackPart) -> bool:
        return bool(part.read_after) and self._source.fail_on_data_loss

    def _chunks_of(
        self, part: PackPart, infos: Sequence[PackInfo]
    ) -> Iterator[tuple[_Named, Chunk]]:
        """The messages in packs whose positions overlap, by stream and offset."""
        if self._store is None:
            self._store = open_packs(self._source, self._server)
        packs = [OpenPack(self._store, info, part) for info in infos]
        found = _together([self._live_entries(part, at, each) for at, each in enumerate(packs)])
        if len(packs) > 1:
            found = found.select(np.lexsort((found.starts, found.streams)))
        with_data = self._source.reads_payloads
        for window in _windows(found, with_data=with_data):
            named = self._named(part, packs, window)
            if not len(named.entries.entries):
                continue
            regions = list(_regions(packs, named.entries))
            messages = _read_regions(packs, regions, named, with_data=with_data)
            chunk, trimmed = messages.chunk(PositionRange(part.after, part.until))
            if trimmed:
                lost = {messages.streams[messages.stream_indexes[at]] for at in trimmed}
                raise self._source.data_loss(sorted(each.stream_id for each in lost))
            yield named, chunk

    def _live_entries(self, part: PackPart, at: int, pack: OpenPack) -> PackEntries:
        """The entries of a pack with messages that may be wanted."""
        entries = pack.entries(part, at)
        if not len(entries.entries):
            return entries
        known = self._server.bucket(self._source.bucket).pack_streams(
            pack.info.name,
            prefix=self._source.selection.prefix,
            first_stream=int(entries.streams[0]),
            last_stream=int(entries.streams[-1]),
        )
        pack.given_names = {number: StreamName(*each) for number, each in known.names.items()}
        hidden = _numbers(known.hidden)
        if len(hidden):
            nearest = np.minimum(np.searchsorted(hidden, entries.streams), len(hidden) - 1)
            is_hidden = hidden[nearest] == entries.streams
            visible_from = np.where(is_hidden, _numbers(known.visible_from)[nearest], 0)
            entries = entries._replace(earliest=visible_from)
            if self._reports_losses(part):
                since = max(part.read_after, int(self._source.began or 0))
                is_loss = is_hidden & (_numbers(known.hidden_at)[nearest] > since)
                entries = entries._replace(missed=np.where(is_loss, visible_from, 0))
        keep = (entries.ends > entries.earliest) | (entries.missed > 0)
        if known.live is not None:
            is_live = np.isin(entries.streams, _numbers(known.live))
            self._lacks_some = self._lacks_some or not is_live.all()
            keep &= is_live
        entries = entries.select(keep)
        from_ms, to_ms = self._source.selection.time_range
        has_messages = pack.has_messages(entries.entries, part, from_ms, to_ms)
        return entries.select(has_messages | (entries.missed > 0))

    def _named(self, part: PackPart, packs: Sequence[OpenPack], window: PackEntries) -> _Named:
        """The entries of a window whose streams are selected."""
        source = self._source
        numbers, first_at, indexes = np.unique(
            window.streams, return_index=True, return_inverse=True
        )
        streams: list[StreamName] = [UNKNOWN] * len(numbers)
        for at, pack in enumerate(packs):
            (of_pack,) = np.nonzero(window.packs[first_at] == at)
            for place, name in zip(
                of_pack.tolist(), pack.names(numbers[of_pack], source.bucket), strict=True
            ):
                streams[place] = name
        bounds = self._bounds(streams)
        if not part.read_after and source.fail_on_data_loss:
            trimmed = np.flatnonzero(window.earliest)
            self._check_starts(
                [streams[at] for at in indexes[trimmed].tolist()], window.earliest[trimmed].tolist()
            )
        starts, ends = bounds[indexes].T
        starts = np.maximum(starts, window.earliest)
        # A large stream may be cut.
        is_first = window.streams == part.first[0]
        starts = np.where(is_first, np.maximum(starts, part.first[1]), starts)
        if part.last is not None:
            is_last = window.streams == part.last[0]
            ends = np.where(is_last, np.minimum(ends, part.last[1]), ends)
        keep = (ends > 0) & ((window.starts < ends) | (window.missed > 0))
        keep &= (window.ends > starts) | (window.missed > 0)
        return _Named(
            numbers,
            streams,
            window.select(keep),
            indexes[keep].astype(np.int32),
            starts[keep],
            ends[keep],
        )

    def _bounds(self, streams: Sequence[StreamName]) -> npt.NDArray[np.int64]:
        """The offsets between which streams are read; both are 0 of those that are not selected."""
        selection = self._source.selection
        # Most reads select everything, and there may be very many streams.
        takes_all = selection.streams is None and not selection.pattern
        takes_all = takes_all and selection.ids == ALL_TEXTS
        is_selected = [
            each is not UNKNOWN and (takes_all or selection.includes(each.stream_id))
            for each in streams
        ]
        if not (selection.starts or selection.ends or selection.pattern_starts):
            return np.outer(is_selected, selection.window("", 0))
        windows = [
            selection.window(each.stream_id, 0) if wanted else (0, 0)
            for each, wanted in zip(streams, is_selected, strict=True)
        ]
        return np.array(windows, dtype=np.int64)

    def _check_starts(self, trimmed: Sequence[StreamName], earliest: Sequence[int]) -> None:
        """Raise if streams are trimmed beyond the offsets from which they are wanted."""
        selection = self._source.selection
        lost = {
            stream.stream_id
            for stream, offset in zip(trimmed, earliest, strict=True)
            if stream is not UNKNOWN
            and selection.includes(stream.stream_id)
            and 0 < selection.start_of(stream.stream_id) < offset
        }
        if lost:
            raise self._source.data_loss(sorted(lost))


class _Named(NamedTuple):
    """Entries that are read, with their streams and the offsets that are read."""

    numbers: Numbers
    streams: Sequence[StreamName]
    entries: PackEntries
    stream_indexes: npt.NDArray[np.int32]
    starts: Numbers
    ends: Numbers


def _together(entries: Sequence[PackEntries]) -> PackEntries:
    return PackEntries(*(np.concatenate(columns) for columns in zip(*entries, strict=True)))


def _numbers(data: bytes) -> Numbers:
    return np.frombuffer(data, dtype=np.int64)


def _overlapping(packs: Sequence[PackInfo]) -> Iterator[list[PackInfo]]:
    """Groups of packs whose positions overlap, in the order of the log."""
    group: list[PackInfo] = []
    through = 0
    for pack in sorted(packs, key=lambda each: (each.after, each.through)):
        if group and pack.after >= through:
            yield group
            group = []
        group.append(pack)
        through = max(through, pack.through)
    if group:
        yield group


def _windows(entries: PackEntries, *, with_data: bool) -> Iterator[PackEntries]:
    """Entries that make a chunk of about a batch, or many that are tiny."""
    costs = ROW_BYTES * entries.messages + (entries.ends - entries.starts if with_data else 0)
    totals = np.cumsum(costs)
    first = 0
    while first < len(totals):
        before = int(totals[first - 1]) if first else 0
        last = int(np.searchsorted(totals, before + BATCH_BYTES, "right"))
        last = min(max(last, first + 1), first + _CHUNK_EXTENTS_MAX)
        yield entries.select(slice(first, last))
        first = last


class _Region(NamedTuple):
    """Entries of a pack that are read at once, and which of a window's entries are in them."""

    pack: int
    first: int
    last: int
    begin: int
    end: int


def _regions(packs: Sequence[OpenPack], entries: PackEntries) -> Iterator[_Region]:
    """Runs of entries without large gaps."""
    begin = 0
    gaps = np.zeros(len(entries.entries), dtype=bool)
    for at, pack in enumerate(packs):
        (here,) = np.nonzero(entries.packs == at)
        data_at = pack.data_at[entries.entries[here]]
        ends = data_at + pack.lengths[entries.entries[here]]
        gaps[here[1:]] = data_at[1:] - ends[:-1] > GAP_BYTES
    gaps[1:] |= entries.packs[1:] != entries.packs[:-1]
    for end in [*np.flatnonzero(gaps).tolist(), len(gaps)]:
        if end > begin:
            first, last = int(entries.entries[begin]), int(entries.entries[end - 1]) + 1
            yield _Region(int(entries.packs[begin]), first, last, begin, end)
        begin = end


def _read_regions(
    packs: Sequence[OpenPack], regions: Sequence[_Region], named: _Named, *, with_data: bool
) -> ExtentMessages:
    """Read regions, and verify the entries in them that are wanted."""
    data: dict[_Region, npt.NDArray[np.uint8]] = {}
    if with_data:
        for at, pack in enumerate(packs):
            mine = [each for each in regions if each.pack == at]
            if mine:
                found = pack.data([(each.first, each.last) for each in mine])
                data |= zip(mine, found, strict=True)
    pieces: list[tuple[npt.NDArray[Any], ...]] = []
    for region in regions:
        pack, inside = packs[region.pack], slice(region.begin, region.end)
        here, index = slice(region.first, region.last), named.entries.entries[inside]
        lengths, timestamps, positions = pack.index(region.first, region.last)
        pack.verify((region.first, region.last), index, lengths, data.get(region))
        # Entries that are not wanted lie in between; of them no offset is read.
        bounds = np.zeros((4, region.last - region.first), dtype=np.int64)
        bounds[:, index - region.first] = (
            named.stream_indexes[inside],
            named.starts[inside],
            named.ends[inside],
            named.entries.missed[inside],
        )
        pieces.append(
            (
                bounds[0].astype(np.int32),
                pack.lengths[here],
                pack.starts[here],
                *bounds[1:],
                pack.messages[here],
                lengths,
                timestamps,
                positions,
            )
        )
    columns = [_joined(part) for part in zip(*pieces, strict=True)]
    joined = _joined([data[each] for each in regions]) if with_data else None
    return ExtentMessages._make([named.streams, *columns, joined])


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Without a copy if there is only one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class _ReadExtents:
    """What was read before packs were merged away."""

    def __init__(self, read: Sequence[PackEntries]) -> None:
        found = _together(read) if read else PackEntries(*[np.zeros(0, np.int64)] * 8)
        self._entries = found.select(np.lexsort((found.starts, found.streams)))
        self._streams = np.unique(found.streams)

    def without(self, numbers: Numbers, chunk: Chunk) -> Chunk:
        """The messages of a chunk that were not read yet; `numbers` are those of its streams."""
        read, rows, offsets = self._entries, numbers[chunk.stream_indexes], chunk.offsets
        assert isinstance(offsets, np.ndarray)
        if not len(read.streams):
            return chunk
        # Stream and offset as one number, by their places among all that there are.
        places = np.unique(np.concatenate((read.starts, offsets)))

        def keys(streams: Numbers, starts: Numbers) -> Numbers:
            stream_places = np.searchsorted(self._streams, streams)
            return stream_places * len(places) + np.searchsorted(places, starts)

        before = np.searchsorted(keys(read.streams, read.starts), keys(rows, offsets), "right") - 1
        is_read = (before >= 0) & (read.streams[before] == rows) & (offsets < read.ends[before])
        return chunk.filter(~is_read)
