"""GET with `live=sse`: events as they happen."""

import base64
import json

import pytest

from tests.http.streams import BINARY, JSON, TEXT, Event, check_error, data_of


def following(events, text: str) -> list[Event]:
    """Events up to the control event after the data event that holds `text`."""
    found = []
    for event in events:
        found.append(event)
        if event.type == "control" and any(text in data for data in data_of(found)):
            return found
    raise AssertionError(f"the connection ended before {text!r}: {found}")


@pytest.mark.spec("base 5.8-2", "base 5.8-9", "base 5.8-10", "base 5.8-11", "base 5.8-22")
def test_history_then_control(new_stream) -> None:
    stream = new_stream(body=b"hello")
    with stream.sse() as events:
        assert events.response.status_code == 200
        assert events.response.headers["Content-Type"] == "text/event-stream"
        data, control = events.next(), events.next()
    assert data == Event("data", "hello")
    assert control.type == "control"
    assert control.json["streamNextOffset"] == stream.tail()
    assert control.json["streamCursor"].isdigit()
    assert control.json["upToDate"] is True
    assert "streamClosed" not in control.json


def test_headers_fit_a_stream_of_events(new_stream) -> None:
    with new_stream(body=b"x").sse() as events:
        headers = events.response.headers
        assert headers["Cache-Control"] == "no-cache"
        assert "Content-Length" not in headers
        assert "ETag" not in headers
        assert "Stream-Next-Offset" not in headers


def test_bytes_on_the_wire_are_what_clients_parse(new_stream) -> None:
    stream = new_stream(body=b"hello", stream_closed="true")
    with stream.sse() as events:
        wire = b"".join(events.response.iter_bytes())
    assert wire == (
        b"event: data\ndata:hello\n\n"
        b'event: control\ndata:{"streamNextOffset":"00000000000000000005",'
        b'"upToDate":true,"streamClosed":true}\n\n'
    )


@pytest.mark.spec("base 5.8-22", "base 5.8-9")
def test_new_data_follows_as_it_is_appended(new_stream) -> None:
    stream = new_stream(body=b"zero")
    with stream.sse() as events:
        events.until_up_to_date()
        for text in ("one", "two", "three"):
            stream.append(text.encode())
            data, control = following(events, text)
            assert data == Event("data", text)
            assert control.json["streamNextOffset"] == stream.tail()
            assert control.json["upToDate"] is True


def test_reader_resumes_from_the_offset_of_a_control_event(new_stream) -> None:
    stream = new_stream(body=b"one")
    with stream.sse() as events:
        offset = events.until_up_to_date()[-1].json["streamNextOffset"]
    stream.append(b"two")
    with stream.sse(offset) as events:
        assert "".join(data_of(events.until_up_to_date())) == "two"


@pytest.mark.spec("base 5.8-22", "base 5.8-23")
def test_json_data_is_an_array_followed_by_control(new_stream) -> None:
    stream = new_stream(JSON, b'[{"n":1},{"n":2}]')
    stream.append(b'{"n":3}')
    with stream.sse() as events:
        found = events.until_up_to_date()
    assert [event.type for event in found] == ["data", "control"] * (len(found) // 2)
    messages = [message for data in data_of(found) for message in json.loads(data)]
    assert messages == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.spec("base 5.8-23")
@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "a\rb",
        "a\r\nb",
        "\n",
        "a\n\nb",
        "a\n",
        "event: control\ndata:{}\n\nx",
        " lead",
        "ü\u2028x",
    ],
)
def test_text_with_line_breaks_stays_one_event(new_stream, text) -> None:
    stream = new_stream(body=text.encode())
    with stream.sse() as events:
        data, control = events.next(), events.next()
    assert data == Event("data", text.replace("\r\n", "\n").replace("\r", "\n"))
    assert control.type == "control"
    assert control.json["streamNextOffset"] == stream.tail()


def test_line_break_at_an_append_boundary_is_no_event_boundary(new_stream) -> None:
    stream = new_stream(body=b"a\r")
    with stream.sse() as events:
        events.until_up_to_date()
        stream.append(b"\nevent: control")
        data, control = following(events, "event: control")
    assert data == Event("data", "\nevent: control")
    assert control.json["upToDate"] is True


@pytest.mark.spec("base 5.8-23")
def test_json_with_line_breaks_stays_one_event(new_stream) -> None:
    with new_stream(JSON, b'{\r\n "a":\n "b\\n"}').sse() as events:
        assert events.next().json == [{"a": "b\n"}]


@pytest.mark.spec("base 5.8-1", "base 5.8-3", "base 5.8-7", "base 5.8-24")
@pytest.mark.parametrize("content_type", [BINARY, "image/png", "application/x-ndjson"])
@pytest.mark.parametrize("size", [1, 2, 3, 256, 5000])
def test_other_types_are_base64(new_stream, content_type, size) -> None:
    payload = (bytes(range(256)) * 20)[:size]
    stream = new_stream(content_type, payload)
    with stream.sse() as events:
        assert events.response.headers["Stream-SSE-Data-Encoding"] == "base64"
        data, control = events.next(), events.next()
    text = data.data.replace("\n", "")
    assert len(text) % 4 == 0
    assert base64.b64decode(text, validate=True) == payload
    assert control.json["streamNextOffset"] == stream.tail()


@pytest.mark.spec("base 5.8-3")
@pytest.mark.parametrize(
    "content_type", [TEXT, "text/html; charset=utf-8", JSON, "Application/JSON"]
)
def test_text_and_json_are_not_base64(new_stream, content_type) -> None:
    with new_stream(content_type, b"1").sse() as events:
        assert "Stream-SSE-Data-Encoding" not in events.response.headers


@pytest.mark.spec("base 5.8-11")
def test_empty_stream_starts_with_control(new_stream) -> None:
    with new_stream().sse() as events:
        control = events.next()
    assert control.json["streamNextOffset"] == "0" * 20
    assert control.json["upToDate"] is True


def test_reader_with_a_limit_gets_small_events_beside_one_without(new_stream) -> None:
    stream = new_stream()
    with stream.sse() as events, stream.sse(max_bytes=4) as small:
        events.until_up_to_date()
        small.until_up_to_date()
        for _ in range(3):
            stream.append(b"abcdefghij")
            assert data_of(events.until_up_to_date()) == ["abcdefghij"]
            assert data_of(small.until_up_to_date()) == ["abcd", "efgh", "ij"]


@pytest.mark.spec("base 5.8-11", "base 5.8-22")
def test_only_the_last_control_of_a_long_history_is_up_to_date(new_stream) -> None:
    stream = new_stream(TEXT, b"x" * 3_000_000)
    with stream.sse() as events:
        found = events.until_up_to_date()
    assert sum(map(len, data_of(found))) == 3_000_000
    assert [event.type for event in found] == ["data", "control"] * (len(found) // 2)
    offsets = [event.json["streamNextOffset"] for event in found[1::2]]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == stream.tail()


@pytest.mark.spec("base 6-19", "base 6-20", "base 6-21")
def test_now_starts_at_the_tail(new_stream) -> None:
    stream = new_stream(body=b"history")
    with stream.sse("now") as events:
        control = events.next()
        assert control.type == "control"
        assert control.json["streamNextOffset"] == stream.tail()
        assert control.json["upToDate"] is True
        stream.append(b"news")
        assert data_of(following(events, "news")) == ["news"]


@pytest.mark.spec("base 5.8-12", "base 5.8-14", "base 5.8-15")
def test_end_of_a_closed_stream_ends_the_connection(new_stream) -> None:
    stream = new_stream(body=b"all", stream_closed="true")
    with stream.sse() as events:
        *_, last = events
    assert last.type == "control"
    assert last.json["streamClosed"] is True
    assert last.json["streamNextOffset"] == stream.tail()
    assert "streamCursor" not in last.json


@pytest.mark.spec("base 5.8-17", "base 5.8-18", "base 6-22", "base 6-23", "base 6-24")
@pytest.mark.parametrize("offset", ["tail", "now"])
def test_tail_of_a_closed_stream_is_one_control_event(new_stream, offset) -> None:
    stream = new_stream(body=b"all", stream_closed="true")
    with stream.sse(stream.tail() if offset == "tail" else "now") as events:
        found = list(events)
    assert [event.type for event in found] == ["control"]
    assert found[0].json == {
        "streamNextOffset": stream.tail(),
        "upToDate": True,
        "streamClosed": True,
    }


@pytest.mark.spec("base 5.8-14", "base 5.8-15")
@pytest.mark.parametrize("final", [b"the end", None], ids=["with data", "without"])
def test_closing_reaches_a_live_reader_and_ends_it(new_stream, final) -> None:
    stream = new_stream(body=b"start")
    with stream.sse() as events:
        events.until_up_to_date()
        if final is None:
            stream.close()
        else:
            stream.append(final, stream_closed="true")
        found = list(events)
    assert data_of(found) == ([final.decode()] if final else [])
    assert found[-1].json["streamClosed"] is True
    assert found[-1].json["streamNextOffset"] == stream.tail()


@pytest.mark.spec("base 8.1-10", "base 8.1-12")
def test_echoed_cursor_gets_a_greater_one(new_stream) -> None:
    stream = new_stream(body=b"x")
    with stream.sse() as events:
        cursor = int(events.until_up_to_date()[-1].json["streamCursor"])
    with stream.sse(cursor=cursor) as events:
        assert int(events.until_up_to_date()[-1].json["streamCursor"]) > cursor


@pytest.mark.spec("base 5.8-25")
def test_bad_requests_are_refused_before_any_event(new_stream, absent) -> None:
    stream = new_stream(body=b"x")
    check_error(stream.get({"live": "sse"}), 400, about="offset")
    check_error(stream.get({"live": "sse", "offset": "nonsense"}), 400, "invalid_offset")
    check_error(absent().get({"live": "sse", "offset": "-1"}), 404, "stream_not_found")


@pytest.mark.spec("base 5.8-19", "base 8.2-1")
def test_connection_is_closed_after_its_lifetime(start_server, stream_on) -> None:
    stream = stream_on(start_server(sse_lifetime=0.5), body=b"x")
    with stream.sse() as events:
        found = list(events)
    assert found[-1].type == "control"
    assert "streamClosed" not in found[-1].json
    with stream.sse(found[-1].json["streamNextOffset"]) as events:
        assert events.next().json["upToDate"] is True


@pytest.mark.spec("base 5.8-19")
def test_lifetime_is_about_a_minute_unless_set(server) -> None:
    from holdfast.settings import Settings

    assert 50 <= Settings().read.sse_lifetime_s <= 70


def test_silence_is_broken_by_comments(start_server, stream_on) -> None:
    stream = stream_on(start_server(sse_heartbeat=0.2, sse_lifetime=1.5), body=b"x")
    with stream.sse() as events:
        found = list(events)
    assert data_of(found) == ["x"]
    assert len(events.comments) >= 2
