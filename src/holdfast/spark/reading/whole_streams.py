"""A slice stream by stream: all messages of one, in order, before those of the next.

For jobs that fold or copy streams. The slice must have been planned with `whole_streams`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.ahead import ahead
from holdfast.spark.reading.chunks import Chunk, Numbers, StreamName
from holdfast.spark.reading.slice_reader import SliceReader
from holdfast.spark.reading.slices import Slice
from holdfast.spark.reading.source import Source


class Run(NamedTuple):
    """Messages of one stream that follow one another."""

    stream: StreamName
    offsets: Numbers
    next_offsets: Numbers
    timestamps: Numbers
    # A pyarrow BinaryArray.
    payloads: Any


def stream_runs(source: Source, server: SparkClient, part: Slice) -> Iterator[Run]:
    """The runs of the slice: those of one stream one after the other."""
    reader = SliceReader(source, server)
    late: dict[str, list[Run]] = {}
    if part.until > part.flushed:
        # Bounded by what the server holds in memory.
        for chunk in reader.unpacked(part):
            for run in _runs(chunk):
                late.setdefault(run.stream.stream_id, []).append(run)
    present = None
    if part.after < part.flushed:
        for chunk in ahead(reader.packed(part)):
            for run in _runs(chunk):
                if present is not None and run.stream.stream_id != present:
                    yield from late.pop(present, ())
                present = run.stream.stream_id
                yield run
        if present is not None:
            yield from late.pop(present, ())
    for stream_id in sorted(late):
        yield from late[stream_id]


def _runs(chunk: Chunk) -> Iterator[Run]:
    """The chunk cut where the stream changes."""
    assert isinstance(chunk.offsets, np.ndarray)
    assert isinstance(chunk.next_offsets, np.ndarray)
    assert chunk.timestamps is not None
    ends = [*(np.flatnonzero(np.diff(chunk.which)) + 1).tolist(), len(chunk)]
    first = 0
    for last in ends:
        if last > first:
            yield Run(
                chunk.streams[chunk.which[first]],
                chunk.offsets[first:last],
                chunk.next_offsets[first:last],
                chunk.timestamps[first:last],
                chunk.payloads[first:last],
            )
        first = last
