"""Chunks: some messages of some streams, column by column, and how they become Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.protocol.content import JSON, media_type
from holdfast.spark.reading.columns import arrow_schema

# A batch of a few megabytes is what Spark takes in fastest.
BATCH_BYTES: Final = 8 * 1024 * 1024
# What a row takes besides its payload, about: ids, offsets, a time.
ROW_BYTES: Final = 96
_DIGITS: Final = 20
# "0000" to "9999" as one number each, so that five of them make an offset's digits.
_GROUPS: Final = np.frombuffer(
    "".join(f"{number:04d}" for number in range(10_000)).encode(), dtype=np.uint32
)

Numbers = npt.NDArray[np.int64]


class StreamName(NamedTuple):
    """A stream as rows name it."""

    stream_id: str
    content_type: str

    @property
    def is_json(self) -> bool:
        """Whether its messages are JSON."""
        return media_type(self.content_type) == JSON


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages in order. A column has an entry for each, `which` the index of its stream."""

    streams: Sequence[StreamName]
    which: npt.NDArray[np.int32]
    offsets: Numbers | Sequence[str]
    next_offsets: Numbers | Sequence[str]
    # Milliseconds; None where the server does not tell.
    timestamps: Numbers | None
    # A pyarrow BinaryArray without what separates messages.
    payloads: Any

    def __len__(self) -> int:
        return len(self.payloads)

    def part(self, first: int, last: int) -> Chunk:
        """The messages from `first` to before `last`."""
        return Chunk(
            self.streams,
            self.which[first:last],
            self.offsets[first:last],
            self.next_offsets[first:last],
            None if self.timestamps is None else self.timestamps[first:last],
            self.payloads[first:last],
        )


def to_batch(chunk: Chunk, bucket: str, columns: Sequence[str]) -> Any:
    """A chunk as a RecordBatch with these columns."""
    makers = {
        "bucket": lambda: constant(bucket, len(chunk)),
        "stream_id": lambda: _of_streams(chunk, [each.stream_id for each in chunk.streams]),
        "offset": lambda: offsets_text(chunk.offsets),
        "next_offset": lambda: offsets_text(chunk.next_offsets),
        "timestamp": lambda: _timestamps(chunk),
        "content_type": lambda: _of_streams(chunk, [each.content_type for each in chunk.streams]),
        "payload": lambda: chunk.payloads,
        "value": lambda: _values(chunk),
    }
    return pa.record_batch([makers[name]() for name in columns], schema=arrow_schema(columns))


def constant(text: str, count: int) -> Any:
    """The same text in every row."""
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int32)))


def _of_streams(chunk: Chunk, texts: list[str]) -> Any:
    return pa.array(texts, pa.string()).take(pa.array(chunk.which))


def _timestamps(chunk: Chunk) -> Any:
    kind = pa.timestamp("us", tz="UTC")
    if chunk.timestamps is None:
        return pa.nulls(len(chunk), kind)
    return pa.array(chunk.timestamps * 1000).view(kind)


def _values(chunk: Chunk) -> Any:
    """The messages of JSON streams as text, which the server has seen to; null for others."""
    is_json = np.array([each.is_json for each in chunk.streams], dtype=bool)
    if is_json.all():
        return chunk.payloads.view(pa.string())
    if not is_json.any():
        return pa.nulls(len(chunk), pa.string())
    wanted = pa.array(is_json[chunk.which])
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
            # Offsets beyond 10^12 are rare, and dividing is what takes the time.
            groups[:, : place + 1] = _GROUPS[0]
            break
        rest, last = np.divmod(rest, 10_000)
        groups[:, place] = _GROUPS[last]
    ends = np.arange(0, (count + 1) * _DIGITS, _DIGITS, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(groups))


def binary_array(data: Any, ends: Numbers) -> Any:
    """Messages that lie back to back in a buffer, as Arrow sees them, without a copy."""
    places = np.zeros(len(ends) + 1, dtype=np.int32)
    places[1:] = ends
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(places), pa.py_buffer(data)]
    )


def pieces(chunk: Chunk, batch_bytes: int = BATCH_BYTES) -> list[Chunk]:
    """The chunk in parts of about this many bytes."""
    size = chunk.payloads.nbytes + ROW_BYTES * len(chunk)
    if size <= 2 * batch_bytes or len(chunk) < 2:
        return [chunk]
    rows = max(1, len(chunk) * batch_bytes // size)
    return [chunk.part(at, at + rows) for at in range(0, len(chunk), rows)]
