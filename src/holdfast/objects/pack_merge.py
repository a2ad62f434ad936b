"""Merging: several packs become one, in which every stream's bytes are contiguous again.

Extents, message indexes and rows of the sources are all sorted by stream number. They are read
side by side, piece by piece, and written to a new pack as they come. So a merge needs memory for a
window of each source, however many streams and messages there are. What follows the data in a pack
waits in temporary files meanwhile.

The new pack is in use only after the swap, which is a transaction of the catalog's writer. So a
merge can run in a thread beside flushes, or in a job elsewhere that requests the swap from the
server, and a crash leaves at most an orphaned object.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from functools import partial, reduce
from heapq import merge
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.failpoints import failpoint
from holdfast.format.pack_builder import Messages, PackBuilder
from holdfast.format.packs import (
    EXTENT_BYTES_MAX,
    EXTENT_MESSAGES_MAX,
    Extent,
    NewPack,
    PackInfo,
    PackMeta,
    TimeSpan,
    fewer_times,
    times_of,
)
from holdfast.format.records import INDEX_BITS
from holdfast.format.rows import later_row
from holdfast.objects.pack_reader import Pack, verified
from holdfast.objects.spool import FileSpool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.format.packs import Delta
    from holdfast.objects.store import ObjectStore

_PART_BYTES: Final = 8 * 1024 * 1024
_WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
# Spans of times in a pack, which is read with all of them. The catalog keeps those of flushes.
TIMES_MAX: Final = 10_000


class LiveExtent(NamedTuple):
    """An extent in use, with the index of its source."""

    source: int
    extent: Extent
    # Bytes of the stream before this offset are dead.
    needed_from: int


class MergePlan(NamedTuple):
    """What to merge, as the catalog has it."""

    # Neighbours in the log, each with a delta; or a single pack without one.
    sources: Sequence[PackInfo]
    # Extents in use, by stream and start. They may be read while the merge goes on: what is missing
    # by then is dead.
    extents: Iterable[LiveExtent]
    # Packs that the sources superseded, whose objects are still there.
    superseded: Sequence[str]
    # Packs without a delta in use for the same range of the log. The sources may name others,
    # which these have replaced.
    companions: frozenset[str]
    # Streams that have forgotten producers: those that wrote last before this time.
    forgotten_ms: Mapping[int, int] = MappingProxyType({})


class MergeBuffers(NamedTuple):
    """The memory that a merge may use, and the directory for its temporary files."""

    # For the data of all sources together. The largest extent of each fits in any case.
    read_bytes: int = 32 * 1024 * 1024
    # For each of the columns that follow the data.
    column_bytes: int = 256 * 1024
    directory: Path | None = None


class _Source:
    def __init__(self, store: ObjectStore, source: PackInfo, window_bytes: int) -> None:
        self.pack = Pack(store, source.name, source.size_bytes)
        self._index = self.pack.index()
        self._reader = self.pack.data_reader(window_bytes)

    def data(self, extent: Extent) -> bytes:
        data = self._reader.read(extent.data_at, extent.length)
        return verified(self.pack.name, self.pack.footer.salt, extent, data)

    def messages(self, extent: Extent) -> Messages:
        return self._index.part(extent.message_at, extent.message_at + extent.messages)


def merge_packs(
    store: ObjectStore,
    clock: Clock,
    plan: MergePlan,
    buffers: MergeBuffers = MergeBuffers(),  # noqa: B008 (immutable)
) -> NewPack:
    """Write the merged pack: it is durable in the store, but not in use."""
    failpoint("merge.started")
    window_bytes = min(_WINDOW_BYTES_MAX, buffers.read_bytes // len(plan.sources))
    sources = [_Source(store, source, window_bytes) for source in plan.sources]
    packs = [source.pack for source in sources]
    builder = PackBuilder(
        clock.random_u64(),
        plan.sources[0].after,
        plan.sources[-1].through,
        partial(FileSpool, buffers.column_bytes, buffers.directory),
    )

    def parts() -> Iterator[bytes]:
        for part in _gathered(_contents(builder, sources, plan.extents)):
            yield part
            failpoint("merge.uploading")
        # The windows are of no use any more.
        sources.clear()
        composed = _composed(packs, plan, clock.now_ms())
        yield from _gathered(builder.finish(composed.meta, composed.rows))

    store.put_parts(builder.name, parts())
    failpoint("merge.uploaded")
    return builder.pack


def _contents(
    builder: PackBuilder, sources: list[_Source], extents: Iterable[LiveExtent]
) -> Iterator[bytes]:
    """The header, then each stream's runs of adjacent extents."""
    yield builder.header()
    for stream, of_stream in groupby(extents, key=lambda each: each.extent.stream):
        found = list(of_stream)
        # They may have been read at different times, and the last of them knows best.
        needed_from = max(each.needed_from for each in found)
        for run in _runs([each for each in found if each.extent.end > needed_from]):
            data = b"".join(sources[each.source].data(each.extent) for each in run)
            messages = Messages()
            for each in run:
                messages.extend(sources[each.source].messages(each.extent))
            start = run[0].extent.start
            count, size = _dead(messages, needed_from - start)
            if count:
                data, messages = data[size:], messages.part(count, len(messages))
            builder.add(stream, start + size, data, messages)
            yield data


def _dead(messages: Messages, needed: int) -> tuple[int, int]:
    """How many messages, and bytes, end before the first needed byte."""
    count = size = 0
    if needed > 0:
        for length in messages.lengths:
            if size + length > needed:
                break
            count, size = count + 1, size + length
    assert count < len(messages), "an extent in use holds something that is needed"
    return count, size


def _runs(extents: Iterable[LiveExtent]) -> Iterator[list[LiveExtent]]:
    """Runs of adjacent extents of one stream that fit into one new extent."""
    run: list[LiveExtent] = []
    size = count = 0
    for each in extents:
        extent = each.extent
        if run and (
            run[-1].extent.end != extent.start
            or size + extent.length > EXTENT_BYTES_MAX
            or count + extent.messages > EXTENT_MESSAGES_MAX
        ):
            yield run
            run, size, count = [], 0, 0
        run.append(each)
        size, count = size + extent.length, count + extent.messages
    if run:
        yield run


def _gathered(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in larger pieces."""
    held = bytearray()
    for part in parts:
        held += part
        if len(held) >= _PART_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


class _Composed(NamedTuple):
    meta: PackMeta
    rows: Iterator[tuple[int, bytes]]


def _composed(packs: list[Pack], plan: MergePlan, now_ms: int) -> _Composed:
    """Combine the deltas: the folded rows of each stream and the last value of each document."""
    after = plan.sources[0].after
    removed = array("Q")
    documents: dict[str, bytes | None] = {}
    last_ms = 0
    times: list[TimeSpan] = []
    has_delta = False
    rows = []
    for place, pack in enumerate(packs):
        delta = pack.delta()
        has_delta = has_delta or delta.meta.has_delta
        documents.update(delta.meta.documents)
        last_ms = max(last_ms, delta.meta.last_ms)
        if delta.meta.has_delta:
            times += times_of(delta.meta, pack.footer.after, pack.footer.through)
        removed.extend(delta.meta.removed)
        # There may be many, and they would stay as long as rows are read.
        delta.meta.removed.clear()
        rows.append(_placed(delta, place))
    gone = array("Q", sorted(removed))
    meta = PackMeta(
        now_ms,
        has_delta=has_delta,
        supersedes=[*(source.name for source in plan.sources), *plan.superseded],
        companions=sorted(plan.companions),
        # A stream created in the merged range is unknown before it.
        removed=[number for number in gone if number >> INDEX_BITS <= after],
        # Deletions matter only if something comes before this range.
        documents={key: value for key, value in documents.items() if after or value is not None},
        last_ms=last_ms,
        times=fewer_times(times, TIMES_MAX),
    )
    return _Composed(meta, _folded(rows, gone, plan.forgotten_ms))


def _placed(delta: Delta, place: int) -> Iterator[tuple[int, int, bytes]]:
    """The rows of one delta, with its place among the others."""
    return ((number, place, row) for number, row in delta.items())


def _folded(
    deltas: Iterable[Iterator[tuple[int, int, bytes]]],
    gone: Sequence[int],
    forgotten_ms: Mapping[int, int],
) -> Iterator[tuple[int, bytes]]:
    """One row for each stream that is not gone; numbers are never used again."""
    for number, of_stream in groupby(merge(*deltas), key=itemgetter(0)):
        at = bisect_left(gone, number)
        if at < len(gone) and gone[at] == number:
            continue
        fold = partial(later_row, used_from_ms=forgotten_ms.get(number, 0))
        yield number, reduce(fold, (row for _, _, row in of_stream))
