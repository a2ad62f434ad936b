"""Reading: any sequence of cut reads gives the whole, and cuts fall where they may."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.reading import check_offset, end_of_read, read
from holdfast.engine.state import State
from holdfast.errors import InvalidOffsetError
from holdfast.format.records import Kind, Record, StreamMeta, stream_number

BINARY, TEXT, JSON = "application/octet-stream", "text/plain", "application/json"


def stream_of(chunks, media=BINARY):
    """A published stream with one append per chunk."""
    state = State()
    number = stream_number(1, 0)
    state.apply(Record(Kind.CREATE, number, 0, meta=StreamMeta("b/s", media)), 1, 0)
    for chunk in chunks:
        state.apply(Record(Kind.APPEND, number, 0, chunk), 2, 0)
    return state.by_name["b/s"]


def read_all(stream, bytes_max, start=0):
    """The pieces that reads one after the other give."""
    pieces, offset = [], start
    while offset < stream.tail:
        check_offset(stream, offset)
        end = end_of_read(stream, offset, bytes_max)
        assert offset < end <= stream.tail, "every read gets ahead"
        pieces.append(read(stream, offset, end))
        assert len(pieces[-1]) == end - offset
        offset = end
    return pieces


chunk_lists = st.lists(st.binary(min_size=1, max_size=30), max_size=8)
limits = st.integers(1, 80)
texts = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12), max_size=6)
messages = st.lists(
    st.lists(
        st.binary(min_size=1, max_size=12).map(lambda b: b.replace(b"\x1e", b".")), min_size=1
    ),
    max_size=6,
)


@given(chunk_lists, limits)
def test_reads_with_any_limit_concatenate_to_the_whole(chunks, bytes_max):
    pieces = read_all(stream_of(chunks), bytes_max)
    assert b"".join(pieces) == b"".join(chunks)
    assert all(len(piece) <= bytes_max for piece in pieces)


@given(chunk_lists, st.data())
def test_any_range_gives_its_bytes(chunks, data):
    stream, whole = stream_of(chunks), b"".join(chunks)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    assert read(stream, start, end) == whole[start:end]


@given(chunk_lists, limits, st.data())
def test_reads_may_start_anywhere(chunks, bytes_max, data):
    stream, whole = stream_of(chunks), b"".join(chunks)
    start = data.draw(st.integers(0, len(whole)))
    assert b"".join(read_all(stream, bytes_max, start)) == whole[start:]


@given(chunk_lists, limits)
def test_whole_appends_are_given_where_they_fit(chunks, bytes_max):
    stream = stream_of(chunks)
    ends = {0, *stream.ends}
    offset = 0
    for piece in read_all(stream, bytes_max):
        end = offset + len(piece)
        fits = [at for at in ends if offset < at <= offset + bytes_max]
        if fits:
            assert end == max(fits)
        offset = end


@given(texts, st.integers(4, 60))
def test_text_is_cut_between_characters(appends, bytes_max):
    pieces = read_all(stream_of([text.encode() for text in appends], TEXT), bytes_max)
    assert "".join(piece.decode() for piece in pieces) == "".join(appends)
    assert all(len(piece) <= bytes_max for piece in pieces)


@given(texts, st.integers(1, 3))
def test_text_is_cut_between_characters_even_if_not_one_fits(appends, bytes_max):
    pieces = read_all(stream_of([text.encode() for text in appends], TEXT), bytes_max)
    assert "".join(piece.decode() for piece in pieces) == "".join(appends)


@given(st.binary(min_size=1, max_size=60), limits)
def test_text_that_is_not_utf8_is_read_all_the_same(payload, bytes_max):
    pieces = read_all(stream_of([payload], TEXT), bytes_max)
    assert b"".join(pieces) == payload
    assert all(len(piece) <= max(bytes_max, 4) for piece in pieces)


@given(messages, limits)
def test_json_is_cut_between_messages(appends, bytes_max):
    chunks = [b"".join(message + b"\x1e" for message in append) for append in appends]
    pieces = read_all(stream_of(chunks, JSON), bytes_max)
    assert b"".join(pieces) == b"".join(chunks)
    for piece in pieces:
        assert piece.endswith(b"\x1e")
        assert len(piece) <= bytes_max or piece.count(b"\x1e") == 1


def test_json_message_larger_than_the_limit_is_given_alone():
    stream = stream_of([b"1\x1e" + b"9" * 50 + b"\x1e2\x1e"], JSON)
    assert read_all(stream, 10) == [b"1\x1e", b"9" * 50 + b"\x1e", b"2\x1e"]


@given(messages)
def test_every_message_boundary_is_an_offset_and_nothing_else_is(appends):
    chunks = [b"".join(message + b"\x1e" for message in append) for append in appends]
    stream, whole = stream_of(chunks, JSON), b"".join(chunks)
    for offset in range(len(whole) + 1):
        if offset == 0 or whole[offset - 1] == 0x1E:
            check_offset(stream, offset)
        else:
            with pytest.raises(InvalidOffsetError, match="inside a JSON message"):
                check_offset(stream, offset)


@pytest.mark.parametrize("media", [BINARY, TEXT, JSON])
@pytest.mark.parametrize("chunks", [[], [b"1\x1e"]])
def test_offset_past_the_tail_is_refused(media, chunks):
    stream = stream_of(chunks, media)
    check_offset(stream, stream.tail)
    with pytest.raises(InvalidOffsetError, match="past the tail"):
        check_offset(stream, stream.tail + 1)


def test_read_at_the_tail_is_empty():
    stream = stream_of([b"abc"])
    assert end_of_read(stream, 3, 10) == 3
    assert read(stream, 3, 3) == b""
    assert read(stream_of([]), 0, 0) == b""


def test_read_of_one_whole_append_copies_nothing():
    chunk = b"x" * 1000
    stream = stream_of([b"a", chunk, b"b"])
    assert read(stream, 1, 1001) is chunk
