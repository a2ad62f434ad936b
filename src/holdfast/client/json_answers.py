"""Answers of JSON as typed values: one, or one for each line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar

import msgspec

from holdfast.client.calls import Calls
from holdfast.errors import BadAnswerError

T = TypeVar("T")


def decode(body: bytes, kind: type[T]) -> T:
    """The value in a body."""
    return _decoded(msgspec.json.Decoder(kind).decode, body)


async def lines(
    calls: Calls, url: str, params: Mapping[str, str], kind: type[T]
) -> AsyncIterator[T]:
    """The lines of JSON in an answer, as they arrive."""
    decode_line = msgspec.json.Decoder(kind).decode
    rest = b""
    async with calls.stream("GET", url, params=params) as answer:
        async for piece in answer.chunks():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                if line:
                    yield _decoded(decode_line, line)
    if rest.strip():
        yield _decoded(decode_line, rest)


def _decoded(decoder: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decoder(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadAnswerError(f"The answer cannot be understood: {error}.") from None
