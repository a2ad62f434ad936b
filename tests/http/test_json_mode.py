"""Streams of `application/json`: messages rather than bytes."""

import json

import pytest

from tests.http.streams import JSON, check_error


@pytest.mark.spec("base 7.1-2", "base 7.1-3", "base 7.1-7")
@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ('{"event": "created"}', [{"event": "created"}]),
        ('[{"event": "a"}, {"event": "b"}]', [{"event": "a"}, {"event": "b"}]),
        ("[[1,2], [3,4]]", [[1, 2], [3, 4]]),
        ("[[[1,2,3]]]", [[[1, 2, 3]]]),
        ("[[]]", [[]]),
        ("[1]", [1]),
        ("1", [1]),
        ('"text"', ["text"]),
        ("null", [None]),
        ("[null, false]", [None, False]),
        (" \n[ 1 , 2 ]\t ", [1, 2]),
        ('["a,b]", "\\u001e", "\u2028"]', ["a,b]", "\x1e", "\u2028"]),
    ],
)
def test_one_level_of_an_array_is_taken_apart(new_stream, body, messages) -> None:
    stream = new_stream(JSON)
    response = stream.append(body.encode())
    assert response.status_code == 204
    read = stream.read()
    assert read.headers["Content-Type"] == JSON
    assert read.json() == messages
    assert new_stream(JSON, body.encode()).read().json() == messages


@pytest.mark.spec("base 7.1-1", "base 7.1-2")
def test_messages_of_all_appends_are_one_array(new_stream) -> None:
    stream = new_stream(JSON, b"[1,2]")
    after_three = stream.append(b"3").headers["Stream-Next-Offset"]
    stream.append(b'[[4],{"5":6}]')
    assert stream.read().json() == [1, 2, 3, [4], {"5": 6}]
    assert stream.read(after_three).json() == [[4], {"5": 6}]


@pytest.mark.spec("base 7.1-1")
def test_messages_keep_their_exact_text(new_stream) -> None:
    numbers = b"[1.0, 1e2, 12345678901234567890123, 0.1000]"
    stream = new_stream(JSON, numbers)
    assert stream.read().content == b"[1.0,1e2,12345678901234567890123,0.1000]"


@pytest.mark.spec("base 7.1-8", "base 7.1-9", "base 6-11")
@pytest.mark.parametrize("body", [None, b"[]", b" [ ] "], ids=["no body", "array", "spaced array"])
def test_stream_without_messages_is_an_empty_array(new_stream, body) -> None:
    stream = new_stream(JSON, body)
    assert stream.tail() == "0" * 20
    for offset in (None, "-1", "now", "0" * 20):
        response = stream.read(offset)
        assert response.status_code == 200
        assert response.headers["Content-Type"] == JSON
        assert response.content == b"[]"


@pytest.mark.spec("base 7.1-8", "base 6-11", "base 6-16")
def test_range_without_messages_is_an_empty_array(new_stream) -> None:
    stream = new_stream(JSON, b"[1,2,3]", stream_closed="true")
    for offset in (stream.tail(), "now"):
        response = stream.read(offset)
        assert response.content == b"[]"
        assert response.headers["Stream-Closed"] == "true"
        assert response.headers["Stream-Next-Offset"] == stream.tail()


@pytest.mark.spec("base 7.1-4")
@pytest.mark.parametrize("body", [b"[]", b" [\n] "])
@pytest.mark.parametrize("closing", [{}, {"stream_closed": "true"}], ids=["append", "close"])
def test_append_of_an_empty_array_is_400(new_stream, body, closing) -> None:
    stream = new_stream(JSON)
    check_error(stream.append(body, **closing), 400, about="empty")
    assert stream.read().json() == []
    assert "Stream-Closed" not in stream.head().headers


INVALID = {
    "cut short": b'{"a":',
    "bare word": b"hello",
    "two values": b"1 2",
    "trailing comma": b"[1,]",
    "trailing text": b"[1]x",
    "single quotes": b"['a']",
    "control character": b'"a\nb"',
    "NaN": b"NaN",
    "leading zero": b"01",
    "only spaces": b"   ",
    "separator": b"\x1e1",
    "comment": b"/* */ 1",
    "invalid UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "UTF-16": "[1]".encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf[1]",
}


@pytest.mark.spec("base 7.1-5", "base 7.1-6")
@pytest.mark.parametrize("body", INVALID.values(), ids=INVALID.keys())
def test_what_is_not_json_is_400_and_appends_nothing(new_stream, body) -> None:
    stream = new_stream(JSON, b"[1]")
    check_error(stream.append(body), 400, "invalid_json")
    check_error(stream.append(body, stream_closed="true"), 400, "invalid_json")
    assert stream.read().json() == [1]
    assert "Stream-Closed" not in stream.head().headers


@pytest.mark.spec("base 7.1-6")
@pytest.mark.parametrize("body", INVALID.values(), ids=INVALID.keys())
def test_stream_is_not_created_with_what_is_not_json(absent, body) -> None:
    stream = absent(JSON)
    check_error(stream.create(body), 400, "invalid_json")
    assert stream.head().status_code == 404


@pytest.mark.spec("base 7.1-5")
@pytest.mark.parametrize("bracket", [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_too_deeply_nested_json_is_400(new_stream, bracket) -> None:
    stream = new_stream(JSON)
    before, after = bracket
    deep = before * 100_000 + b"1" + after * 100_000
    check_error(stream.append(deep), 400, "invalid_json", about="nest")
    assert stream.append(before * 100 + b"1" + after * 100).status_code == 204


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_parameters_and_case_do_not_leave_json_mode(new_stream, content_type) -> None:
    stream = new_stream(content_type, b"[1,2]")
    stream.append(b"3", content_type=JSON)
    read = stream.read()
    assert read.json() == [1, 2, 3]
    assert read.headers["Content-Type"] == content_type


@pytest.mark.parametrize(
    "content_type", ["application/x-ndjson", "application/json-seq", "text/json"]
)
def test_other_types_with_json_in_their_name_are_bytes(new_stream, content_type) -> None:
    stream = new_stream(content_type, b"[1,")
    assert stream.append(b"2]\n").status_code == 204
    assert stream.read().content == b"[1,2]\n"


@pytest.mark.spec("base 7.1-1", "base 5.6-13", "base 5.6-5")
def test_read_is_cut_between_messages(new_stream) -> None:
    messages = [{"number": number, "text": "x" * number} for number in range(40)]
    stream = new_stream(JSON, json.dumps(messages).encode())
    found, offset, pieces = [], "-1", 0
    while True:
        response = stream.read(offset, max_bytes=100)
        found += response.json()
        offset = response.headers["Stream-Next-Offset"]
        pieces += 1
        if response.headers.get("Stream-Up-To-Date"):
            break
    assert found == messages
    assert pieces > 10


@pytest.mark.spec("base 5.6-13")
def test_message_larger_than_the_limit_is_read_whole(new_stream) -> None:
    stream = new_stream(JSON, b'["a long message","b"]')
    response = stream.read(max_bytes=1)
    assert response.json() == ["a long message"]
    assert "Stream-Up-To-Date" not in response.headers


@pytest.mark.spec("base 5.6-10")
def test_offset_inside_a_message_is_400(new_stream) -> None:
    stream = new_stream(JSON, b'["hello"]')
    check_error(stream.read("3".zfill(20)), 400, "invalid_offset")


def test_offsets_between_messages_of_one_append_can_be_read_from(new_stream) -> None:
    stream = new_stream(JSON, b"[1,2,3]")
    offset = stream.read(max_bytes=1).headers["Stream-Next-Offset"]
    assert stream.read(offset).json() == [2, 3]


def test_batch_of_many_messages(new_stream) -> None:
    messages = list(range(10_000))
    stream = new_stream(JSON)
    stream.append(json.dumps(messages).encode())
    assert stream.read().json() == messages


def test_array_of_as_many_messages_as_are_taken(new_stream) -> None:
    stream = new_stream(JSON)
    assert stream.append(b"[" + b",".join([b"1"] * 200_000) + b"]").status_code == 204
    assert stream.tail() == "400000".zfill(20)


def test_array_of_too_many_messages_is_413_and_nothing_is_stored(new_stream, absent) -> None:
    body = b"[" + b",".join([b"1"] * 200_001) + b"]"
    stream = new_stream(JSON, b"[0]")
    check_error(stream.append(body), 413, "payload_too_large", about="200000")
    assert stream.read().json() == [0]
    stream = absent(JSON)
    check_error(stream.create(body), 413, "payload_too_large", about="200000")
    assert stream.head().status_code == 404


def test_close_without_body_needs_no_json(new_stream) -> None:
    stream = new_stream(JSON, b"[1]")
    assert stream.close(content_type=JSON).status_code == 204
    assert stream.read().json() == [1]
