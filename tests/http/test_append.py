"""POST: appends, their content type and `Stream-Seq`."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from tests.http.streams import BINARY, JSON, OFFSET, check_error


@pytest.mark.spec("base 5.2-17")
def test_append_is_204_with_the_new_tail(new_stream) -> None:
    stream = new_stream(body=b"hello")
    response = stream.append(b" world")
    assert response.status_code == 204
    assert response.headers["Stream-Next-Offset"] == "11".zfill(20) == stream.tail()
    assert "Stream-Closed" not in response.headers
    assert "Producer-Seq" not in response.headers
    assert response.content == b""


@pytest.mark.spec("base 4-3", "base 4-4")
def test_appends_are_read_in_order_and_never_change(new_stream) -> None:
    stream = new_stream()
    parts = [f"part {number};".encode() for number in range(20)]
    offsets = [stream.append(part).headers["Stream-Next-Offset"] for part in parts]
    assert stream.read().content == b"".join(parts)
    for number, offset in enumerate(offsets):
        assert stream.read(offset).content == b"".join(parts[number + 1 :])


def test_append_is_visible_to_the_next_read(new_stream) -> None:
    stream = new_stream()
    for number in range(10):
        stream.append(b"%d" % number)
        assert stream.read().content.endswith(b"%d" % number)


@pytest.mark.spec(
    "base 6-2", "base 6-3", "base 6-4", "base 6-5", "base 6-6", "base 6-8", "base 6-25"
)
def test_offsets_are_short_digits_that_grow_as_text(new_stream) -> None:
    stream = new_stream()
    offsets = [stream.tail()]
    offsets += [stream.append(b"x" * 7).headers["Stream-Next-Offset"] for _ in range(20)]
    assert all(OFFSET.fullmatch(offset) for offset in offsets)
    assert all(before < after for before, after in pairwise(offsets))


def test_bytes_come_back_exactly(new_stream) -> None:
    stream = new_stream(BINARY)
    every_byte = bytes(range(256))
    stream.append(every_byte)
    stream.append(every_byte[::-1])
    assert stream.read().content == every_byte + every_byte[::-1]


@pytest.mark.spec("base 5.2-5")
def test_chunked_body_is_one_append(new_stream) -> None:
    stream = new_stream()
    response = stream.append(iter([b"one ", b"two ", b"three"]))
    assert response.status_code == 204
    assert stream.read().content == b"one two three"


@pytest.mark.spec("base 5.2-18")
def test_append_to_a_stream_that_does_not_exist_is_404(absent) -> None:
    check_error(absent().append(b"x"), 404, "stream_not_found")


@pytest.mark.spec("base 5.2-2", "base 5.2-3", "base 10.4-1")
def test_another_content_type_is_409_and_appends_nothing(new_stream) -> None:
    stream = new_stream(body=b"text")
    response = stream.append(b"{}", content_type=JSON)
    check_error(response, 409, "content_type_mismatch", about=JSON)
    assert stream.read().content == b"text"


@pytest.mark.spec("base 5.2-2")
@pytest.mark.parametrize(
    "content_type", ["TEXT/PLAIN", "text/plain; charset=utf-8", "text/plain;x"]
)
def test_content_type_matches_without_case_or_parameters(new_stream, content_type) -> None:
    assert new_stream().append(b"x", content_type=content_type).status_code == 204


@pytest.mark.spec("base 5.2-20")
def test_append_without_content_type_is_400(client, new_stream) -> None:
    stream = new_stream()
    check_error(client.post(stream.url, content=b"x"), 400, about="Content-Type")
    assert stream.read().content == b""


def test_malformed_content_type_is_400(new_stream) -> None:
    check_error(new_stream().append(b"x", content_type="nonsense"), 400, about="Content-Type")


@pytest.mark.spec("base 5.2-12")
@pytest.mark.parametrize("headers", [{}, {"stream_closed": "false"}], ids=["plain", "not closing"])
@pytest.mark.parametrize("body", [b"", iter([])], ids=["no length", "no chunks"])
def test_append_of_nothing_is_400(new_stream, body, headers) -> None:
    stream = new_stream()
    check_error(stream.append(body, **headers), 400, about="body")
    assert "Stream-Closed" not in stream.head().headers


@pytest.mark.spec("base 5.2-4")
@pytest.mark.parametrize("content_type", [JSON, "application/x-www-form-urlencoded", "nonsense"])
def test_close_without_body_ignores_the_content_type(new_stream, content_type) -> None:
    assert new_stream().close(content_type=content_type).status_code == 204


@pytest.mark.spec("base 5.2-8", "base 5.2-9", "base 10.6-1")
@pytest.mark.parametrize("seq", ["001", "002"], ids=["lower", "equal"])
def test_stream_seq_that_does_not_increase_is_409(new_stream, seq) -> None:
    stream = new_stream()
    for good in ("001", "002"):
        assert stream.append(good.encode(), stream_seq=good).status_code == 204
    check_error(stream.append(b"bad", stream_seq=seq), 409, "stream_seq_regression", about=seq)
    assert stream.read().content == b"001002"
    assert stream.append(b"003", stream_seq="003").status_code == 204


@pytest.mark.spec("base 5.2-6")
@pytest.mark.parametrize(
    ("first", "second", "status"),
    [("2", "10", 409), ("09", "10", 204), ("a", "B", 409), ("B", "a", 204), ("a", "aa", 204),
     ("z", "é", 204), ("é", "z", 409)],
)  # fmt: skip
def test_stream_seq_compares_bytes(client, new_stream, first, second, status) -> None:
    stream = new_stream()
    for seq, expected in ((first, 204), (second, status)):
        headers = [(b"Content-Type", b"text/plain"), (b"Stream-Seq", seq.encode())]
        assert client.post(stream.url, content=b"x", headers=headers).status_code == expected


def test_racing_appends_are_each_stored_once(new_stream) -> None:
    stream = new_stream()
    parts = [b"<%03d>" % number for number in range(100)]
    with ThreadPoolExecutor(8) as pool:
        offsets = [
            response.headers["Stream-Next-Offset"] for response in pool.map(stream.append, parts)
        ]
    assert len(set(offsets)) == 100
    content = stream.read().content
    assert sorted(content[start : start + 5] for start in range(0, 500, 5)) == parts
    for part, offset in zip(parts, offsets, strict=True):
        assert content[int(offset) - 5 : int(offset)] == part


@pytest.mark.spec("base 5.2-8", "base 5.2-9")
def test_one_of_racing_appends_with_the_same_stream_seq_wins(new_stream) -> None:
    stream = new_stream()
    with ThreadPoolExecutor(8) as pool:
        attempts = [pool.submit(stream.append, b"x", stream_seq="1") for _ in range(24)]
    assert sorted(attempt.result().status_code for attempt in attempts) == [204] + [409] * 23
    assert stream.read().content == b"x"


@pytest.mark.spec("base 5.2-7")
def test_stream_seq_belongs_to_the_stream(new_stream) -> None:
    one, other = new_stream(), new_stream()
    assert one.append(b"x", stream_seq="5").status_code == 204
    assert other.append(b"x", stream_seq="1").status_code == 204
    assert one.append(b"x").status_code == 204
    assert one.append(b"x", stream_seq="5").status_code == 409


def test_refused_append_leaves_no_stream_seq(new_stream) -> None:
    stream = new_stream()
    assert stream.append(b"x", stream_seq="9", content_type=JSON).status_code == 409
    assert stream.append(b"x", stream_seq="1").status_code == 204


@pytest.mark.spec("base 5.2-16")
def test_closure_is_reported_before_type_and_sequence(new_stream) -> None:
    stream = new_stream()
    stream.append(b"x", stream_seq="5")
    response = stream.append(b"{}", content_type=JSON, stream_seq="1")
    check_error(response, 409, "content_type_mismatch")
    assert "Stream-Closed" not in response.headers
    stream.close()
    response = stream.append(b"{}", content_type=JSON, stream_seq="1")
    check_error(response, 409, "stream_closed")
    assert response.headers["Stream-Closed"] == "true"
