"""Gathering: what a range of the log did to each stream it touched.

The records are applied to the streams' rows in order, exactly as the engine applies them to its
streams, and their bytes are kept by stream. The result is the state as of the range's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import LogCorruptError
from holdfast.format.pack_builder import Messages
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
    begin_fork,
    decode_bucket,
    encode_bucket,
    publish_snapshot,
    remove,
    renewed_deadline_ms,
    take_over,
)
from holdfast.protocol.content import JSON, SEPARATOR, media_type

if TYPE_CHECKING:
    from collections.abc import Callable

# Their times are deadlines, which may be long past or still to come.
_WITH_DEADLINES: Final = (Kind.TOUCH, Kind.EXPIRE)


class Share:
    """One stream's share of the range: its row as of now, and the bytes it gained."""

    __slots__ = ("bucket", "is_json", "messages", "parts", "row", "size_bytes", "start")

    def __init__(self, row: StreamRow, bucket: BucketRow) -> None:
        self.row = row
        self.bucket = bucket
        self.start = row.tail
        self.is_json = media_type(row.meta.content_type) == JSON
        self.parts: list[bytes] = []
        self.messages = Messages()
        self.size_bytes = 0

    def write(self, record: Record, position: int) -> None:
        """Take over what an append, or a creation with content, adds."""
        row, payload, at_ms = self.row, record.payload, record.at_ms
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
            take_over(row, record)
        if row.meta.ttl_s is not None:
            row.deadline_ms = renewed_deadline_ms(row.meta, at_ms) or row.deadline_ms

    def take_data(self) -> bytes:
        """All bytes it gained; they are not kept any longer."""
        data = b"".join(self.parts)
        self.parts.clear()
        return data


class Gather:
    """Applies batches in order to rows that start as the catalog has them."""

    def __init__(
        self,
        after: int,
        find_row: Callable[[int], StreamRow | None],
        find_document: Callable[[str], bytes | None],
    ) -> None:
        self.after = after
        self.through = after
        self.shares: dict[int, Share] = {}
        # Streams that are gone and were there before this range.
        self.removed: list[int] = []
        # Snapshots that a stream had and has no more, with their sizes; a fork may have them still.
        self.dropped: dict[str, int] = {}
        # When the last record was written whose time is the writer's own.
        self.last_ms = 0
        # Documents by key as of now, None for those that are gone; buckets' rows come on top.
        self._documents: dict[str, bytes | None] = {}
        self._buckets: dict[str, BucketRow] = {}
        self._find_row = find_row
        self._find_document = find_document

    def apply(self, position: int, body: bytes) -> None:
        """Apply the next batch."""
        if position != self.through + 1:
            raise LogCorruptError(
                f"The log goes on at position {position} where {self.through + 1} is needed."
            )
        shares = self.shares
        for record in decode(body):
            kind = record.kind
            if kind == Kind.APPEND:
                share = shares.get(record.stream) or self._share(record.stream)
                share.write(record, position)
                self.last_ms = record.at_ms
            elif kind == Kind.CREATE:
                self._create(record, position)
                self.last_ms = record.at_ms
            else:
                self._apply_rare(record)
        self.through = position

    def documents(self) -> dict[str, bytes | None]:
        """The documents that changed, buckets' rows among them, as of the range's end."""
        changed = dict(self._documents)
        for name, bucket in self._buckets.items():
            in_use = bucket.explicit or bucket.streams > 0
            changed[BUCKET_PREFIX + name] = encode_bucket(bucket) if in_use else None
        return changed

    def _apply_rare(self, record: Record) -> None:
        kind = record.kind
        if kind not in _WITH_DEADLINES:
            self.last_ms = record.at_ms
        if kind == Kind.TOUCH:
            self._share(record.stream).row.deadline_ms = record.at_ms
        elif kind in {Kind.DELETE, Kind.EXPIRE}:
            self._end(self._share(record.stream))
        elif kind == Kind.SNAPSHOT:
            share = self._share(record.stream)
            self._drop_snapshot(share.row)
            freed = publish_snapshot(share.row, decode_snapshot(record.payload))
            share.bucket.size_bytes -= freed
        elif kind == Kind.DOCUMENTS:
            self._documents.update(decode_documents(record.payload))
        elif kind == Kind.CREATE_BUCKET:
            self._bucket(record.payload.decode(), record.at_ms).explicit = True
        else:
            assert kind == Kind.DELETE_BUCKET, f"unknown kind of record: {kind}"
            self._bucket(record.payload.decode(), record.at_ms).explicit = False

    def _bucket(self, name: str, at_ms: int) -> BucketRow:
        """The bucket's row; a new one where there is none, or none any more."""
        bucket = self._buckets.get(name)
        if bucket is None:
            found = self._find_document(BUCKET_PREFIX + name)
            bucket = BucketRow(at_ms) if found is None else decode_bucket(found)
        elif not bucket.explicit and not bucket.streams:
            bucket = BucketRow(at_ms)
        self._buckets[name] = bucket
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
        bucket = self._bucket(meta.name.partition("/")[0], record.at_ms)
        bucket.streams += 1
        share = self.shares[record.stream] = Share(row, bucket)
        share.write(record, position)

    def _end(self, share: Share) -> None:
        """A stream was deleted or has expired: it goes, or stays for its forks only."""
        row = share.row
        share.bucket.streams -= 1
        share.bucket.size_bytes -= row.tail - row.start
        if row.forks:
            row.deleted, row.deadline_ms = True, None
        else:
            remove(row, lambda number: self._share(number).row, self._gone, self._freed)

    def _drop_snapshot(self, row: StreamRow) -> None:
        if row.snapshot is not None:
            self.dropped[row.snapshot.object] = row.snapshot.size_bytes

    def _gone(self, row: StreamRow) -> None:
        self._drop_snapshot(row)
        self.shares.pop(row.number, None)
        if not self.is_new(row.number):
            self.removed.append(row.number)

    def _freed(self, row: StreamRow, freed: int) -> None:
        if not row.deleted:
            self._share(row.number).bucket.size_bytes -= freed

    def is_new(self, number: int) -> bool:
        """Whether a stream was created in this range."""
        return number >> INDEX_BITS > self.after
