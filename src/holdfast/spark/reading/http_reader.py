"""Reading streams by the plain protocol, on executors.

If the server tells the boundaries of messages, a row is a message. Other servers do not: there a
row is the content of one response, of a JSON stream an array. Timestamps are not known.

A response of such a server may go on with messages that came after the read was planned, and its
offsets do not tell how many bytes those are. So they are read too, and removed from its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
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
from holdfast.spark.reading.arrow import Chunk, Numbers, StreamName
from holdfast.spark.reading.source import ReadSource, StreamSlice

# How often a stream may grow between two requests.
_ATTEMPTS: Final = 20
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def stream_chunks(source: ReadSource, server: SparkClient, part: StreamSlice) -> Generator[Chunk]:
    """The messages of a slice."""
    if part.start >= part.end:
        return
    batches = server.iterate(lambda client: _available_messages(client, source, part))
    for content_type, messages in batches:
        yield Chunk(
            [StreamName(part.stream_id, content_type)],
            np.zeros(len(messages), dtype=np.int32),
            _offsets([each.offset for each in messages]),
            _offsets([each.next_offset for each in messages]),
            None,
            pa.array([each.payload for each in messages], pa.binary()),
        )


async def _available_messages(
    client: Client, source: ReadSource, part: StreamSlice
) -> AsyncIterator[tuple[str, list[Message]]]:
    """The messages that still exist; raises if some are gone and the source does not allow it."""
    start = part.start
    while start < part.end:
        try:
            async for content_type, messages in _messages(client, source, part, start):
                yield content_type, messages
                start = messages[-1].next_offset
            return
        except (StreamNotFoundError, GoneError) as error:
            if source.fail_on_data_loss:
                raise source.data_loss([part.stream_id]) from None
            earliest = error.earliest_offset if isinstance(error, OffsetGoneError) else ""
            if earliest <= start:
                return
            start = earliest


async def _messages(
    client: Client, source: ReadSource, part: StreamSlice, start: str
) -> AsyncIterator[tuple[str, list[Message]]]:
    """The content type and the messages of each response."""
    stream = client.stream(f"{source.bucket}/{part.stream_id}")
    assembler = Assembler(None)
    async for batch in stream.read(start).batches(lengths=True):
        if batch.lengths is not None:
            messages = [each for each in assembler.feed(batch) if each.offset < part.end]
        else:
            cut = batch if batch.next_offset <= part.end else await _cut(stream, batch, part)
            messages = [Message(cut.data, cut.offset, cut.next_offset)] if cut.data else []
        if messages:
            yield batch.content_type, messages
        if batch.next_offset >= part.end:
            return


async def _cut(stream: Stream, batch: Batch, part: StreamSlice) -> Batch:
    """Remove from a response what came after the read was planned."""
    for _ in range(_ATTEMPTS):
        later = await _contents(stream, part.end, batch.next_offset)
        if later is not None:
            return Batch(_without(batch, later), batch.content_type, batch.offset, part.end)
        # The stream has grown in between: read both again.
        async for again in stream.read(batch.offset).batches():
            batch = again
            break
        if batch.next_offset <= part.end:
            return batch
    raise UnavailableError(
        f"The stream {part.stream_id!r} grows faster than it can be read, and this server does "
        "not tell where its messages end."
    )


async def _contents(stream: Stream, start: str, end: str) -> list[bytes] | None:
    """The contents of the responses from one offset to another; None if they go beyond it."""
    contents = []
    async for batch in stream.read(start).batches():
        contents.append(batch.data)
        if batch.next_offset >= end:
            return contents if batch.next_offset == end else None
    return None


def _without(batch: Batch, later: list[bytes]) -> bytes:
    """The content of a response without `later`, which is its end."""
    if media_type(batch.content_type) == JSON:
        messages = _decode_array(batch.data)
        count = len(messages) - sum(len(_decode_array(each)) for each in later)
        return b"[" + b",".join(bytes(each) for each in messages[:count]) + b"]"
    rest = b"".join(later)
    if not batch.data.endswith(rest):
        raise BadAnswerError("Two responses with the same bytes of a stream differ.")
    return batch.data.removesuffix(rest)


def _offsets(texts: list[str]) -> Numbers | list[str]:
    """Offsets as numbers if they have our format, else as they are."""
    if all(len(text) == 20 and text.isdigit() for text in texts):
        return np.array([int(text) for text in texts], dtype=np.int64)
    return texts
