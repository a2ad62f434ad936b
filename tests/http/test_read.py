"""GET without `live`: catch-up reads."""

import pytest

from tests.http.streams import BINARY, TEXT, check_error


@pytest.mark.spec("base 5.6-4", "base 5.6-9", "base 6-9")
@pytest.mark.parametrize("offset", [None, "-1", "0" * 20], ids=["omitted", "-1", "zero"])
def test_read_from_the_beginning(new_stream, offset) -> None:
    stream = new_stream(body=b"hello")
    response = stream.read(offset)
    assert response.status_code == 200
    assert response.content == b"hello"
    assert response.headers["Content-Type"] == TEXT
    assert response.headers["Stream-Next-Offset"] == stream.tail()
    assert response.headers["Stream-Up-To-Date"] == "true"
    assert "Stream-Closed" not in response.headers


def test_read_goes_on_where_the_last_one_ended(new_stream) -> None:
    stream = new_stream(body=b"one")
    offset = stream.read().headers["Stream-Next-Offset"]
    stream.append(b"two")
    response = stream.read(offset)
    assert response.content == b"two"
    assert response.headers["Stream-Next-Offset"] == stream.tail()


@pytest.mark.spec("base 5.6-1", "base 5.6-4")
@pytest.mark.parametrize("body", [None, b"hello"], ids=["empty stream", "at the tail"])
def test_read_at_the_tail_is_200_and_empty(new_stream, body) -> None:
    stream = new_stream(body=body)
    response = stream.read(stream.tail())
    assert response.status_code == 200
    assert response.content == b""
    assert response.headers["Content-Type"] == TEXT
    assert response.headers["Stream-Next-Offset"] == stream.tail()
    assert response.headers["Stream-Up-To-Date"] == "true"
    assert "Stream-Closed" not in response.headers


@pytest.mark.spec("base 5.6-2", "base 5.6-6")
def test_read_that_reaches_the_end_of_a_closed_stream_says_so(new_stream) -> None:
    stream = new_stream(body=b"all", stream_closed="true")
    for response, body in ((stream.read(), b"all"), (stream.read(stream.tail()), b"")):
        assert response.status_code == 200
        assert response.content == body
        assert response.headers["Stream-Closed"] == "true"
        assert response.headers["Stream-Up-To-Date"] == "true"
        assert response.headers["Stream-Next-Offset"] == stream.tail()


@pytest.mark.spec("base 5.6-5", "base 5.6-7", "base 5.6-13")
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_partial_answer_says_neither_up_to_date_nor_closed(new_stream, closed) -> None:
    stream = new_stream(body=b"0123456789")
    if closed:
        stream.close()
    response = stream.read(max_bytes=4)
    assert response.content == b"0123"
    assert response.headers["Stream-Next-Offset"] == "4".zfill(20)
    assert "Stream-Up-To-Date" not in response.headers
    assert "Stream-Closed" not in response.headers
    last = stream.read(stream.read("4".zfill(20), max_bytes=4).headers["Stream-Next-Offset"])
    assert last.content == b"89"
    assert last.headers["Stream-Up-To-Date"] == "true"
    assert last.headers.get("Stream-Closed") == ("true" if closed else None)


@pytest.mark.spec("base 5.6-13", "base 5.6-5")
def test_long_stream_is_read_in_pieces(new_stream) -> None:
    stream = new_stream(BINARY)
    piece = bytes(range(256)) * 2048
    for _ in range(5):
        stream.append(piece)
    pieces, offset = [], "-1"
    while True:
        response = stream.read(offset)
        pieces.append(response.content)
        offset = response.headers["Stream-Next-Offset"]
        if response.headers.get("Stream-Up-To-Date"):
            break
    assert len(pieces) > 1
    assert b"".join(pieces) == piece * 5
    assert offset == stream.tail()


@pytest.mark.spec("base 9.1-1", "base 9.1-4", "base 9.1-5", "base 9.1-6")
def test_max_bytes_is_optional_and_never_beyond_the_servers_own_limit(new_stream) -> None:
    stream = new_stream(BINARY, b"x" * 2_000_000)
    without = len(stream.read().content)
    assert 0 < without < 2_000_000
    assert len(stream.read(max_bytes=1_999_999).content) == without


@pytest.mark.parametrize("value", ["0", "-1", "abc", "", "1.5", "9" * 50])
def test_malformed_max_bytes_is_400(new_stream, value) -> None:
    check_error(new_stream(body=b"x").read(max_bytes=value), 400, about="max_bytes")


@pytest.mark.spec("base 5.6-11")
@pytest.mark.parametrize("offset", [None, "-1", "now", "0" * 20])
def test_read_of_a_stream_that_does_not_exist_is_404(absent, offset) -> None:
    check_error(absent().read(offset), 404, "stream_not_found")


@pytest.mark.spec("base 5.6-10")
def test_offset_past_the_tail_is_400(new_stream) -> None:
    stream = new_stream(body=b"hello")
    check_error(stream.read("6".zfill(20)), 400, "invalid_offset", about="6")


@pytest.mark.spec("base 6-10", "base 6-12", "base 6-13", "base 6-14", "base 6-15", "base 6-16")
@pytest.mark.parametrize("body", [None, b"history"], ids=["empty", "with history"])
def test_now_is_the_tail_without_content(new_stream, body) -> None:
    stream = new_stream(body=body)
    response = stream.read("now")
    assert response.status_code == 200
    assert response.content == b""
    assert response.headers["Content-Type"] == TEXT
    assert response.headers["Stream-Next-Offset"] == stream.tail()
    assert response.headers["Stream-Up-To-Date"] == "true"
    assert response.headers["Cache-Control"] == "no-store"
    assert "Stream-Closed" not in response.headers
    stream.append(b"future")
    assert stream.read(response.headers["Stream-Next-Offset"]).content == b"future"


@pytest.mark.spec("base 6-22", "base 6-23", "base 6-24")
def test_now_on_a_closed_stream_is_its_end(new_stream) -> None:
    stream = new_stream(body=b"all", stream_closed="true")
    response = stream.read("now")
    assert response.status_code == 200
    assert response.content == b""
    assert response.headers["Stream-Closed"] == "true"
    assert response.headers["Stream-Up-To-Date"] == "true"
    assert response.headers["Stream-Next-Offset"] == stream.tail()


@pytest.mark.spec("base 6-25")
def test_sentinels_are_never_given_out(new_stream) -> None:
    stream = new_stream()
    for response in (stream.head(), stream.read(), stream.read("now"), stream.long_poll("now")):
        assert response.headers["Stream-Next-Offset"] == "0" * 20


@pytest.mark.spec("base 9-1", "base 9.1-8")
def test_unknown_parameters_and_headers_are_ignored(new_stream) -> None:
    stream = new_stream(body=b"hello")
    response = stream.get({"offset": "-1", "table": "users", "x": ""}, x_extension="1")
    assert response.content == b"hello"
