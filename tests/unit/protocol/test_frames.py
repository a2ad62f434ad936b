"""Frames of proxy streams: their bytes, and the parser at every split and from every state."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadAnswerError
from holdfast.protocol.frames import (
    ABORT,
    COMPLETE,
    DATA,
    ERROR,
    JSON_BYTES_MAX,
    RESPONSE_ID_MAX,
    START,
    ErrorInfo,
    Frame,
    FrameParser,
    ParserState,
    StartInfo,
    decode_error,
    decode_start,
    encode_error,
    encode_frame,
    encode_start,
)
from tests.unit.protocol.splits import cut_at, random_cuts, single_bytes, two_pieces

FRAMES = [
    encode_start(1, 200, {"content-type": "text/plain; charset=ü"}),
    encode_frame(DATA, 1, b"hello"),
    encode_start(2, 204, {}),
    encode_frame(DATA, 2),
    encode_frame(DATA, 2, b"D\x00\x00\x00\x01\x00\x00\x00\x00"),
    encode_frame(COMPLETE, 1),
    encode_error(2, "UPSTREAM_ERROR", "It broke off."),
    encode_frame(ABORT, RESPONSE_ID_MAX),
]
STREAM = b"".join(FRAMES)
BOUNDARIES = {len(b"".join(FRAMES[:count])) for count in range(len(FRAMES) + 1)}

ids = st.integers(1, RESPONSE_ID_MAX)
frames = st.one_of(
    st.builds(lambda number, data: encode_frame(DATA, number, data), ids, st.binary(max_size=60)),
    st.builds(encode_frame, st.sampled_from([COMPLETE, ABORT]), ids),
    st.builds(encode_start, ids, st.integers(200, 299), st.dictionaries(st.text(), st.text())),
    st.builds(encode_error, ids, st.text(), st.text()),
)


def parsed(pieces, parser=None):
    """The frames of a stream that comes in these pieces, the parts of Data frames put together."""
    parser = parser or FrameParser()
    found = []
    for piece in pieces:
        found += parser.feed(piece)
    return whole(found)


def whole(found):
    """Neighbouring parts of Data frames put together: how they came says nothing."""
    joined = []
    for frame in found:
        last = joined[-1] if joined else None
        if last and frame.type == last.type == DATA and frame.response_id == last.response_id:
            joined[-1] = last._replace(payload=last.payload + frame.payload)
        else:
            joined.append(frame)
    return joined


@pytest.mark.spec("proxy 5.1-1", "proxy 5.2-1")
def test_bytes_of_frames():
    assert encode_frame(DATA, 1, b"abc") == b"D\x00\x00\x00\x01\x00\x00\x00\x03abc"
    assert encode_frame(COMPLETE, 0x01020304) == b"C\x01\x02\x03\x04\x00\x00\x00\x00"
    assert encode_frame(ABORT, 2) == b"A\x00\x00\x00\x02\x00\x00\x00\x00"
    start = b'{"status":200,"headers":{"a":"b"}}'
    assert encode_start(1, 200, {"a": "b"}) == b"S\x00\x00\x00\x01\x00\x00\x00" + b"\x22" + start
    error = b'{"code":"X","message":"y"}'
    assert encode_error(1, "X", "y") == b"E\x00\x00\x00\x01\x00\x00\x00\x1a" + error


def test_what_frames_say():
    start, *_, error, _ = parsed([STREAM])
    assert decode_start(start.payload) == StartInfo(200, {"content-type": "text/plain; charset=ü"})
    assert decode_error(error.payload) == ErrorInfo("UPSTREAM_ERROR", "It broke off.")


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[]", b"nonsense", b'{"status":"x","headers":{}}', b"[" * 100_000]
)
def test_what_is_no_start(payload):
    with pytest.raises(BadAnswerError, match="Start"):
        decode_start(payload)
    with pytest.raises(BadAnswerError, match="Error"):
        decode_error(payload)


def test_further_fields_are_passed_over():
    """A later version may say more."""
    assert decode_start(b'{"status":200,"headers":{},"at":1}') == StartInfo(200, {})


@pytest.mark.spec("proxy 4.5-3")
def test_at_every_split():
    expected = parsed([STREAM])
    assert [frame.type for frame in expected] == [b"S", b"D", b"S", b"D", b"C", b"E", b"A"]
    for pieces in two_pieces(STREAM):
        assert parsed(pieces) == expected
    assert parsed(single_bytes(STREAM)) == expected
    for first, *_ in two_pieces(STREAM):
        parser = FrameParser()
        parser.feed(first)
        assert parser.is_between_frames == (len(first) in BOUNDARIES)
        assert parser.boundary == max(at for at in BOUNDARIES if at <= len(first))


@given(st.lists(frames, max_size=12), random_cuts)
def test_any_frames_in_any_pieces(made, cuts):
    stream = b"".join(made)
    parser = FrameParser()
    found = parsed(cut_at(stream, cuts), parser)
    assert found == parsed([stream])
    assert parser.boundary == len(stream)
    assert parser.is_between_frames
    for frame in found:
        if frame.type == START:
            assert isinstance(decode_start(frame.payload), StartInfo)
        elif frame.type == ERROR:
            assert isinstance(decode_error(frame.payload), ErrorInfo)


def test_parts_of_a_body_do_not_wait_for_the_rest():
    parser = FrameParser()
    head, body = FRAMES[1][:9], FRAMES[1][9:]
    assert parser.feed(head) == []
    assert parser.feed(body[:2]) == [Frame(DATA, 1, b"he")]
    assert parser.feed(body[2:]) == [Frame(DATA, 1, b"llo")]


@pytest.mark.spec("proxy 4.5-5", "proxy 5.4-1")
def test_another_parser_goes_on_from_a_saved_state():
    expected = parsed([STREAM])
    for first, second in two_pieces(STREAM):
        parser = FrameParser()
        found = parser.feed(first)
        saved = msgspec.json.encode(parser.state())
        again = FrameParser(msgspec.json.decode(saved, type=ParserState))
        found += again.feed(second)
        assert whole(found) == expected
        assert again.boundary == len(STREAM)


@pytest.mark.spec("proxy 4.5-5", "proxy 5.4-1")
def test_another_parser_goes_on_from_a_boundary():
    expected = parsed([STREAM])
    for first, _ in two_pieces(STREAM):
        parser = FrameParser()
        parser.feed(first)
        complete = parsed([STREAM[: parser.boundary]])
        assert whole(complete + FrameParser().feed(STREAM[parser.boundary :])) == expected


@pytest.mark.spec("proxy 5.4-2")
def test_unknown_types_are_refused():
    for number in set(range(256)) - set(b"SDCAE"):
        with pytest.raises(BadAnswerError, match="begins no frame"):
            FrameParser().feed(bytes([number]) + FRAMES[1][1:])


@pytest.mark.spec("proxy 5.4-2")
@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"D\x00\x00\x00\x00\x00\x00\x00\x01", "response 0"),
        (b"C\x00\x00\x00\x01\x00\x00\x00\x01", "payload"),
        (b"A\x00\x00\x00\x01\x00\x00\x00\x01", "payload"),
        (b"S\x00\x00\x00\x01" + (JSON_BYTES_MAX + 1).to_bytes(4, "big"), "more than"),
        (b"E\x00\x00\x00\x01\xff\xff\xff\xff", "more than"),
    ],
)
def test_heads_that_cannot_be(head, message):
    with pytest.raises(BadAnswerError, match=message):
        FrameParser().feed(head)


@given(st.binary(max_size=200) | st.builds(bytes.__add__, frames, st.binary()), random_cuts)
def test_any_bytes_are_frames_or_refused(data, cuts):
    """The same way, however they come."""

    def outcome(pieces):
        try:
            return parsed(pieces)
        except BadAnswerError as error:
            return str(error)

    assert outcome(cut_at(data, cuts)) == outcome([data])


def test_a_long_body_is_not_held():
    parser = FrameParser()
    parser.feed(b"D\x00\x00\x00\x01\xff\xff\xff\xff")
    for _ in range(3):
        assert parser.feed(b"x" * 1000) == [Frame(DATA, 1, b"x" * 1000)]
        assert parser.state().held == b""
