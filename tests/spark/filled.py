"""Buckets filled through the client, what is in them, and reads of them by hand."""

import json
import pickle
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from holdfast.client import Bearer, SyncClient
from holdfast.spark.reading.arrow import DEFAULT_COLUMNS, spark_schema
from holdfast.spark.reading.readers import batch_reader
from holdfast.spark.reading.slice_reader import read_batches
from holdfast.spark.reading.source import ReadPartition

BYTES = "application/octet-stream"
TEXT = "text/plain"
JSON = "application/json"


class Row(NamedTuple):
    """What a row has to say; times are compared where they are the point."""

    stream_id: str
    offset: str
    next_offset: str
    content_type: str
    payload: bytes


class Filled:
    """A bucket, and a record of all that was appended to it."""

    def __init__(self, url: str, bucket: str = "events", token: str = "") -> None:
        self.url = url
        self.bucket = bucket
        self.client = SyncClient(url, auth=Bearer(token) if token else None)
        self.rows: list[Row] = []
        self._tails: dict[str, int] = {}
        self._types: dict[str, str] = {}

    def append(self, stream_id: str, *messages: Any, content_type: str = BYTES) -> None:
        """Append messages one by one; the first one creates the stream."""
        stream = self.client.stream(f"{self.bucket}/{stream_id}")
        if stream_id not in self._types:
            stream.create(content_type)
            self._types[stream_id], self._tails[stream_id] = content_type, 0
        for message in messages:
            answer = stream.append(message)
            self._note(stream_id, message)
            assert answer.next_offset == f"{self._tails[stream_id]:020d}"

    def _note(self, stream_id: str, message: Any) -> None:
        kind, start = self._types[stream_id], self._tails[stream_id]
        if kind == JSON:
            payload = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
            end = start + len(payload) + 1
        else:
            payload = message if isinstance(message, bytes) else message.encode()
            end = start + len(payload)
        self._tails[stream_id] = end
        self.rows.append(Row(stream_id, f"{start:020d}", f"{end:020d}", kind, payload))

    def forget(self, *stream_ids: str) -> None:
        """The next append creates these streams, which were deleted."""
        for each in stream_ids:
            del self._types[each]

    def flush(self) -> None:
        """Move everything to packs."""
        self.client.storage.flush()

    def packs(self) -> set[str]:
        """The packs in which the bucket is."""
        return {each.pack for each in self.client.bucket(self.bucket).ranges()}

    def options(self, **more: Any) -> dict[str, str]:
        """The options of a read."""
        return {"url": self.url, "bucket": self.bucket} | {n: str(v) for n, v in more.items()}

    def of(self, *stream_ids: str) -> list[Row]:
        """What was appended to some streams."""
        return ordered(each for each in self.rows if each.stream_id in stream_ids)

    def everything(self) -> list[Row]:
        """What was appended, by stream and offset."""
        return ordered(self.rows)

    def cursor(self) -> str:
        """Where the bucket ends now."""
        return self.client.bucket(self.bucket).until("now").latest


def ordered(rows: Iterable[Row]) -> list[Row]:
    """By stream and offset."""
    return sorted(rows, key=lambda row: (row.stream_id, row.offset))


def planned(
    options: dict[str, str], columns: tuple[str, ...] = DEFAULT_COLUMNS
) -> list[ReadPartition]:
    """The parts of a batch read, as executors get them."""
    reader = batch_reader(options, spark_schema(columns))
    return [pickle.loads(pickle.dumps(each)) for each in reader.partitions()]


def batches(part: ReadPartition) -> Iterator[Any]:
    """The Arrow batches of one part."""
    return read_batches(part.source, part.part)


def rows_of(parts: Iterable[ReadPartition]) -> list[Row]:
    """The rows of parts, in the order in which they come."""
    return [row for part in parts for batch in batches(part) for row in rows_in(batch)]


def rows_in(batch: Any) -> list[Row]:
    """The rows of an Arrow batch."""
    return [Row(*(each[name] for name in Row._fields)) for each in batch.to_pylist()]


def read(options: dict[str, str]) -> list[Row]:
    """A batch read without Spark."""
    return ordered(rows_of(planned(options)))
