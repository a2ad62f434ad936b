"""Streams as any server of the protocol has them, as rows.

Where the server tells the boundaries of messages a row is a message. Other servers do not: there a
row is what one answer held, of a JSON stream an array. Nobody tells when a message was written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import numpy as np
import pyarrow as pa

from holdfast.client import Client, Message
from holdfast.client.messages import Assembler
from holdfast.spark.connection import Waiting
from holdfast.spark.reading.chunks import Chunk, StreamName
from holdfast.spark.reading.slices import StreamSlice
from holdfast.spark.reading.source import Source


def stream_chunks(source: Source, server: Waiting, part: StreamSlice) -> Iterator[Chunk]:
    """The stream of a slice from its start to where it ended when the read was planned."""
    if part.start >= part.end:
        return
    for content_type, messages in server.items(lambda client: _messages(client, source, part)):
        yield Chunk(
            [StreamName(part.stream_id, content_type)],
            np.zeros(len(messages), dtype=np.int32),
            _offsets([each.offset for each in messages]),
            _offsets([each.next_offset for each in messages]),
            None,
            pa.array([each.payload for each in messages], pa.binary()),
        )


async def _messages(
    client: Client, source: Source, part: StreamSlice
) -> AsyncIterator[tuple[str, list[Message]]]:
    """The messages of each answer, or the answers where they cannot be cut."""
    reading = client.stream(f"{source.bucket}/{part.stream_id}").read(part.start)
    assembler = Assembler(None)
    async for batch in reading.batches(lengths=True):
        if batch.lengths is not None:
            # An answer may go on with what came since.
            found = [each for each in assembler.feed(batch) if each.offset < part.end]
        else:
            found = [Message(batch.data, batch.offset, batch.next_offset)] if batch.data else []
        if found:
            yield batch.content_type, found
        if batch.next_offset >= part.end:
            return


def _offsets(texts: list[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]] | list[str]:
    """As numbers where they are ours, else as they are."""
    if all(len(text) == 20 and text.isdigit() for text in texts):
        return np.array([int(text) for text in texts], dtype=np.int64)
    return texts
