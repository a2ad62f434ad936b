"""Messages behind their lengths, cut into pieces anywhere."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadAnswerError, InvalidRequestError
from holdfast.protocol import length_prefix
from holdfast.protocol.length_prefix import PREFIX_BYTES, Unframer, frame, frame_all
from tests.unit.protocol.splits import cut_at, random_cuts, single_bytes, two_pieces

MESSAGES = [b"", b"a", b"\x00\x00\x00\x01", b"message " * 40, b""]


def unframed(pieces):
    unframer, found = Unframer(), []
    for piece in pieces:
        found += unframer.feed(piece)
    return found, unframer.pending_bytes


def test_the_length_comes_first_and_is_big_endian():
    assert frame(b"abc") == struct.pack(">I", 3) + b"abc"
    assert frame(b"") == b"\0\0\0\0"
    assert frame(b"x" * 70_000)[:PREFIX_BYTES] == b"\x00\x01\x11\x70"


def test_every_split_into_two_gives_the_same_messages():
    for pieces in two_pieces(frame_all(MESSAGES)):
        assert unframed(pieces) == (MESSAGES, 0)


def test_byte_by_byte_gives_the_same_messages():
    assert unframed(single_bytes(frame_all(MESSAGES))) == (MESSAGES, 0)


@given(st.lists(st.binary(max_size=40), max_size=10), random_cuts)
def test_any_messages_in_any_pieces(messages, cuts):
    assert unframed(cut_at(frame_all(messages), cuts)) == (messages, 0)


def test_a_message_is_given_with_its_last_byte_and_not_before():
    framed = frame(b"four")
    unframer = Unframer()
    for at, byte in enumerate(single_bytes(framed[:-1]), start=1):
        assert unframer.feed(byte) == []
        assert unframer.pending_bytes == at
    assert unframer.feed(framed[-1:]) == [b"four"]
    assert unframer.pending_bytes == 0


def test_what_is_unfinished_is_held_and_counted():
    unframer = Unframer()
    assert unframer.feed(frame(b"one") + frame(b"second")[:7]) == [b"one"]
    assert unframer.pending_bytes == 7
    assert unframer.feed(b"") == []
    assert unframer.feed(b"ond" + b"\0\0") == [b"second"]
    assert unframer.pending_bytes == 2


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b'{"a": 1}', b"\xff\xff\xff\xff"])
def test_what_is_not_framed_is_refused_rather_than_waited_for(data):
    with pytest.raises(BadAnswerError, match="not framed"):
        Unframer().feed(data)


def test_messages_before_something_unframed_do_not_hide_it():
    with pytest.raises(BadAnswerError, match="not framed"):
        Unframer().feed(frame(b"fine") + b"not framed")


def test_the_longest_message_is_the_limit(monkeypatch):
    monkeypatch.setattr(length_prefix, "MESSAGE_BYTES_MAX", 10)
    framed = frame(b"x" * 10)
    assert Unframer().feed(framed) == [b"x" * 10]
    with pytest.raises(InvalidRequestError, match="at most 10 bytes"):
        frame(b"x" * 11)
    # Refused by its length alone, before any of it is held.
    with pytest.raises(BadAnswerError, match="11 bytes"):
        Unframer().feed(struct.pack(">I", 11))
