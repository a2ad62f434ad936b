"""What a PUT with `Stream-Forked-From` asks for, and the offset that it comes down to."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from holdfast.engine.boundaries import is_boundary, message_ends
from holdfast.engine.reading import check_offset
from holdfast.engine.requests import ForkRequest
from holdfast.errors import (
    ForkSourceDeletedError,
    InvalidOffsetError,
    InvalidRequestError,
    StreamDeletedError,
)
from holdfast.http.awaiting import answer_of
from holdfast.http.routes import STREAM_PREFIX
from holdfast.protocol.content import JSON
from holdfast.protocol.headers import parse_offset
from holdfast.protocol.names import (
    check_bucket_id,
    check_stream_id,
    decode_segment,
    parse_flat_path,
)

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request

# What other servers call the start of a stream.
_ZERO: Final = "0000000000000000_0000000000000000"
_NUMBER: Final = re.compile(rb"0|[1-9][0-9]{0,15}")


def parse_fork(request: Request) -> ForkRequest | None:
    """The fork that is asked for, if any; its offset is still as it was asked for."""
    fields = request.fields
    source, offset = fields.get(b"stream-forked-from"), fields.get(b"stream-fork-offset")
    sub_offset = fields.get(b"stream-fork-sub-offset")
    if source is None:
        if offset is not None or sub_offset is not None:
            raise InvalidRequestError(
                "Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From."
            )
        return None
    sub = 0
    if sub_offset is not None:
        if not _NUMBER.fullmatch(sub_offset):
            raise InvalidRequestError("Stream-Fork-Sub-Offset must be a whole number.")
        sub = int(sub_offset)
        if sub and offset is None:
            raise InvalidRequestError("Stream-Fork-Sub-Offset needs Stream-Fork-Offset.")
    asked = None if offset is None else _parse_offset(offset.decode("latin-1"))
    return ForkRequest(_source_name(source, request.prefix), asked, asked, sub)


def _parse_offset(text: str) -> int:
    return 0 if text in {_ZERO, "-1"} else parse_offset(text)


def _source_name(raw: bytes, prefix: bytes) -> str:
    """The name behind the path of a stream's URL, or behind the URL itself."""
    path = urlsplit(raw).path if b"://" in raw else raw
    path = path.removeprefix(prefix)
    if path.startswith(STREAM_PREFIX):
        return parse_flat_path(path[len(STREAM_PREFIX) :])
    bucket, slash, stream = path.removeprefix(b"/").partition(b"/")
    if not slash:
        raise InvalidRequestError(
            "Stream-Forked-From is the path of a stream's URL, such as /v1/stream/a or /demo1/a."
        )
    bucket_id, stream_id = decode_segment(bucket), decode_segment(stream)
    check_bucket_id(bucket_id)
    check_stream_id(bucket_id, stream_id)
    return f"{bucket_id}/{stream_id}"


async def resolve_fork(app: App, asked: ForkRequest) -> ForkRequest:
    """The same with the offset where the fork starts, which is between messages if it matters."""
    assert asked.offset is not None, "without an offset there is nothing to resolve"
    try:
        source = app.shard.find(asked.name)
    except StreamDeletedError as error:
        raise ForkSourceDeletedError(error.message) from None
    check_offset(source, asked.offset)
    if source.media == JSON and not await answer_of(
        partial(is_boundary, app.shard.reader, source, asked.offset)
    ):
        raise InvalidOffsetError(f"Offset {asked.offset:020d} is inside a JSON message.")
    offset = asked.offset
    if asked.sub_offset:
        offset = await _behind(app, source, offset, asked.sub_offset)
    return ForkRequest(asked.name, offset, asked.asked_offset, asked.sub_offset, source.number)


async def _behind(app: App, source: Stream, offset: int, sub_offset: int) -> int:
    """The offset so many JSON messages, or so many bytes of the next append, further on."""
    until = min(source.tail, offset + 2 * app.settings.http.body_bytes_max)
    ends = await answer_of(partial(message_ends, app.shard.reader, source, offset, until))
    if source.media == JSON:
        if sub_offset <= len(ends):
            return int(ends[sub_offset - 1])
    elif ends and offset + sub_offset <= ends[0]:
        return offset + sub_offset
    raise InvalidOffsetError(
        f"Stream-Fork-Sub-Offset {sub_offset} is past what follows offset {offset:020d}."
    )
