"""SSE: events as a conforming client reads them, and the parser fed with any pieces."""

import json
import re
from base64 import b64decode
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadAnswerError
from holdfast.protocol import sse
from holdfast.protocol.content import store_form
from holdfast.protocol.sse import (
    HEARTBEAT,
    SseEvent,
    SseParser,
    changes_line_ends,
    control_event,
    data_event,
    with_lengths,
)
from tests.unit.protocol.splits import cut_at, random_cuts, single_bytes, two_pieces

TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"


def parse_event_stream(stream):
    """(event type, data) of every event, as https://html.spec.whatwg.org says."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    lines = re.split(rb"\r\n|\n|\r", stream)
    assert lines.pop() == b"", "the stream ends with the end of a line"
    events = []
    event_type, data = b"", []
    for line in lines:
        if not line:
            if data:
                events.append((event_type or b"message", b"\n".join(data)))
            event_type, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            event_type = value
        elif field == b"data":
            data.append(value)
        else:
            assert field == b"", f"unknown field {field!r}"
    assert not data, "the last event is finished"
    return events


def as_received(payload):
    """A client sees every kind of line end as LF."""
    return re.sub(rb"\r\n|\r", b"\n", payload)


pieces = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b" ", b"  ", b"data: x", b":", b"event: control", b"\x00", b"id: 1"]
    )
    | st.text(st.characters(codec="utf-8"), max_size=5).map(str.encode)
    | st.binary(max_size=3),
    min_size=1,
    max_size=8,
).map(b"".join)


@pytest.mark.spec("base 5.8-23")
@given(pieces)
def test_text_arrives_line_for_line(payload):
    assert parse_event_stream(data_event(payload, TEXT)) == [(b"data", as_received(payload))]


@pytest.mark.spec("base 5.8-23")
@pytest.mark.parametrize(
    "payload",
    [
        b"plain",
        b" one leading space",
        b"  two",
        b"a\n b\n  c",
        b"\n",
        b"\r\n",
        b"\n\n\n",
        b"ends with\n",
        b"\nstarts with",
        b"a\rb\r\nc\nd",
        b"a\n\rb",
        b"event: control\ndata: {}\n\n",
        b": heartbeat\n\n",
        "\N{BYTE ORDER MARK}x \N{GRINNING FACE} \u2028".encode(),
        b"\x85\x0b\x0c\x1c are no line ends",
    ],
)
def test_text_that_could_be_mistaken_arrives_line_for_line(payload):
    assert parse_event_stream(data_event(payload, TEXT)) == [(b"data", as_received(payload))]


@pytest.mark.spec("base 5.8-1", "base 5.8-7")
@given(st.binary(min_size=1, max_size=300))
def test_bytes_arrive_as_base64(payload):
    ((event, data),) = parse_event_stream(data_event(payload, BINARY))
    assert event == b"data"
    assert len(data) % 4 == 0
    assert b64decode(data, validate=True) == payload


json_values = st.recursive(
    st.none() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.spec("base 5.8-23")
@given(
    st.lists(json_values, min_size=1, max_size=4),
    st.none() | st.sampled_from([0, 1, "  ", "\r\n ", "\r"]),
    st.booleans(),
)
def test_json_arrives_as_an_array_of_the_messages(messages, indent, ensure_ascii):
    body = json.dumps(messages, indent=indent, ensure_ascii=ensure_ascii).encode()
    ((event, data),) = parse_event_stream(data_event(store_form(body), JSON))
    assert event == b"data"
    assert json.loads(data) == messages


def test_json_that_starts_with_line_ends_is_one_event():
    body = b'{\r\n "a":\r1,\n\n "b": 2}'
    ((_, data),) = parse_event_stream(data_event(store_form(body), JSON))
    assert json.loads(data) == [{"a": 1, "b": 2}]


@given(st.lists(st.tuples(pieces, st.sampled_from([TEXT, BINARY])), max_size=4))
def test_events_one_after_the_other_stay_apart(payloads):
    stream = b"".join(
        data_event(payload, media)
        + HEARTBEAT
        + control_event(b"%020d" % 7, 3, up_to_date=False, closed=False)
        for payload, media in payloads
    )
    events = parse_event_stream(stream)
    assert [event for event, _ in events] == [b"data", b"control"] * len(payloads)


@pytest.mark.spec("base 5.8-9", "base 5.8-10", "base 5.8-11", "base 5.8-24")
@given(st.integers(0, 2**63 - 1), st.integers(0, 10**12), st.booleans())
def test_control_event_of_an_open_stream(offset, cursor, up_to_date):
    event = control_event(b"%020d" % offset, cursor, up_to_date=up_to_date, closed=False)
    ((name, data),) = parse_event_stream(event)
    expected = {"streamNextOffset": f"{offset:020d}", "streamCursor": str(cursor)}
    if up_to_date:
        expected["upToDate"] = True
    assert name == b"control"
    assert json.loads(data) == expected


@pytest.mark.spec("base 5.8-9", "base 5.8-12", "base 5.8-14")
@pytest.mark.parametrize("up_to_date", [True, False])
def test_control_event_of_a_closed_stream_has_no_cursor(up_to_date):
    event = control_event(b"%020d" % 5, 9, up_to_date=up_to_date, closed=True)
    ((name, data),) = parse_event_stream(event)
    assert name == b"control"
    assert json.loads(data) == {
        "streamNextOffset": "00000000000000000005",
        "upToDate": True,
        "streamClosed": True,
    }


def test_control_event_is_on_one_line_as_the_upstream_reader_wants_it():
    event = control_event(b"%020d" % 5, 9, up_to_date=True, closed=False)
    assert event.startswith(b'event: control\ndata:{"streamNextOffset":')
    assert event.count(b"\n") == 3


@given(st.integers(0, 10**9), st.lists(st.integers(1, 10**9), max_size=5), st.booleans())
def test_control_event_with_lengths_says_the_same_besides(start, lengths, closed):
    event = control_event(b"%020d" % 5, 9, up_to_date=True, closed=closed)
    ends = list(accumulate(lengths, initial=start))[1:]
    ((name, data),) = parse_event_stream(with_lengths(event, start, ends))
    ((_, plain),) = parse_event_stream(event)
    assert name == b"control"
    assert json.loads(data) == json.loads(plain) | {"streamMessageLengths": lengths}


@pytest.mark.parametrize(
    ("stored", "media", "changed"),
    [
        (b"a\nb", "text/plain", False),
        (b"a\rb", "text/plain", True),
        (b"a\r\nb", "text/plain", True),
        (b"a\r\nb", "application/octet-stream", False),
    ],
)
def test_control_event_tells_that_line_ends_were_changed(stored, media, changed):
    assert changes_line_ends(stored, media) is changed
    event = control_event(b"%020d" % 5, 9, up_to_date=True, closed=False)
    said = with_lengths(event, 0, [len(stored)], line_ends_changed=changed)
    ((_, data),) = parse_event_stream(said)
    assert json.loads(data).get("streamLineEndsChanged", False) is changed


def test_heartbeat_is_a_comment():
    assert parse_event_stream(HEARTBEAT) == []
    assert HEARTBEAT.startswith(b":")


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
        monkeypatch.setattr(sse, "EVENT_BYTES_MAX", self.LIMIT)

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
