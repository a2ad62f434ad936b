"""Data directories with very many streams, written by the flush itself without a server.

    python -m bench.spark.generated DIRECTORY --streams 1000000

A server opens the directory afterwards: everything is in packs, and the log is empty.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.format.records import Kind, Record, StreamMeta, encode, stream_number
from holdfast.format.segments import SegmentHeader, encode_batch, encode_header
from holdfast.log.directory import DataDirectory
from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.flush import Flush, SegmentRef

BUCKET = "spark"
BYTES = "application/octet-stream"
_BATCH_RECORDS = 1000
# Batches in a flush, which writes a pack for every 64 MiB of memory that it takes.
_FLUSH_BATCHES = 250
_SALT = 1
_STEP_MS = 10
_START_MS = 1_700_000_000_000
# Odd, so that every number has its own product, and neighbours are far apart.
_SPREAD = 0x9E3779B1


def stream_name(number: int) -> str:
    """The id of a stream: sorted by ids, streams are in another order than they were created."""
    return f"{number * _SPREAD % 2**32:08x}"


def generate(
    path: Path, streams: int, messages: int = 1, message_bytes: int = 88, bucket: str = BUCKET
) -> None:
    """Write a data directory of so many streams with so many messages each.

    The messages of a stream are apart: every stream has its first one before any has its second.
    Messages are 10 ms apart in each thousand of them.
    """
    directory = DataDirectory.open(path)
    directory.objects_path.mkdir(mode=0o700, exist_ok=True)
    files: dict[str, bytes] = {}
    try:
        with closing(CatalogWriter(directory.catalog_path)) as catalog:
            store = DirectoryObjects(directory.objects_path)
            flush = Flush(catalog, store, SystemClock(), files.__getitem__)
            for segment, data in _segments(streams, messages, message_bytes, bucket):
                files[segment.path] = data
                flush.run([segment])
                del files[segment.path]
    finally:
        directory.close()


def _segments(
    streams: int, messages: int, message_bytes: int, bucket: str
) -> Iterator[tuple[SegmentRef, bytes]]:
    """The log, some batches at a time."""
    position, data = 0, bytearray()
    for records in _batches(streams, messages, message_bytes, bucket):
        if not data:
            data += encode_header(SegmentHeader(_SALT, position + 1, 0, 0))
        position += 1
        data += encode_batch(_SALT, position, b"".join(map(encode, records)))
        if position % _FLUSH_BATCHES == 0:
            yield SegmentRef(str(position), len(data), position), bytes(data)
            data = bytearray()
    if data:
        yield SegmentRef(str(position), len(data), position), bytes(data)


def _batches(
    streams: int, messages: int, message_bytes: int, bucket: str
) -> Iterator[list[Record]]:
    # Taken from one large piece, which is much quicker than made for each message.
    noise = random.Random(1).randbytes(1 << 20)
    position = 0
    for turn in range(messages):
        for first in range(0, streams, _BATCH_RECORDS):
            position += 1
            now_ms = _START_MS + _STEP_MS * position
            records = []
            for index, number in enumerate(range(first, min(first + _BATCH_RECORDS, streams))):
                stream = stream_number(1 + first // _BATCH_RECORDS, index)
                at = (number * 97 + turn) % (len(noise) - message_bytes)
                payload = noise[at : at + message_bytes]
                if turn:
                    records.append(Record(Kind.APPEND, stream, now_ms, payload))
                else:
                    meta = StreamMeta(f"{bucket}/{stream_name(number)}", BYTES)
                    records.append(Record(Kind.CREATE, stream, now_ms, payload, meta=meta))
            yield records


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=88)
    given = parser.parse_args()
    generate(given.directory, given.streams, given.messages, given.bytes)
