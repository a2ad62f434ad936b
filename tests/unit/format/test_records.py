"""The record codec: every record comes back, and a body that does not add up is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format.records import (
    RECORDS_MAX,
    Kind,
    Record,
    StreamMeta,
    decode,
    encode,
    stream_number,
)
from holdfast.protocol.producer import DIGEST_BYTES, NUMBER_MAX, Producer

HEAD_BYTES = 24

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
producers = st.builds(
    Producer,
    st.binary(min_size=1, max_size=255),
    st.integers(0, NUMBER_MAX),
    st.integers(0, NUMBER_MAX),
    st.just(b"") | st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES),
)
text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
metas = st.builds(
    StreamMeta,
    text,
    text,
    st.none() | st.integers(0, 10**10),
    st.none() | i64,
)
records = st.builds(
    Record,
    st.sampled_from(Kind).map(int),
    u64,
    i64,
    st.binary(max_size=200),
    st.booleans(),
    st.none() | producers,
    st.none() | st.binary(min_size=1, max_size=255),
    st.none() | metas,
)
bodies = st.lists(records, min_size=1, max_size=4).map(
    lambda batch: b"".join(encode(record) for record in batch)
)


@given(records)
def test_round_trip_of_one_record(record):
    assert list(decode(encode(record))) == [record]


@given(st.lists(records, max_size=8))
def test_round_trip_of_a_batch(batch):
    assert list(decode(b"".join(encode(record) for record in batch))) == batch


def test_empty_body_has_no_records():
    assert list(decode(b"")) == []


def test_absent_and_empty_are_different():
    absent = Record(Kind.APPEND, 1, 2)
    empty = Record(Kind.APPEND, 1, 2, seq=b"")
    assert list(decode(encode(absent) + encode(empty))) == [absent, empty]


@given(records)
def test_decoded_fields_are_values_of_their_own(record):
    (decoded,) = decode(encode(record))
    assert type(decoded.payload) is bytes
    assert decoded.producer is None or type(decoded.producer) is Producer
    assert decoded.meta is None or type(decoded.meta) is StreamMeta


@given(bodies)
def test_truncated_body_gives_a_prefix_and_then_refuses(body):
    whole = list(decode(body))
    boundaries = {0}
    for record in whole:
        boundaries.add(max(boundaries) + len(encode(record)))
    for size in range(len(body)):
        taken, error = decode_as_far_as_possible(body[:size])
        assert taken == whole[: len(taken)]
        assert isinstance(error, ValueError) != (size in boundaries)


def decode_as_far_as_possible(body):
    taken = []
    try:
        for record in decode(body):
            taken.append(record)
    except ValueError as error:
        return taken, error
    return taken, None


@given(bodies, st.binary(min_size=1, max_size=HEAD_BYTES - 1))
def test_bytes_after_the_last_record_are_refused(body, rest):
    with pytest.raises(ValueError, match="record at byte"):
        list(decode(body + rest))


def with_length(record, length):
    return struct.pack("<I", length) + encode(record)[4:]


def test_length_shorter_than_the_head_is_refused():
    record = Record(Kind.APPEND, 1, 2, b"payload")
    for length in range(HEAD_BYTES - 4):
        with pytest.raises(ValueError, match="does not fit"):
            list(decode(with_length(record, length)))


SECTIONS = Record(
    Kind.CREATE, 1, 2, b"", False, Producer(b"id", 3, 4), b"seq", StreamMeta("a/b", "text/plain")
)


def test_sections_that_are_cut_short_are_refused():
    encoded = encode(SECTIONS)
    for size in range(HEAD_BYTES, len(encoded)):
        with pytest.raises(ValueError, match=r"."):
            list(decode(with_length(SECTIONS, size - 4)[:size]))


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(HEAD_BYTES, id="producer"),
        pytest.param(HEAD_BYTES + 20, id="seq"),
        pytest.param(HEAD_BYTES + 25, id="meta"),
    ],
)
def test_section_longer_than_its_record_is_refused(at):
    encoded = bytearray(encode(SECTIONS))
    encoded[at : at + 2] = b"\xff\xff"
    with pytest.raises(ValueError, match=r"."):
        list(decode(bytes(encoded)))


def test_sections_do_not_reach_into_the_next_record():
    first = Record(Kind.APPEND, 1, 2, b"", seq=b"abc")
    encoded = bytearray(encode(first))
    encoded[HEAD_BYTES : HEAD_BYTES + 2] = struct.pack("<H", 4)
    with pytest.raises(ValueError, match="longer than the record"):
        list(decode(bytes(encoded) + encode(first)))


FLAGS_AT, RESERVED_AT = 5, 6


@pytest.mark.parametrize(
    "record", [Record(Kind.APPEND, 1, 2, b"x"), SECTIONS], ids=["plain", "sections"]
)
@pytest.mark.parametrize("flag", [0x20, 0x40, 0x80])
def test_unknown_flag_is_refused(record, flag):
    encoded = bytearray(encode(record))
    encoded[FLAGS_AT] |= flag
    with pytest.raises(ValueError, match="unknown"):
        list(decode(bytes(encoded)))


def test_digest_without_a_producer_is_refused():
    encoded = bytearray(encode(Record(Kind.APPEND, 1, 2, b"12345678")))
    encoded[FLAGS_AT] |= 0x10
    with pytest.raises(ValueError, match="no producer"):
        list(decode(bytes(encoded)))


@pytest.mark.parametrize(
    "record", [Record(Kind.APPEND, 1, 2, b"x"), SECTIONS], ids=["plain", "sections"]
)
@pytest.mark.parametrize("at", [RESERVED_AT, RESERVED_AT + 1])
def test_reserved_bytes_that_are_not_zero_are_refused(record, at):
    encoded = bytearray(encode(record))
    encoded[at] = 1
    with pytest.raises(ValueError, match="record at byte 0"):
        list(decode(bytes(encoded)))


@given(
    st.integers(1, 2**43 - 1),
    st.integers(0, RECORDS_MAX - 1),
    st.integers(1, 2**43 - 1),
    st.integers(0, RECORDS_MAX - 1),
)
def test_stream_numbers_are_ordered_by_position_and_index(position, index, position2, index2):
    one, other = stream_number(position, index), stream_number(position2, index2)
    assert (one < other) == ((position, index) < (position2, index2))
    assert (one == other) == ((position, index) == (position2, index2))
    assert one < 2**64


def test_layout_is_the_documented_one():
    record = Record(Kind.APPEND, 0x0102, 0x0304, b"hello", True, Producer(b"p", 5, 6), b"s")
    assert encode(record) == (
        struct.pack("<IBBHQq", 20 + 19 + 3 + 5, 2, 0b0111, 0, 0x0102, 0x0304)
        + struct.pack("<HQQ", 1, 5, 6)
        + b"p"
        + struct.pack("<H", 1)
        + b"s"
        + b"hello"
    )
    record.producer = Producer(b"p", 5, 6, b"8 bytes.")
    assert encode(record) == (
        struct.pack("<IBBHQq", 20 + 19 + 3 + 8 + 5, 2, 0b1_0111, 0, 0x0102, 0x0304)
        + struct.pack("<HQQ", 1, 5, 6)
        + b"p"
        + struct.pack("<H", 1)
        + b"s"
        + b"8 bytes."
        + b"hello"
    )
