"""Messages as Arrow columns: the schemas of a read, and chunks of messages made into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.errors import BadAnswerError, SettingsError
from holdfast.protocol.content import JSON, PREFIX_BYTES, Unframer, media_type
from holdfast.spark.reading.selection import ALL_TEXTS, ALL_TIMES, Selection

# Spark takes in batches of a few megabytes fastest.
BATCH_BYTES: Final = 8 * 1024 * 1024
# An estimate of what a row takes besides its payload: ids, offsets, a time.
ROW_BYTES: Final = 96
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
# All columns in their order, with their types in Spark and in Arrow.
_COLUMNS: Final[dict[str, tuple[DataType, Any]]] = {
    "bucket": (StringType(), pa.string()),
    "stream_id": (StringType(), pa.string()),
    "offset": (StringType(), pa.string()),
    "next_offset": (StringType(), pa.string()),
    "timestamp": (TimestampType(), _TIMESTAMP),
    "content_type": (StringType(), pa.string()),
    "payload": (BinaryType(), pa.binary()),
    "value": (StringType(), pa.string()),
    "position": (LongType(), pa.int64()),
}
COLUMN_NAMES: Final = tuple(_COLUMNS)
COLUMN_TYPES: Final = {name: spark for name, (spark, _) in _COLUMNS.items()}
# Other columns are there if they are asked for.
DEFAULT_COLUMNS: Final = COLUMN_NAMES[: COLUMN_NAMES.index("value")]
# The columns that are made of payloads. Without them, executors read only the indexes of packs.
PAYLOAD_COLUMNS: Final = frozenset({"payload", "value"})
_DIGITS: Final = 20
# "0000" to "9999", each as one uint32: five of them are the digits of an offset.
_FOUR_DIGITS: Final = np.frombuffer(
    "".join(f"{number:04d}" for number in range(10_000)).encode(), dtype=np.uint32
)

Numbers = npt.NDArray[np.int64]


def check_columns(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in _COLUMNS:
            raise SettingsError(
                f"There is no column {name!r}; there are {', '.join(COLUMN_NAMES)}."
            )
    if len(set(names)) != len(names):
        raise SettingsError("The option 'columns' names a column twice.")
    return tuple(names)


def spark_schema(names: Sequence[str]) -> StructType:
    # All columns are nullable: Spark makes them so in any case.
    return StructType([StructField(name, _COLUMNS[name][0], True) for name in names])


def arrow_schema(names: Sequence[str]) -> Any:
    return pa.schema([pa.field(name, _COLUMNS[name][1], nullable=True) for name in names])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema, which the user may have given; their types must be ours."""
    names = check_columns([field.name for field in schema.fields])
    for field in schema.fields:
        expected = _COLUMNS[field.name][0]
        if field.dataType != expected:
            raise SettingsError(
                f"The column {field.name!r} is of type {expected.simpleString()}, "
                f"not {field.dataType.simpleString()}."
            )
    return names


class StreamName(NamedTuple):
    """A stream's id and content type."""

    stream_id: str
    content_type: str

    @property
    def is_json(self) -> bool:
        return media_type(self.content_type) == JSON


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages in order, column by column."""

    streams: Sequence[StreamName]
    # For each message the index of its stream in `streams`.
    stream_indexes: npt.NDArray[np.int32]
    # Numbers, or texts if the server's offsets are not ours.
    offsets: Numbers | Sequence[str]
    next_offsets: Numbers | Sequence[str]
    # In milliseconds; None where the server does not tell.
    timestamps: Numbers | None
    # A pyarrow BinaryArray, without the separators of JSON messages; None if they are not read.
    payloads: Any
    # In the log; None where the server does not tell.
    positions: Numbers | None = None

    def __len__(self) -> int:
        return len(self.stream_indexes)

    def slice(self, first: int, last: int) -> Chunk:
        return self._select(
            slice(first, last), None if self.payloads is None else self.payloads[first:last]
        )

    def filter(self, keep: npt.NDArray[np.bool_]) -> Chunk:
        """The messages whose flag is set."""
        return self._select(keep, None if self.payloads is None else self.payloads.filter(keep))

    def _select(self, rows: Any, payloads: Any) -> Chunk:
        return Chunk(
            self.streams,
            self.stream_indexes[rows],
            _taken(self.offsets, rows),
            _taken(self.next_offsets, rows),
            None if self.timestamps is None else self.timestamps[rows],
            payloads,
            None if self.positions is None else self.positions[rows],
        )


def _taken(offsets: Numbers | Sequence[str], rows: Any) -> Numbers | Sequence[str]:
    """Some of the offsets, by a slice or by flags."""
    if isinstance(offsets, np.ndarray):
        return np.asarray(offsets[rows])
    return offsets[rows] if isinstance(rows, slice) else list(compress(offsets, rows))


def split_chunk(chunk: Chunk, batch_bytes: int = BATCH_BYTES) -> list[Chunk]:
    """Cut a chunk into parts of about `batch_bytes`."""
    size = ROW_BYTES * len(chunk) + (0 if chunk.payloads is None else chunk.payloads.nbytes)
    if size <= 2 * batch_bytes or len(chunk) < 2:
        return [chunk]
    rows = max(1, len(chunk) * batch_bytes // size)
    return [chunk.slice(at, at + rows) for at in range(0, len(chunk), rows)]


def json_rows(chunk: Chunk) -> npt.NDArray[np.bool_]:
    """A mask of the messages of JSON streams."""
    return np.array([each.is_json for each in chunk.streams], dtype=bool)[chunk.stream_indexes]


def json_messages(chunk: Chunk) -> list[bytes | None]:
    """The messages, with None for those of streams that are not JSON."""
    payloads: list[bytes | None] = chunk.payloads.to_pylist()
    is_json = json_rows(chunk)
    if is_json.all():
        return payloads
    return [each if wanted else None for each, wanted in zip(payloads, is_json, strict=True)]


def selected_rows(chunk: Chunk, selection: Selection) -> Chunk:
    """The messages with the offsets and times of a selection; for rows without a time, none is."""
    offsets, times = selection.offsets, selection.times
    keep = np.ones(len(chunk), dtype=bool)
    if offsets != ALL_TEXTS:
        if isinstance(chunk.offsets, np.ndarray):
            first, beyond = selection.offset_numbers
            keep &= (chunk.offsets >= first) & (chunk.offsets < beyond)
        else:
            keep &= np.fromiter(map(offsets.includes, chunk.offsets), bool, len(chunk))
    if times != ALL_TIMES:
        if chunk.timestamps is None:
            keep[:] = False
        else:
            start: Any = times.from_ms
            end: Any = times.to_ms
            if times.starts_ms or times.ends_ms:
                bounds = np.array([times.of(each.stream_id) for each in chunk.streams], np.int64)
                start, end = bounds[chunk.stream_indexes].T
            keep &= (chunk.timestamps >= start) & (chunk.timestamps < end)
    return chunk if keep.all() else chunk.filter(keep)


def split_records(chunk: Chunk) -> Chunk:
    """Replace messages of byte streams by the length-prefixed records that they hold.

    A message holds whole records, as our client appends them. The offsets of a record are those of
    its bytes in the stream, including the four of its length.
    """
    offsets, next_offsets = chunk.offsets, chunk.next_offsets
    if not (isinstance(offsets, np.ndarray) and isinstance(next_offsets, np.ndarray)):
        raise BadAnswerError(
            "This server does not tell where messages end, so length-prefixed records have no "
            "offsets here; read without 'framing'."
        )
    rows: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    records: list[bytes] = []
    is_json = [each.is_json for each in chunk.streams]
    for row, payload in enumerate(chunk.payloads.to_pylist()):
        at = int(offsets[row])
        if is_json[chunk.stream_indexes[row]]:
            found, sizes = [payload], [int(next_offsets[row]) - at]
        else:
            found = _records_in(chunk, row, payload)
            sizes = [PREFIX_BYTES + len(record) for record in found]
        records += found
        for size in sizes:
            rows.append(row)
            starts.append(at)
            at += size
            ends.append(at)
    taken = np.array(rows, dtype=np.int64)
    return Chunk(
        chunk.streams,
        chunk.stream_indexes[taken],
        np.array(starts, dtype=np.int64),
        np.array(ends, dtype=np.int64),
        None if chunk.timestamps is None else chunk.timestamps[taken],
        pa.array(records, pa.binary()),
        None if chunk.positions is None else chunk.positions[taken],
    )


def _records_in(chunk: Chunk, row: int, payload: bytes) -> list[bytes]:
    unframer = Unframer()
    records = unframer.feed(payload)
    if unframer.pending_bytes:
        stream = chunk.streams[chunk.stream_indexes[row]].stream_id
        raise BadAnswerError(
            f"The message of {stream!r} at offset {chunk.offsets[row]} does not hold whole "
            "length-prefixed records; read this stream without 'framing'."
        )
    return records


def to_batch(chunk: Chunk, bucket: str, columns: Sequence[str]) -> Any:
    """Convert a chunk to a RecordBatch."""
    arrays = [_column(chunk, bucket, name) for name in columns]
    return pa.record_batch(arrays, schema=arrow_schema(columns))


def _column(chunk: Chunk, bucket: str, name: str) -> Any:
    match name:
        case "bucket":
            return pa.array([bucket], pa.string()).take(pa.array(np.zeros(len(chunk), np.int32)))
        case "stream_id":
            return _of_streams(chunk, [each.stream_id for each in chunk.streams])
        case "offset":
            return offsets_text(chunk.offsets)
        case "next_offset":
            return offsets_text(chunk.next_offsets)
        case "timestamp":
            if chunk.timestamps is None:
                return pa.nulls(len(chunk), _TIMESTAMP)
            return pa.array(chunk.timestamps * 1000).view(_TIMESTAMP)
        case "content_type":
            return _of_streams(chunk, [each.content_type for each in chunk.streams])
        case "payload":
            return chunk.payloads
        case "position":
            if chunk.positions is None:
                return pa.nulls(len(chunk), pa.int64())
            return pa.array(chunk.positions)
    return _values(chunk)


def _of_streams(chunk: Chunk, texts: list[str]) -> Any:
    return pa.array(texts, pa.string()).take(pa.array(chunk.stream_indexes))


def _values(chunk: Chunk) -> Any:
    """Messages of JSON streams as text (the server has checked that they are UTF-8), or null."""
    is_json = np.array([each.is_json for each in chunk.streams], dtype=bool)
    if is_json.all():
        return chunk.payloads.view(pa.string())
    if not is_json.any():
        return pa.nulls(len(chunk), pa.string())
    wanted = pa.array(is_json[chunk.stream_indexes])
    taken = pa.compute.if_else(wanted, chunk.payloads, pa.scalar(None, pa.binary()))
    return taken.view(pa.string())


def offsets_text(offsets: Numbers | Sequence[str]) -> Any:
    """Offsets as the protocol writes them: twenty digits each."""
    if not isinstance(offsets, np.ndarray):
        return pa.array(offsets, pa.string())
    count = len(offsets)
    groups = np.empty((count, _DIGITS // 4), dtype=np.uint32)
    rest = offsets
    for place in range(_DIGITS // 4 - 1, -1, -1):
        if place < 2 and not rest.any():
            # Offsets beyond 10^12 are rare, and the divisions take most of the time.
            groups[:, : place + 1] = _FOUR_DIGITS[0]
            break
        rest, last = np.divmod(rest, 10_000)
        groups[:, place] = _FOUR_DIGITS[last]
    ends = np.arange(0, (count + 1) * _DIGITS, _DIGITS, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(groups))


def binary_array(data: Any, ends: Numbers) -> Any:
    """An Arrow array over messages that lie back to back in a buffer, without a copy."""
    bounds = np.zeros(len(ends) + 1, dtype=np.int32)
    bounds[1:] = ends
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
