"""SSE encoding, read back by a parser written from the HTML standard, not from our encoder."""

import json
import re
from base64 import b64decode
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.json_mode import store_form
from holdfast.protocol.sse import (
    HEARTBEAT,
    changes_line_ends,
    control_event,
    data_event,
    with_lengths,
)

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
