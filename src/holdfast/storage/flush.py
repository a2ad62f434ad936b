"""The flush: the sealed log becomes packs and catalog rows, in steps that can each be the last.

1. Gather the records of a range of the log. They are applied to the streams' rows exactly as the
   engine applies them to its streams, and their bytes are collected by stream.
2. Upload packs: one for all streams, and a separate one for each stream with a lot of bytes.
3. Commit the packs and the streams' rows to the catalog, in one transaction.

Until 3 the log still has everything, and uploaded objects that no row of the catalog names are
garbage. Only after 3 may the log be trimmed. A range ends with the batch that brings what is
gathered to `RANGE_BYTES_MAX`, so memory stays bounded however many streams change.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, LogCorruptError
from holdfast.failpoints import failpoint
from holdfast.format.pack_builder import Messages, PackBuilder
from holdfast.format.packs import TIME_MAX_MS, TIME_MIN_MS, NewPack, PackMeta, TimeSpan
from holdfast.format.records import (
    INDEX_BITS,
    Kind,
    Record,
    decode,
    decode_documents,
    decode_snapshot,
)
from holdfast.format.rows import (
    BUCKET_PREFIX,
    BucketRow,
    StreamRow,
    apply_write,
    begin_fork,
    decode_bucket,
    encode_bucket,
    encode_row,
    publish_snapshot,
    remove,
    renewed_deadline_ms,
    stored_bytes,
)
from holdfast.format.segments import decode_header, iter_batches
from holdfast.protocol.content import JSON, SEPARATOR, media_type
from holdfast.storage.catalog_schema import is_full
from holdfast.storage.catalog_writer import row_change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.clock import Clock
    from holdfast.objects.store import ObjectStore
    from holdfast.storage.catalog_writer import CatalogWriter


RANGE_BYTES_MAX: Final = 64 * 1024 * 1024
# A span of times is ended by the first batch that would make it longer than this.
SPAN_MS_MAX: Final = 10_000
# What a stream, a message and a producer take in memory besides their bytes.
_SHARE_BYTES: Final = 1200
_MESSAGE_BYTES: Final = 64
_PRODUCER_BYTES: Final = 320
# A stream with more bytes than this in one range gets a pack of its own.
OWN_PACK_BYTES: Final = 8 * 1024 * 1024
# Their times are deadlines, which may be in the past or in the future.
_WITH_DEADLINES: Final = (Kind.TOUCH, Kind.EXPIRE)


class SegmentRef(msgspec.Struct, frozen=True):
    """A durable, final part of the log: a file up to the byte `end`."""

    path: str
    end: int
    last_position: int


class Flushed(NamedTuple):
    through: int
    packs: int
    pack_bytes: int
    data_bytes: int
    streams: int


class Flush:
    def __init__(
        self,
        catalog: CatalogWriter,
        store: ObjectStore,
        clock: Clock,
        read_file: Callable[[str], bytes],
        *,
        producers_max: int = 0,
        producer_idle_s: float = 0,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._read_file = read_file
        # A stream keeps this many producers, however long they have been idle.
        self._producers_kept = producers_max // 2
        self._idle_ms = int(producer_idle_s * 1000) if producers_max else 0

    def run(
        self, segments: Sequence[SegmentRef], between_ranges: Callable[[], None] = lambda: None
    ) -> Flushed:
        """Flush what is not flushed yet of these segments."""
        failpoint("flush.started")
        flushed = self._catalog.flushed
        done = Flushed(flushed, 0, 0, 0, 0)
        gather = self._gather(flushed)
        for position, body in self._batches(segments, flushed):
            try:
                gather.apply(position, body)
            except ValueError as error:
                raise LogCorruptError(
                    f"The batch at position {position} is damaged: {error}."
                ) from error
            if gather.held_bytes >= RANGE_BYTES_MAX:
                done = self._finish(gather, done)
                between_ranges()
                gather = self._gather(done.through)
        return self._finish(gather, done) if gather.through > done.through else done

    def _gather(self, after: int) -> Gather:
        return Gather(after, self._catalog.find_number, self._catalog.find_document)

    def _finish(self, gather: Gather, before: Flushed) -> Flushed:
        """Upload and commit a range; returns what was done so far."""
        failpoint("flush.gathered")
        created: list[NewPack] = []
        is_uploaded = False
        try:
            self._upload(gather, created)
            is_uploaded = True
            failpoint("flush.uploaded")
            self._commit(gather, created)
        except Exception as error:
            with contextlib.suppress(HoldfastError):
                if not is_uploaded or self._is_void(error, gather.after):
                    self._take_back(created)
            raise
        failpoint("flush.committed")
        return Flushed(
            gather.through,
            before.packs + len(created),
            before.pack_bytes + sum(pack.info.size_bytes for pack in created),
            before.data_bytes + sum(pack.info.data_bytes for pack in created),
            before.streams + len(gather.shares),
        )

    def _batches(self, segments: Sequence[SegmentRef], after: int) -> Iterator[tuple[int, bytes]]:
        """The batches past this position, with one segment in memory at a time."""
        for segment in segments:
            if segment.last_position <= after:
                continue
            data = self._read_file(segment.path)
            try:
                header = decode_header(data)
                if header is None:
                    raise LogCorruptError(f"The segment {segment.path} has no sound header.")
                for frame in iter_batches(data, header, segment.end):
                    if frame.position > after:
                        yield frame.position, frame.body
            except ValueError as error:
                raise LogCorruptError(f"The segment {segment.path} is damaged: {error}.") from error

    def _is_void(self, error: Exception, after: int) -> bool:
        """Whether a commit that failed has changed nothing, and never will."""
        if not is_full(error):
            self._catalog.settle()
        return bool(self._catalog.fact("flushed") == after)

    def _take_back(self, created: list[NewPack]) -> None:
        """Remove packs that were not committed: the disk may be full, and the flush is repeated."""
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
            times=gather.times,
        )
        created.append(self._upload_pack(gather, small, meta))

    def _upload_pack(
        self, gather: Gather, shares: list[tuple[int, Share]], meta: PackMeta | None
    ) -> NewPack:
        """Build and upload one pack; only the pack with `meta` carries the rows."""
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
            (row_change(share.row) for share in shares.values()),
            gather.removed,
            gather.documents(),
            created=sum(map(gather.is_new, shares)),
            added_bytes=sum(share.size_bytes for share in shares.values()),
            dropped=gather.dropped,
            last_ms=gather.last_ms,
            times=gather.times,
            now_ms=self._clock.now_ms(),
            producers_kept=self._producers_kept,
            # By the times of the log, so that a flush that is repeated has the same result.
            idle_before_ms=gather.last_ms - self._idle_ms if self._idle_ms else 0,
        )


def _encoded_rows(gather: Gather) -> Iterator[tuple[int, bytes]]:
    for number, share in sorted(gather.shares.items()):
        yield number, encode_row(share.row)


class Share:
    """One stream's share of the range: its current row, and the bytes it gained."""

    __slots__ = ("bucket", "is_json", "messages", "parts", "row", "size_bytes", "start")

    def __init__(self, row: StreamRow, bucket: BucketRow) -> None:
        self.row = row
        self.bucket = bucket
        self.start = row.tail
        self.is_json = media_type(row.meta.content_type) == JSON
        self.parts: list[bytes] = []
        self.messages = Messages()
        self.size_bytes = 0

    def write(self, record: Record, position: int) -> int:
        """Apply an append, or the content of a creation.

        Returns the memory that its messages and its producer take besides their bytes.
        """
        row, payload, at_ms = self.row, record.payload, record.at_ms
        messages, producers = len(self.messages), len(row.producers or ())
        self.bucket.last_write_ms = at_ms
        if payload:
            self.bucket.size_bytes += len(payload)
            self.parts.append(payload)
            self.size_bytes += len(payload)
            row.tail += len(payload)
            if self.is_json and payload.count(SEPARATOR) > 1:
                for message in payload[:-1].split(SEPARATOR):
                    self.messages.add(len(message) + 1, at_ms, position)
            else:
                self.messages.add(len(payload), at_ms, position)
        row.last_write_ms = at_ms
        if record.producer is not None or record.seq is not None or record.closes:
            apply_write(row, record)
        if row.meta.ttl_s is not None:
            row.deadline_ms = renewed_deadline_ms(row.meta, at_ms) or row.deadline_ms
        producers = len(row.producers or ()) - producers
        return _MESSAGE_BYTES * (len(self.messages) - messages) + _PRODUCER_BYTES * producers

    def take_data(self) -> bytes:
        """All bytes it gained, which are released."""
        data = b"".join(self.parts)
        self.parts.clear()
        return data


class Gather:
    """Applies batches in order, starting from the rows of the catalog."""

    def __init__(
        self,
        after: int,
        find_row: Callable[[int], StreamRow | None],
        find_document: Callable[[str], bytes | None],
    ) -> None:
        self.after = after
        self.through = after
        self.shares: dict[int, Share] = {}
        # Streams that ended in this range and existed before it.
        self.removed: list[int] = []
        # Snapshots that streams no longer have, with their sizes; a fork may still have them.
        self.dropped: dict[str, int] = {}
        # The time of the last record that carries the time of its writing.
        self.last_ms = 0
        # When the messages were appended, in spans that cover the range.
        self.times: list[TimeSpan] = []
        self._log_bytes = 0
        self._message_bytes = 0
        # Documents by key, None for deleted ones; buckets' rows are kept apart.
        self._documents: dict[str, bytes | None] = {}
        self._buckets: dict[str, BucketRow] = {}
        self._find_row = find_row
        self._find_document = find_document

    def apply(self, position: int, body: bytes) -> None:
        if position != self.through + 1:
            raise LogCorruptError(
                f"The log goes on at position {position} where {self.through + 1} is needed."
            )
        shares = self.shares
        min_ms, max_ms = TIME_MAX_MS, TIME_MIN_MS
        for record in decode(body):
            kind = record.kind
            if kind == Kind.APPEND:
                share = shares.get(record.stream) or self._share(record.stream)
                self._message_bytes += share.write(record, position)
                self.last_ms = record.at_ms
            elif kind == Kind.CREATE:
                self._create(record, position)
                self.last_ms = record.at_ms
            else:
                self._apply_rare(record, position)
                continue
            min_ms, max_ms = min(min_ms, self.last_ms), max(max_ms, self.last_ms)
        self._add_times(position, min_ms, max_ms)
        self.through = position
        self._log_bytes += len(body)

    def _add_times(self, position: int, min_ms: int, max_ms: int) -> None:
        if self.times:
            span = self.times[-1]
            low, high = min(span.min_ms, min_ms), max(span.max_ms, max_ms)
            if high - low <= SPAN_MS_MAX:
                self.times[-1] = TimeSpan(span.first_position, position, low, high)
                return
        self.times.append(TimeSpan(position, position, min_ms, max_ms))

    @property
    def held_bytes(self) -> int:
        """About how much memory it takes."""
        streams = len(self.shares) + len(self.removed)
        return self._log_bytes + _SHARE_BYTES * streams + self._message_bytes

    def documents(self) -> dict[str, bytes | None]:
        """The documents that changed, including buckets' rows, at the end of the range."""
        changed = dict(self._documents)
        for name, bucket in self._buckets.items():
            changed[BUCKET_PREFIX + name] = encode_bucket(bucket) if bucket.is_needed else None
        return changed

    def _apply_rare(self, record: Record, position: int) -> None:
        kind = record.kind
        if kind not in _WITH_DEADLINES:
            self.last_ms = record.at_ms
        if kind == Kind.TOUCH:
            self._share(record.stream).row.deadline_ms = record.at_ms
        elif kind in {Kind.DELETE, Kind.EXPIRE}:
            self._end(self._share(record.stream), position)
        elif kind == Kind.SNAPSHOT:
            share = self._share(record.stream)
            self._drop_snapshot(share.row)
            freed = publish_snapshot(share.row, decode_snapshot(record.payload), position)
            share.bucket.size_bytes -= freed
        elif kind == Kind.DOCUMENTS:
            self._documents.update(decode_documents(record.payload))
        elif kind == Kind.CREATE_BUCKET:
            self._begun_bucket(record.payload.decode(), record.at_ms).explicit = True
        else:
            assert kind == Kind.DELETE_BUCKET, f"unknown kind of record: {kind}"
            self._bucket(record.payload.decode(), record.at_ms).explicit = False

    def _bucket(self, name: str, at_ms: int) -> BucketRow:
        """The bucket's row, or a new one."""
        bucket = self._buckets.get(name)
        if bucket is None:
            found = self._find_document(BUCKET_PREFIX + name)
            bucket = BucketRow(at_ms) if found is None else decode_bucket(found)
            self._buckets[name] = bucket
        return bucket

    def _begun_bucket(self, name: str, at_ms: int) -> BucketRow:
        """The row of a bucket that is created now if it does not exist."""
        bucket = self._bucket(name, at_ms)
        bucket.begin(at_ms)
        return bucket

    def _share(self, number: int) -> Share:
        share = self.shares.get(number)
        if share is None:
            row = self._find_row(number)
            if row is None:
                raise LogCorruptError(
                    f"The log writes to stream {number:x}, which the catalog does not know."
                )
            bucket = self._bucket(row.meta.name.partition("/")[0], row.created_ms)
            share = self.shares[number] = Share(row, bucket)
        return share

    def _create(self, record: Record, position: int) -> None:
        meta = record.meta
        assert meta is not None, "a creation carries its metadata"
        row = StreamRow(record.stream, meta, record.at_ms, record.at_ms)
        row.deadline_ms = meta.expires_at_ms
        if meta.fork is not None:
            begin_fork(row, self._share(meta.fork.source).row)
        bucket = self._begun_bucket(meta.name.partition("/")[0], record.at_ms)
        bucket.streams += 1
        bucket.size_bytes += stored_bytes(row)
        share = self.shares[record.stream] = Share(row, bucket)
        self._message_bytes += share.write(record, position)

    def _end(self, share: Share, position: int) -> None:
        """End a deleted or expired stream: it is removed, or kept for its forks."""
        row = share.row
        share.bucket.streams -= 1
        if row.forks:
            row.deleted, row.deadline_ms, row.hidden_at = True, None, position
        else:
            remove(row, lambda number: self._share(number).row, self._gone, self._freed)

    def _drop_snapshot(self, row: StreamRow) -> None:
        if row.snapshot is not None:
            self.dropped[row.snapshot.object] = row.snapshot.whole[0]

    def _gone(self, row: StreamRow) -> None:
        self._drop_snapshot(row)
        self.shares.pop(row.number).bucket.size_bytes -= stored_bytes(row)
        if not self.is_new(row.number):
            self.removed.append(row.number)

    def _freed(self, row: StreamRow, freed: int) -> None:
        self._share(row.number).bucket.size_bytes -= freed

    def is_new(self, number: int) -> bool:
        return number >> INDEX_BITS > self.after
