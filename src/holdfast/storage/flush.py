"""The flush: sealed log becomes packs and catalog rows, in steps that can each be the last.

1. Gather the records of a range of the log.
2. Upload packs: one for all streams, and one of its own for each stream with a lot of bytes.
3. Commit the packs and the streams' rows to the catalog, in one transaction.

Whatever happens before 3, the log still has everything, and an object that no catalog row names
is collected as garbage. Only after 3 may the log be trimmed. A long log is flushed in ranges of
about `RANGE_BYTES_MAX`, so that memory stays bounded.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, LogCorruptError
from holdfast.failpoints import failpoint
from holdfast.format.pack_builder import PackBuilder
from holdfast.format.packs import NewPack, PackMeta
from holdfast.format.rows import encode_row
from holdfast.format.segments import decode_header, iter_batches
from holdfast.storage.catalog_writer import row_change
from holdfast.storage.gather import Gather, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.clock import Clock
    from holdfast.objects.store import ObjectStore
    from holdfast.storage.catalog_writer import CatalogWriter

RANGE_BYTES_MAX: Final = 64 * 1024 * 1024
# A stream with more bytes than this in one range gets a pack of its own.
OWN_PACK_BYTES: Final = 8 * 1024 * 1024


class SegmentRef(msgspec.Struct, frozen=True):
    """A part of the log that is durable and final: a file up to a byte."""

    path: str
    end: int
    last_position: int


class Flushed(NamedTuple):
    """What a flush did."""

    through: int
    packs: int
    pack_bytes: int
    data_bytes: int
    streams: int


class Flush:
    """Flushes the log into one store and one catalog."""

    def __init__(
        self,
        catalog: CatalogWriter,
        store: ObjectStore,
        clock: Clock,
        read_file: Callable[[str], bytes],
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._read_file = read_file

    def run(self, segments: Sequence[SegmentRef]) -> Flushed:
        """Flush everything in these segments that is not flushed yet."""
        failpoint("flush.started")
        flushed = int(self._catalog.fact("flushed"))
        packs = pack_bytes = data_bytes = streams = 0
        for group in _ranges([each for each in segments if each.last_position > flushed]):
            gather = self._gather(group, flushed)
            failpoint("flush.gathered")
            created: list[NewPack] = []
            try:
                self._upload(gather, created)
                failpoint("flush.uploaded")
                self._commit(gather, created)
            except Exception:
                self._take_back(created, flushed)
                raise
            failpoint("flush.committed")
            flushed = gather.through
            packs += len(created)
            pack_bytes += sum(pack.info.size_bytes for pack in created)
            data_bytes += sum(pack.info.data_bytes for pack in created)
            streams += len(gather.shares)
        return Flushed(flushed, packs, pack_bytes, data_bytes, streams)

    def _gather(self, segments: Sequence[SegmentRef], after: int) -> Gather:
        gather = Gather(after, self._catalog.find_number, self._catalog.find_document)
        for segment in segments:
            data = self._read_file(segment.path)
            try:
                header = decode_header(data)
                if header is None:
                    raise LogCorruptError(f"The segment {segment.path} has no sound header.")
                for frame in iter_batches(data, header, segment.end):
                    if frame.position > after:
                        gather.apply(frame.position, frame.body)
            except ValueError as error:
                raise LogCorruptError(f"The segment {segment.path} is damaged: {error}.") from error
        return gather

    def _take_back(self, created: list[NewPack], flushed: int) -> None:
        """Remove what was uploaded in vain: the disk may be full, and the flush is repeated."""
        with contextlib.suppress(HoldfastError):
            if self._catalog.fact("flushed") == flushed:
                for pack in created:
                    self._store.remove(pack.name)

    def _upload(self, gather: Gather, created: list[NewPack]) -> None:
        small: list[tuple[int, Share]] = []
        for number, share in sorted(gather.shares.items()):
            if share.size_bytes > OWN_PACK_BYTES:
                created.append(self._upload_pack(gather, [(number, share)], None))
            else:
                small.append((number, share))
        meta = PackMeta(
            self._clock.now_ms(),
            has_delta=True,
            companions=[pack.name for pack in created],
            removed=gather.removed,
            documents=gather.documents(),
            last_ms=gather.last_ms,
        )
        created.append(self._upload_pack(gather, small, meta))

    def _upload_pack(
        self, gather: Gather, shares: list[tuple[int, Share]], meta: PackMeta | None
    ) -> NewPack:
        """Build and upload one pack; only the one with the meta carries the rows."""
        builder = PackBuilder(self._clock.random_u64(), gather.after, gather.through)
        out = bytearray(builder.header())
        for number, share in shares:
            if share.size_bytes:
                data = share.take_data()
                builder.add(number, share.start, data, share.messages)
                out += data
        rows = _encoded_rows(gather) if meta is not None else iter(())
        meta = meta or PackMeta(self._clock.now_ms(), has_delta=False)
        for part in builder.finish(meta, rows):
            out += part
        self._store.put(builder.name, out)
        return builder.pack

    def _commit(self, gather: Gather, packs: list[NewPack]) -> None:
        shares = gather.shares
        self._catalog.commit_flush(
            gather.after,
            gather.through,
            packs,
            (row_change(share.row, encode_row(share.row)) for share in shares.values()),
            gather.removed,
            gather.documents(),
            created=sum(map(gather.is_new, shares)),
            added_bytes=sum(share.size_bytes for share in shares.values()),
            dropped=gather.dropped,
            last_ms=gather.last_ms,
            now_ms=self._clock.now_ms(),
        )


def _encoded_rows(gather: Gather) -> Iterator[tuple[int, bytes]]:
    for number, share in sorted(gather.shares.items()):
        yield number, encode_row(share.row)


def _ranges(segments: Sequence[SegmentRef]) -> Iterator[list[SegmentRef]]:
    """Group segments so that each group is small enough to be held in memory."""
    group: list[SegmentRef] = []
    size = 0
    for segment in segments:
        if group and size + segment.end > RANGE_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.end
    if group:
        yield group
