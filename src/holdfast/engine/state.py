"""Published state: the result of applying all durable records in order.

Nothing here reads a clock or makes a decision: `apply` does what a record says, at replay and after
a commit alike. Readers see this state and no other.

Only a part of it is in memory. Streams whose records are all in packs are in the catalog and are
loaded on demand; of a stream in memory only the bytes from `base` on are. Bytes that are not in
packs yet belong to a *generation*: everything since the last cut of the log, or between the two
cuts before it while that part is being flushed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from holdfast.engine.journal import Journal, JournalBatch
from holdfast.engine.listing import Names
from holdfast.engine.stream import Generation, Stream
from holdfast.format.records import (
    Kind,
    Record,
    decode_documents,
    decode_snapshot,
    stream_number,
)
from holdfast.format.rows import (
    BUCKET_PREFIX,
    BucketRow,
    StreamRow,
    apply_write,
    begin_fork,
    decode_bucket,
    publish_snapshot,
    remove,
    renewed_deadline_ms,
    stored_bytes,
)
from holdfast.protocol.headers import OFFSET_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.protocol.producer import ProducerState
    from holdfast.storage.catalog import Catalog


_WITHOUT_STREAM: Final = (Kind.DOCUMENTS, Kind.CREATE_BUCKET, Kind.DELETE_BUCKET)


class State:
    """All streams of a shard."""

    def __init__(self, catalog: Catalog | None = None) -> None:
        self.catalog = catalog
        self.by_name: dict[str, Stream] = {}
        self.by_number: dict[int, Stream] = {}
        # Streams in memory that the catalog has in the same state, least recently used first.
        self.clean: OrderedDict[int, Stream] = OrderedDict()
        # Removed streams that may still be in the catalog.
        self.removed: dict[str, int] = {}
        self.removed_numbers: set[int] = set()
        # From which offset streams can be read that were trimmed, or deleted and kept for their
        # forks, which the catalog may not know yet.
        self.hidden: dict[int, int] = {}
        self.generation = Generation(0)
        self.buckets: dict[str, BucketRow] = {}
        # Rows of buckets that do not exist any more, for deleted streams that are kept.
        self._former: dict[str, BucketRow] = {}
        # Documents other than buckets' rows, by key.
        self.documents: dict[str, bytes] = {}
        # Names that the catalog may not have, and what happened lately.
        self.names = Names()
        self.journal = Journal(keeps_unflushed=catalog is not None)
        self.streams = 0
        self.appended_bytes = 0
        # What snapshots take, less what was removed.
        self._other_bytes = 0
        self.loads = 0
        self.on_load: Callable[[Stream], None] | None = None

    @property
    def stored_bytes(self) -> int:
        """The size of all buckets together."""
        return self.appended_bytes + self._other_bytes

    def begin(self, flushed: int, streams: int, documents: Iterable[tuple[str, bytes]]) -> None:
        """Start from the catalog, before any record is applied."""
        for key, value in documents:
            if key.startswith(BUCKET_PREFIX):
                bucket = decode_bucket(value)
                buckets = self.buckets if bucket.exists else self._former
                buckets[key.removeprefix(BUCKET_PREFIX)] = bucket
                self.appended_bytes += bucket.size_bytes
            else:
                self.documents[key] = value
        self.streams = streams
        self.generation = Generation(self.appended_bytes)
        self.journal.start_after(flushed)

    def next_generation(self) -> Generation:
        """Start a new generation at a cut of the log, and return the one it ends."""
        ended, self.generation = self.generation, Generation(self.appended_bytes)
        return ended

    def find(self, name: str) -> Stream | None:
        """The stream of this name, loaded from the catalog if need be."""
        stream = self.by_name.get(name)
        if stream is not None or self.catalog is None or name in self.removed:
            return stream
        row = self.catalog.find_name(name)
        return None if row is None else self._load(row)

    def find_number(self, number: int) -> Stream | None:
        """The stream with this number, loaded from the catalog if need be."""
        stream = self.by_number.get(number)
        if stream is not None or self.catalog is None or number in self.removed_numbers:
            return stream
        row = self.catalog.find_number(number)
        return None if row is None else self._load(row)

    def find_producer(self, stream: Stream, producer_id: bytes) -> ProducerState | None:
        """The last pair accepted from a producer, looked up in the catalog if need be."""
        for known in (stream.producers, stream.cut_producers):
            if known is not None and producer_id in known:
                return known[producer_id]
        if not stream.stored_producers or self.catalog is None:
            return None
        stored, state = self.catalog.find_producer(stream.number, producer_id)
        # A flush may have stored some that are counted as new until its memory is released.
        known_stored = stream.stored_producers
        stream.stored_producers = stored if known_stored < 0 else min(stored, known_stored)
        return state

    def oldest_producer_ms(self, stream: Stream) -> int | None:
        """When the producer in the catalog wrote that has been idle for longest."""
        return None if self.catalog is None else self.catalog.oldest_producer_ms(stream.number)

    def name_of(self, number: int) -> str | None:
        """The name of the stream with this number, without loading it."""
        stream = self.by_number.get(number)
        if stream is not None:
            return stream.meta.name
        if self.catalog is None or number in self.removed_numbers:
            return None
        return self.catalog.name_of(number)

    def _load(self, row: StreamRow) -> Stream:
        stream = Stream.from_row(row, self.row_of(row.meta.name.partition("/")[0]))
        self.by_name[row.meta.name] = self.by_number[row.number] = stream
        self.clean[row.number] = stream
        self.loads += 1
        if self.on_load is not None:
            self.on_load(stream)
        return stream

    def evict(self, stream: Stream) -> None:
        """Drop a clean stream from memory."""
        del self.clean[stream.number]
        del self.by_number[stream.number]
        del self.by_name[stream.meta.name]

    def replay(self, position: int, records: Iterable[Record]) -> None:
        """Apply a batch from the log."""
        batch = list(records)
        ends: list[int] = []
        rare: dict[int, tuple[int, str]] = {}
        for index, record in enumerate(batch):
            stream = self.apply(record, position, index)
            ends.append(0 if stream is None else stream.tail)
            if record.kind != Kind.APPEND:
                rare[index] = record.kind, "" if stream is None else stream.meta.name
        self.published(JournalBatch(position, batch, ends, rare))

    def published(self, batch: JournalBatch) -> None:
        """Count and journal a batch whose records are all applied."""
        self.generation.records += len(batch.streams)
        self.journal.add(batch)

    def apply(self, record: Record, position: int, index: int) -> Stream | None:
        """Apply a record, and return the stream it changed, if any."""
        kind = record.kind
        if kind == Kind.APPEND:
            return self.append(record)
        if kind == Kind.CREATE:
            return self._create(record, position, index)
        if kind in _WITHOUT_STREAM:
            self._apply_without_stream(record)
            return None
        stream = self._known(record.stream)
        if kind == Kind.TOUCH:
            stream.recorded_deadline_ms = record.at_ms
            stream.deadline_ms = max(record.at_ms, stream.deadline_ms or 0)
        elif kind == Kind.SNAPSHOT:
            snapshot = decode_snapshot(record.payload)
            self._freed(stream, publish_snapshot(stream, snapshot, position))
            if self.catalog is not None:
                self.generation.snapshots.add(snapshot.object)
                self.hidden[stream.number] = stream.earliest
        elif kind in (Kind.DELETE, Kind.EXPIRE):
            self._end(stream, position)
        else:
            raise ValueError(f"unknown kind of record: {kind}")
        return stream

    def _known(self, number: int) -> Stream:
        """The stream with this number, marked as changed."""
        stream = self.find_number(number)
        if stream is None:
            raise KeyError(number)
        if stream.generation is not self.generation:
            self._touch(stream)
        return stream

    def _apply_without_stream(self, record: Record) -> None:
        if record.kind == Kind.DOCUMENTS:
            for key, value in decode_documents(record.payload).items():
                if value is None:
                    self.documents.pop(key, None)
                else:
                    self.documents[key] = value
        elif record.kind == Kind.CREATE_BUCKET:
            self.bucket_of(record.payload.decode() + "/", record.at_ms).explicit = True
        else:
            name = record.payload.decode()
            self.buckets[name].explicit = False
            self._remove_if_unused(name)

    def bucket_of(self, name: str, at_ms: int) -> BucketRow:
        """The bucket of a stream name, created if there is none."""
        bucket_id = name[: name.index("/")]
        bucket = self.buckets.get(bucket_id)
        if bucket is None:
            bucket = self._former.pop(bucket_id, None) or BucketRow(at_ms)
            bucket.begin(at_ms)
            self.buckets[bucket_id] = bucket
        return bucket

    def row_of(self, bucket_id: str) -> BucketRow | None:
        """The row of a bucket, also of one that does not exist any more."""
        return self.buckets.get(bucket_id) or self._former.get(bucket_id)

    def _remove_if_unused(self, bucket_id: str) -> None:
        """Remove a bucket that was not created explicitly and holds no streams."""
        bucket = self.row_of(bucket_id)
        if bucket is None or bucket.exists:
            return
        self.buckets.pop(bucket_id, None)
        self._former.pop(bucket_id, None)
        if bucket.is_needed:
            self._former[bucket_id] = bucket

    def _create(self, record: Record, position: int, index: int) -> Stream:
        meta = record.meta
        assert meta is not None, "a creation carries its metadata"
        assert record.stream == stream_number(position, index), "a stream's number is its birth"
        bucket = self.bucket_of(meta.name, record.at_ms)
        stream = Stream(record.stream, meta, record.at_ms, bucket)
        stream.deadline_ms = stream.recorded_deadline_ms = meta.expires_at_ms
        assert meta.name not in self.by_name, "a name is free before it is created"
        self.by_name[meta.name] = stream
        self.by_number[stream.number] = stream
        self.names.add(meta.name)
        self.streams += 1
        bucket.streams += 1
        if meta.fork is not None:
            begin_fork(stream, self._known(meta.fork.source))
            stream.base = stream.start
            self._shrink(stream, -stored_bytes(stream))
        return self.append(record)

    def append(self, record: Record) -> Stream:
        """Add the record's bytes, and apply its producer, sequence and closure."""
        stream = self.by_number.get(record.stream)
        if stream is None:
            stream = self.find_number(record.stream)
            if stream is None:
                raise KeyError(record.stream)
        if stream.generation is not self.generation:
            self._touch(stream)
        payload = record.payload
        bucket = stream.bucket
        size = len(payload)
        if size:
            stream.tail += size
            stream.chunks.append(payload)
            stream.ends.append(stream.tail)
            self.appended_bytes += size
            bucket.size_bytes += size
        stream.last_write_ms = bucket.last_write_ms = record.at_ms
        if record.producer is not None or record.seq is not None or record.closes:
            apply_write(stream, record)
        if stream.meta.ttl_s is not None:
            deadline_ms = renewed_deadline_ms(stream.meta, record.at_ms)
            if deadline_ms is not None:
                stream.recorded_deadline_ms = deadline_ms
                stream.deadline_ms = max(deadline_ms, stream.deadline_ms or 0)
        return stream

    def _touch(self, stream: Stream) -> None:
        """Add a stream to the generation: it changes for the first time since the last cut."""
        stream.generation = self.generation
        stream.cut_tail = stream.tail
        if stream.producers is not None:
            stream.set_producers_apart()
        if self.catalog is not None:
            # Without storage there is no cut, and the list would only grow.
            self.generation.streams.append(stream)
        self.clean.pop(stream.number, None)

    def _end(self, stream: Stream, position: int) -> None:
        """Remove a deleted or expired stream; one with forks stays for them only."""
        stream.bucket.streams -= 1
        stream.gone = True
        if stream.forks:
            stream.deleted = True
            stream.hidden_at = position
            if self.catalog is not None:
                self.hidden[stream.number] = OFFSET_MAX
            stream.deadline_ms = stream.recorded_deadline_ms = None
        else:
            remove(stream, self._known, self._forget, self._freed)
        self._remove_if_unused(stream.meta.name.partition("/")[0])

    def _forget(self, stream: Stream) -> None:
        name, number = stream.meta.name, stream.number
        self._shrink(stream, stored_bytes(stream))
        self._remove_if_unused(name.partition("/")[0])
        del self.by_name[name]
        del self.by_number[number]
        self.names.discard(name)
        if self.catalog is not None:
            self.removed[name] = number
            self.removed_numbers.add(number)
            self.hidden.pop(number, None)
        self.streams -= 1
        stream.deleted = False
        stream.chunks.clear()
        stream.ends.clear()

    def _freed(self, stream: Stream, size_bytes: int) -> None:
        """Release bytes at the start of a stream that no reader needs any more."""
        self._shrink(stream, size_bytes)
        stream.forget_before(stream.start)

    def _shrink(self, stream: Stream, size_bytes: int) -> None:
        """Count bytes that a stream stores no longer; a negative number if it stores more."""
        self._other_bytes -= size_bytes
        stream.bucket.size_bytes -= size_bytes
