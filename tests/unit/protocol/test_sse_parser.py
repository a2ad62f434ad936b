"""The client's SSE parser: the same events however the bytes are cut, and only finished ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadAnswerError
from holdfast.protocol import sse_parser
from holdfast.protocol.sse_parser import SseEvent, SseParser
from tests.unit.protocol.splits import cut_at, random_cuts, single_bytes, two_pieces
from tests.unit.protocol.test_sse import parse_event_stream

LINES = [
    b": a comment",
    b"event: data",
    b"data: first",
    b"data:second",
    b"data:  two spaces",
    b"",
    b"data",
    b"",
    b"event: nothing",
    b"",
    b"id: 7",
    b"retry: 10",
    b"newer: field",
    b"data: has an id",
    b"",
    b"data:",
    b"data:",
    b"",
    b"",
    b"event:control",
    b'data:{"a":"b: c"}',
    b"",
    b"event: data",
    b"data: unfinished",
]
EVENTS = [
    SseEvent("data", b"first\nsecond\n two spaces", ""),
    SseEvent("message", b"", ""),
    SseEvent("message", b"has an id", "7"),
    SseEvent("message", b"\n", "7"),
    SseEvent("control", b'{"a":"b: c"}', "7"),
]
ENDS = {"LF": b"\n", "CR": b"\r", "CRLF": b"\r\n"}


def parsed(pieces):
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
class TestSplits:
    @pytest.mark.spec("base 5.8-5")
    def test_in_one_piece(self, end):
        assert parsed([end.join(LINES)]) == EVENTS

    def test_cut_in_two_at_every_byte(self, end):
        for pieces in two_pieces(end.join(LINES)):
            assert parsed(pieces) == EVENTS, pieces

    def test_byte_by_byte(self, end):
        assert parsed(single_bytes(end.join(LINES))) == EVENTS

    def test_byte_by_byte_with_nothing_in_between(self, end):
        pieces = [each for byte in single_bytes(end.join(LINES)) for each in (byte, b"")]
        assert parsed(pieces) == EVENTS

    def test_event_comes_with_its_empty_line_at_the_latest(self, end):
        parser = SseParser()
        for byte in single_bytes(b"data: x" + end):
            assert parser.feed(byte) == []
        assert parser.feed(end) == [SseEvent("message", b"x", "")]

    def test_byte_order_mark_is_passed_over_wherever_it_is_cut(self, end):
        for pieces in two_pieces(b"\xef\xbb\xbf" + end.join(LINES)):
            assert parsed(pieces) == EVENTS, pieces

    def test_byte_order_mark_is_passed_over_before_a_first_field(self, end):
        stream = b"\xef\xbb\xbfdata: x" + end * 2
        assert parsed(single_bytes(stream)) == [SseEvent("message", b"x", "")]


def test_line_ends_may_be_mixed():
    stream = b"event: a\rdata: 1\r\ndata: 2\n\r\nevent: b\ndata: 3\r\rdata: 4\r\n\r"
    events = [SseEvent("a", b"1\n2", ""), SseEvent("b", b"3", ""), SseEvent("message", b"4", "")]
    for pieces in two_pieces(stream):
        assert parsed(pieces) == events, pieces
    assert parsed(single_bytes(stream)) == events


def test_crlf_cut_in_the_middle_is_one_line_end():
    assert parsed([b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"]) == [
        SseEvent("message", b"a\nb", "")
    ]


def test_lf_that_starts_a_piece_counts_unless_a_cr_was_before():
    assert parsed([b"data: a", b"\n", b"\n"]) == [SseEvent("message", b"a", "")]
    assert parsed([b"data: a\r", b"\n"]) == []


def test_byte_order_mark_elsewhere_is_part_of_a_name():
    assert parsed([b"data: a\n\n\xef\xbb\xbfdata: b\n\n"]) == [SseEvent("message", b"a", "")]
    assert parsed([b"\xef\xbb\xbf\xef\xbb\xbfdata: b\n\n"]) == []


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"data: x",
        b"data: x\n",
        b"event: data\ndata: x\r\n",
        b": heartbeat\n\n",
        b"event: data\n\n",
        b"id: 5\n\n",
        b"retry: 5\n\n\n\n",
        b"dat: x\n\n",
        b"Data: x\n\n",
        b" data: x\n\n",
    ],
)
def test_what_is_no_finished_event_gives_none(stream):
    for pieces in two_pieces(stream):
        assert parsed(pieces) == []


def test_event_without_data_leaves_no_kind_behind():
    assert parsed([b"event: control\n\ndata: x\n\n"]) == [SseEvent("message", b"x", "")]


def test_last_kind_counts():
    assert parsed([b"event: a\nevent: b\ndata: x\n\n"]) == [SseEvent("b", b"x", "")]


def test_id_stays_and_one_with_a_zero_byte_is_passed_over():
    stream = b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\nid\ndata: c\n\n"
    assert [event.id for event in parsed([stream])] == ["1", "1", ""]


def test_only_line_feeds_and_carriage_returns_end_lines():
    data = b"\x0b\x0c\x1c\x1d\x1e\x85\xc2\x85\xe2\x80\xa8"
    assert parsed([b"data: " + data + b"\n\n"]) == [SseEvent("message", data, "")]


def test_one_space_is_taken_away_and_no_tab():
    stream = b"data:\ta\n\ndata:  b\n\n"
    assert [event.data for event in parsed([stream])] == [b"\ta", b" b"]


stream_pieces = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"\n\n", b"data", b"data:", b"data: ", b":", b" "])
    | st.sampled_from([b"event: x", b"data: y\r", b"\xef\xbb\xbf", b"data: a\n\n"])
    | st.binary(max_size=3),
    max_size=20,
).map(b"".join)


@given(stream_pieces, random_cuts)
def test_any_bytes_in_any_pieces_give_what_they_give_in_one(stream, cuts):
    assert parsed(cut_at(stream, cuts)) == parsed([stream])


known_lines = st.lists(
    st.sampled_from([b"", b"", b"data:x", b"data: y", b"data", b"event: e", b"event:f", b": c"]),
    max_size=15,
)


@given(known_lines, st.sampled_from(sorted(ENDS.values())), random_cuts)
def test_agrees_with_a_parser_written_from_the_standard(lines, end, cuts):
    stream = end.join([*lines, b"", b"", b""])
    expected = [(kind.decode(), data) for kind, data in parse_event_stream(stream)]
    assert [(event.kind, event.data) for event in parsed(cut_at(stream, cuts))] == expected


class TestLimit:
    LIMIT = 100

    @pytest.fixture(autouse=True)
    def low_limit(self, monkeypatch):
        monkeypatch.setattr(sse_parser, "EVENT_BYTES_MAX", self.LIMIT)

    def test_line_that_never_ends_is_refused(self):
        parser = SseParser()
        parser.feed(b"data: " + b"x" * (self.LIMIT - 6))
        with pytest.raises(BadAnswerError, match="longer than 100 bytes"):
            parser.feed(b"x")

    def test_event_that_never_ends_is_refused(self):
        parser = SseParser()
        for _ in range(self.LIMIT // 8):
            parser.feed(b"data: x\n")
        with pytest.raises(BadAnswerError, match="longer than 100 bytes"):
            parser.feed(b"data: x\n")

    def test_events_up_to_it_may_follow_one_another_for_ever(self):
        parser = SseParser()
        event = b"data: " + b"x" * (self.LIMIT - 8) + b"\n\n"
        assert len(event) == self.LIMIT
        assert [len(parser.feed(event)) for _ in range(10)] == [1] * 10
        assert sum(len(parser.feed(byte)) for _ in range(10) for byte in single_bytes(event)) == 10

    def test_heartbeats_do_not_add_up(self):
        parser = SseParser()
        for _ in range(self.LIMIT):
            assert parser.feed(b": heartbeat\n\n") == []

    def test_what_was_begun_behind_an_event_counts(self):
        parser = SseParser()
        parser.feed(b"data: a\n\ndata: " + b"x" * 80)
        with pytest.raises(BadAnswerError, match="longer than 100 bytes"):
            parser.feed(b"x" * 20)


class TestUnfinished:
    """Another parser goes on as the first one would have, wherever that is given up."""

    @pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
    @pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
    def test_at_every_byte(self, end, mark):
        for first, rest in two_pieces(mark + end.join(LINES)):
            parser = SseParser()
            events = parser.feed(first)
            again = SseParser()
            assert again.feed(parser.unfinished()) == []
            assert events + again.feed(rest) == EVENTS, first
            assert again.unfinished() == parsed_to_the_end(first, rest), first

    def test_what_looks_like_a_byte_order_mark_is_none(self):
        parser = SseParser()
        parser.feed(b": begun\n")
        again = SseParser()
        assert again.feed(parser.unfinished() + b"\xef\xbb\xbfdata: x\n\n") == []

    def test_of_nothing_is_nothing(self):
        assert SseParser().unfinished() == b""


def parsed_to_the_end(*pieces):
    parser = SseParser()
    for piece in pieces:
        parser.feed(piece)
    return parser.unfinished()
