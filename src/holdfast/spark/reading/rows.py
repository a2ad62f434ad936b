"""From slices to rows: what executors do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.ahead import ahead
from holdfast.spark.reading.chunks import Chunk, pieces, to_batch
from holdfast.spark.reading.framing import unframed
from holdfast.spark.reading.slice_reader import SliceReader
from holdfast.spark.reading.slices import Slice, StreamSlice
from holdfast.spark.reading.source import Source
from holdfast.spark.reading.stream_rows import stream_chunks


def read_chunks(source: Source, part: Slice | StreamSlice) -> Iterator[Chunk]:
    """The messages of a slice, or the records in them."""
    with SparkClient(source.connection) as server:
        if isinstance(part, StreamSlice):
            chunks = stream_chunks(source, server, part)
        else:
            chunks = SliceReader(source, server).chunks(part)
        for chunk in ahead(chunks):
            yield unframed(chunk) if source.framed else chunk


def read_rows(source: Source, part: Slice | StreamSlice) -> Iterator[Any]:
    """The rows of a slice as Arrow batches."""
    for chunk in read_chunks(source, part):
        for piece in pieces(chunk):
            if len(piece):
                yield to_batch(piece, source.bucket, source.columns)
