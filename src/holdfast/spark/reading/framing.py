"""Length-prefixed records inside the messages of byte streams, as rows of their own.

A message holds whole records; who appends with our client does so. Their offsets are where their
bytes start and end in the stream, the four of the length included.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.errors import BadAnswerError
from holdfast.protocol.content import PREFIX_BYTES, Unframer
from holdfast.spark.reading.chunks import Chunk


def unframed(chunk: Chunk) -> Chunk:
    """The records that the messages of byte streams hold; messages of JSON streams stay."""
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
        if is_json[chunk.which[row]]:
            rows.append(row)
            starts.append(int(offsets[row]))
            ends.append(int(next_offsets[row]))
            records.append(payload)
            continue
        at = int(offsets[row])
        for record in _records(chunk, row, payload):
            rows.append(row)
            starts.append(at)
            at += PREFIX_BYTES + len(record)
            ends.append(at)
            records.append(record)
    taken = np.array(rows, dtype=np.int64)
    return Chunk(
        chunk.streams,
        chunk.which[taken],
        np.array(starts, dtype=np.int64),
        np.array(ends, dtype=np.int64),
        None if chunk.timestamps is None else chunk.timestamps[taken],
        pa.array(records, pa.binary()),
    )


def _records(chunk: Chunk, row: int, payload: bytes) -> list[bytes]:
    unframer = Unframer()
    records = unframer.feed(payload)
    if unframer.pending_bytes:
        stream = chunk.streams[chunk.which[row]].stream_id
        raise BadAnswerError(
            f"The message of {stream!r} at offset {chunk.offsets[row]} does not hold whole "
            "length-prefixed records; read this stream without 'framing'."
        )
    return records
