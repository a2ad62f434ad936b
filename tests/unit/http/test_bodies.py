"""A body as it arrives: its pieces are few, however small they come."""

import asyncio

import pytest

from holdfast.errors import PayloadTooLargeError
from holdfast.http.bodies import BUFFER_BYTES_MAX, BodyBudget, BodyStream
from holdfast.settings import HttpSettings


class Wanted:
    """Counts how often more is asked for."""

    def __init__(self, bytes_max=1 << 30):
        self.asked = 0
        self.stream = BodyStream(bytes_max, BodyBudget(HttpSettings()), self._ask)

    def _ask(self):
        self.asked += 1


def taken(stream):
    """All pieces of a complete body."""

    async def collect():
        return [piece async for piece in stream]

    return asyncio.run(collect())


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_many_small_pieces_are_folded_into_few(size):
    stream = Wanted().stream
    body = b"".join(b"%d," % number for number in range(60_000))
    for at in range(0, len(body), size):
        stream.feed(body[at : at + size])
    assert len(stream._pieces) < 10
    assert sum(map(len, stream._pieces)) == len(body)
    stream.finish()
    pieces = taken(stream)
    assert b"".join(pieces) == body
    assert all(isinstance(piece, bytes) for piece in pieces)


def test_large_pieces_are_not_copied():
    stream = Wanted().stream
    body = [bytes([number]) * 200_000 for number in range(3)]
    for piece in body:
        stream.feed(piece)
    stream.finish()
    assert [id(piece) for piece in taken(stream)] == [id(piece) for piece in body]


def test_small_and_large_pieces_keep_their_order():
    stream = Wanted().stream
    body = [b"a", b"b", bytes(100_000), b"c", b"d", bytes(70_000), bytes(80_000), b"e"]
    for piece in body:
        stream.feed(piece)
    stream.finish()
    assert b"".join(taken(stream)) == b"".join(body)


def test_piece_that_was_taken_is_not_added_to():
    stream = Wanted().stream

    async def take():
        stream.feed(b"one")
        first = await anext(stream)
        stream.feed(b"two")
        return first, await anext(stream)

    assert asyncio.run(take()) == (b"one", b"two")


def test_full_until_there_is_room_again():
    wanted = Wanted()
    stream = wanted.stream
    while not stream.full:
        stream.feed(b"ab" * 500)
    assert stream._buffered > BUFFER_BYTES_MAX

    async def take():
        before = wanted.asked
        while stream.full:
            assert wanted.asked == before
            await anext(stream)
        return wanted.asked - before

    assert asyncio.run(take()) == 1


def test_too_many_small_pieces_are_too_large():
    stream = Wanted(10).stream
    for _ in range(6):
        stream.feed(b"ab")
    with pytest.raises(PayloadTooLargeError):
        taken(stream)
    assert not stream._pieces


@pytest.mark.parametrize("pieces", [1, 20])
def test_whoever_waits_for_room_is_told_that_no_more_is_wanted(pieces):
    """Nothing is taken from a body that has failed, so nothing else would make room."""
    wanted = Wanted()
    stream = wanted.stream
    for _ in range(pieces):
        stream.feed(bytes(100_000))
    was_full, before = stream.full, wanted.asked
    stream.fail()
    assert wanted.asked - before == was_full == (pieces == 20)
    assert not stream.full
    stream.feed(bytes(2 * BUFFER_BYTES_MAX))
    assert not stream.full
