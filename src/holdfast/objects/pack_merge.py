"""Merging: several packs become one, in which every stream's bytes are contiguous again.

The live extents are read in the order of the streams and written to a new pack, in bounded memory.
The new pack is in use only after the swap, which is a transaction of the catalog's writer. So a
merge can run in a thread beside flushes, or in a job elsewhere that requests the swap from the
server, and a crash leaves at most an orphaned object.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.failpoints import failpoint
from holdfast.format.pack_builder import Messages, PackBuilder
from holdfast.format.packs import EXTENT_BYTES_MAX, Extent, NewPack, PackInfo, PackMeta
from holdfast.format.records import INDEX_BITS
from holdfast.format.rows import later_row
from holdfast.objects.pack_reader import Pack, SequentialReader, verified

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.clock import Clock
    from holdfast.objects.store import ObjectStore

_PART_BYTES: Final = 8 * 1024 * 1024


class MergePlan(NamedTuple):
    """What to merge, as the catalog had it when the merge was planned."""

    # Neighbours in the log, each with a delta; or a single pack without one.
    sources: Sequence[PackInfo]
    # Live extents by stream and start, each with the index of its source.
    extents: Sequence[tuple[int, Extent]]
    # Packs that the sources superseded, whose objects are still there.
    superseded: Sequence[str]
    # Packs without a delta in use for the same range of the log. The sources may name others,
    # which these have replaced.
    companions: frozenset[str]
    # Where the needed bytes start, of streams trimmed by a snapshot.
    starts: Mapping[int, int]


class _Source:
    def __init__(self, store: ObjectStore, source: PackInfo) -> None:
        self.pack = Pack(store, source.name, source.size_bytes)
        self.index = self.pack.index()
        self._reader = SequentialReader(store, source.name, self.pack.footer.data_end)

    def data(self, extent: Extent) -> bytes:
        data = self._reader.read(extent.data_at, extent.length)
        return verified(self.pack.name, self.pack.footer.salt, extent, data)

    def messages(self, extent: Extent) -> Messages:
        return self.index.part(extent.message_at, extent.message_at + extent.messages)


def merge_packs(store: ObjectStore, clock: Clock, plan: MergePlan) -> NewPack:
    """Write the merged pack: it is durable in the store, but not in use."""
    failpoint("merge.started")
    sources = [_Source(store, source) for source in plan.sources]
    after, through = plan.sources[0].after, plan.sources[-1].through
    builder = PackBuilder(clock.random_u64(), after, through)
    delta = _composed(sources, after)
    meta = PackMeta(
        clock.now_ms(),
        has_delta=delta.has_delta,
        supersedes=[*(source.name for source in plan.sources), *plan.superseded],
        companions=sorted(plan.companions),
        removed=delta.removed,
        documents=delta.documents,
        last_ms=delta.last_ms,
    )

    def parts() -> Iterator[bytes]:
        for part in _gathered(_contents(builder, sources, plan)):
            yield part
            failpoint("merge.uploading")
        yield from builder.finish(meta, delta.rows)

    store.put_parts(builder.name, parts())
    failpoint("merge.uploaded")
    return builder.pack


def _contents(builder: PackBuilder, sources: list[_Source], plan: MergePlan) -> Iterator[bytes]:
    """The header, then each stream's runs of adjacent extents."""
    yield builder.header()
    for run in _runs(plan.extents):
        data = b"".join(sources[source].data(extent) for source, extent in run)
        messages = Messages()
        for source, extent in run:
            messages.extend(sources[source].messages(extent))
        stream, start = run[0][1].stream, run[0][1].start
        count, size = _dead(messages, plan.starts.get(stream, 0) - start)
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


def _runs(extents: Sequence[tuple[int, Extent]]) -> Iterator[list[tuple[int, Extent]]]:
    """Runs of adjacent extents of one stream that fit into one new extent."""
    for _, of_stream in groupby(extents, key=lambda each: each[1].stream):
        run: list[tuple[int, Extent]] = []
        size = 0
        for source, extent in of_stream:
            if run and (run[-1][1].end != extent.start or size + extent.length > EXTENT_BYTES_MAX):
                yield run
                run, size = [], 0
            run.append((source, extent))
            size += extent.length
        yield run


def _gathered(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in larger pieces."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _PART_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


class _Composed(NamedTuple):
    rows: list[tuple[int, bytes]]
    removed: list[int]
    documents: dict[str, bytes | None]
    last_ms: int
    has_delta: bool


def _composed(sources: list[_Source], after: int) -> _Composed:
    """Combine the deltas: the folded rows of each stream and the last value of each document."""
    rows: dict[int, bytes] = {}
    removed: list[int] = []
    documents: dict[str, bytes | None] = {}
    last_ms = 0
    has_delta = False
    for source in sources:
        delta = source.pack.delta()
        has_delta = has_delta or delta.meta.has_delta
        for number, row in delta.items():
            rows[number] = later_row(rows[number], row) if number in rows else row
        documents.update(delta.meta.documents)
        last_ms = max(last_ms, delta.meta.last_ms)
        for number in delta.meta.removed:
            rows.pop(number, None)
            # A stream created in the merged range is unknown before it.
            if number >> INDEX_BITS <= after:
                removed.append(number)
    # Deletions matter only if something comes before this range.
    kept = {key: value for key, value in documents.items() if after or value is not None}
    return _Composed(sorted(rows.items()), removed, kept, last_ms, has_delta)
