"""Streams as any server of the protocol has them, as rows.

Where the server tells the boundaries of messages a row is a message. Other servers do not: there a
row is what one answer held, of a JSON stream an array. Nobody tells when a message was written.

An answer of such a server may go on with what came after the read was planned, and its offsets do
not tell how much that is. So that is asked for as well, and taken away from the answer's end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.client import Batch, Client, Message
from holdfast.client.messages import Assembler
from holdfast.client.stream import Stream
from holdfast.errors import (
    BadAnswerError,
    GoneError,
    OffsetGoneError,
    StreamNotFoundError,
    UnavailableError,
)
from holdfast.protocol.content import JSON, media_type
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.chunks import Chunk, StreamName
from holdfast.spark.reading.losses import lost
from holdfast.spark.reading.slices import StreamSlice
from holdfast.spark.reading.source import Source

# How often a stream may grow between two looks at it.
_ATTEMPTS: Final = 20
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def stream_chunks(source: Source, server: SparkClient, part: StreamSlice) -> Iterator[Chunk]:
    """The stream of a slice from its start to where it ended when the read was planned."""
    if part.start >= part.end:
        return
    for content_type, messages in server.iterate(lambda client: _there(client, source, part)):
        yield Chunk(
            [StreamName(part.stream_id, content_type)],
            np.zeros(len(messages), dtype=np.int32),
            _offsets([each.offset for each in messages]),
            _offsets([each.next_offset for each in messages]),
            None,
            pa.array([each.payload for each in messages], pa.binary()),
        )


async def _there(
    client: Client, source: Source, part: StreamSlice
) -> AsyncIterator[tuple[str, list[Message]]]:
    """The messages that are still there; what is gone may be an error."""
    start = part.start
    while start < part.end:
        try:
            async for content_type, messages in _messages(client, source, part, start):
                yield content_type, messages
                start = messages[-1].next_offset
            return
        except (StreamNotFoundError, GoneError) as error:
            if source.fail_on_data_loss:
                raise lost(source.bucket, [part.stream_id]) from None
            earliest = error.earliest_offset if isinstance(error, OffsetGoneError) else ""
            if earliest <= start:
                return
            start = earliest


async def _messages(
    client: Client, source: Source, part: StreamSlice, start: str
) -> AsyncIterator[tuple[str, list[Message]]]:
    """The messages of each answer, or the answers where they cannot be cut."""
    stream = client.stream(f"{source.bucket}/{part.stream_id}")
    reading = stream.read(start)
    assembler = Assembler(None)
    async for batch in reading.batches(lengths=True):
        if batch.lengths is not None:
            # An answer may go on with what came since.
            found = [each for each in assembler.feed(batch) if each.offset < part.end]
        else:
            whole = batch if batch.next_offset <= part.end else await _before(stream, batch, part)
            found = [Message(whole.data, whole.offset, whole.next_offset)] if whole.data else []
        if found:
            yield batch.content_type, found
        if batch.next_offset >= part.end:
            return


async def _before(stream: Stream, batch: Batch, part: StreamSlice) -> Batch:
    """What of an answer was there when the read was planned."""
    for _ in range(_ATTEMPTS):
        later = await _up_to(stream, part.end, batch.next_offset)
        if later is not None:
            return Batch(_without(batch, later), batch.content_type, batch.offset, part.end)
        # It has grown since: both once more.
        async for again in stream.read(batch.offset).batches():
            batch = again
            break
        if batch.next_offset <= part.end:
            return batch
    raise UnavailableError(
        f"The stream {part.stream_id!r} grows faster than it can be read, and this server does "
        "not tell where its messages end."
    )


async def _up_to(stream: Stream, start: str, end: str) -> list[bytes] | None:
    """The answers from one offset to another; None if they do not end there."""
    found = []
    async for batch in stream.read(start).batches():
        found.append(batch.data)
        if batch.next_offset >= end:
            return found if batch.next_offset == end else None
    return None


def _without(batch: Batch, later: list[bytes]) -> bytes:
    """The bytes of an answer without those at its end."""
    if media_type(batch.content_type) == JSON:
        messages = _decode_array(batch.data)
        count = len(messages) - sum(len(_decode_array(each)) for each in later)
        return b"[" + b",".join(bytes(each) for each in messages[:count]) + b"]"
    rest = b"".join(later)
    if not batch.data.endswith(rest):
        raise BadAnswerError("Two answers with the same bytes of a stream are not the same.")
    return batch.data.removesuffix(rest)


def _offsets(texts: list[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]] | list[str]:
    """As numbers where they are ours, else as they are."""
    if all(len(text) == 20 and text.isdigit() for text in texts):
        return np.array([int(text) for text in texts], dtype=np.int64)
    return texts
