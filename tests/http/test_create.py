"""PUT: creating streams, and finding that they exist."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.http.streams import BINARY, JSON, OFFSET, TEXT, Stream, check_error, producer

START = "0" * 20
IN_AN_HOUR = {"stream_ttl": "3600"}


@pytest.mark.spec("base 5.1-6", "base 5.1-9")
def test_create_answers_with_location_type_and_tail(absent, server) -> None:
    stream = absent()
    response = stream.create()
    assert response.status_code == 201
    assert response.headers["Location"] == server.url + stream.url
    assert response.headers["Content-Type"] == TEXT
    assert response.headers["Stream-Next-Offset"] == START
    assert "Stream-Closed" not in response.headers
    assert response.content == b""


@pytest.mark.spec("base 5.1-6")
def test_location_of_a_path_that_needs_encoding_leads_to_the_stream(client, absent) -> None:
    stream = Stream(client, f"{absent().path}/größe 1")
    location = stream.create(b"found").headers["Location"]
    assert client.get(location).content == b"found"


@pytest.mark.spec("base 5.1-8", "base 5.1-9")
def test_body_becomes_the_first_content(new_stream) -> None:
    stream = new_stream(body=b"hello")
    response = stream.read()
    assert response.content == b"hello"
    assert response.headers["Stream-Next-Offset"] == stream.tail() == "5".zfill(20)


def test_chunked_body_becomes_the_first_content(absent) -> None:
    stream = absent()
    assert stream.create(iter([b"hel", b"lo"])).status_code == 201
    assert stream.read().content == b"hello"


@pytest.mark.spec("base 4-5")
def test_content_type_is_kept_as_it_was_sent(new_stream) -> None:
    stream = new_stream("Text/Plain; charset=UTF-8", b"x")
    assert stream.head().headers["Content-Type"] == "Text/Plain; charset=UTF-8"
    assert stream.read().headers["Content-Type"] == "Text/Plain; charset=UTF-8"


@pytest.mark.spec("base 4-5")
def test_content_type_defaults_to_octets(client, absent) -> None:
    stream = absent()
    response = client.put(stream.url)
    assert response.status_code == 201
    assert response.headers["Content-Type"] == BINARY
    assert stream.head().headers["Content-Type"] == BINARY


@pytest.mark.spec("base 5.1-1")
@pytest.mark.parametrize(
    "headers",
    [{}, IN_AN_HOUR, {"stream_expires_at": "2099-01-31T12:00:00Z"}, {"stream_closed": "true"}],
    ids=["plain", "ttl", "expires at", "closed"],
)
def test_creating_again_with_the_same_configuration_is_200(new_stream, headers) -> None:
    stream = new_stream(body=b"one", **headers)
    again = stream.create(**headers)
    assert again.status_code == 200
    assert again.headers["Content-Type"] == TEXT
    assert again.headers["Stream-Next-Offset"] == stream.tail()
    assert again.headers.get("Stream-Closed") == headers.get("stream_closed")
    assert "Location" not in again.headers


@pytest.mark.spec("base 5.1-1")
def test_creating_again_appends_nothing(new_stream) -> None:
    stream = new_stream(body=b"one")
    assert stream.create(b"one").status_code == 200
    assert stream.create(b"other").status_code == 200
    assert stream.read().content == b"one"


@pytest.mark.spec("base 5.1-1")
def test_same_instant_written_differently_is_the_same_expiry(new_stream) -> None:
    stream = new_stream(stream_expires_at="2099-01-31T12:00:00Z")
    assert stream.create(stream_expires_at="2099-01-31T13:00:00+01:00").status_code == 200


@pytest.mark.spec("base 5.1-1")
def test_content_type_matches_without_case(new_stream) -> None:
    stream = new_stream(JSON)
    assert stream.create(content_type="APPLICATION/JSON").status_code == 200


@pytest.mark.spec("base 5.1-1")
@pytest.mark.parametrize(
    ("created", "asked"),
    [
        ({}, {"content_type": JSON}),
        (IN_AN_HOUR, {"stream_ttl": "7200"}),
        (IN_AN_HOUR, {}),
        ({}, IN_AN_HOUR),
        (IN_AN_HOUR, {"stream_expires_at": "2099-01-31T12:00:00Z"}),
        (
            {"stream_expires_at": "2099-01-31T12:00:00Z"},
            {"stream_expires_at": "2099-02-01T12:00:00Z"},
        ),
    ],
    ids=["type", "other ttl", "no ttl", "new ttl", "expiry for ttl", "other expiry"],
)
def test_creating_again_with_another_configuration_is_409(new_stream, created, asked) -> None:
    check_error(new_stream(**created).create(**asked), 409, "stream_exists")


@pytest.mark.spec("base 5.1-2")
@pytest.mark.parametrize(
    ("closed", "asked", "status"),
    [(False, {}, 200), (True, {}, 409), (True, {"stream_closed": "true"}, 200),
     (False, {"stream_closed": "true"}, 409)],
    ids=["open as open", "closed as open", "closed as closed", "open as closed"],
)  # fmt: skip
def test_creating_again_compares_closure(new_stream, closed, asked, status) -> None:
    stream = new_stream()
    if closed:
        stream.close()
    assert stream.create(**asked).status_code == status


@pytest.mark.spec("base 5.1-7", "base 5.1-9")
@pytest.mark.parametrize("body", [None, b"all there is"], ids=["empty", "with content"])
def test_stream_can_be_created_closed(absent, body) -> None:
    stream = absent()
    response = stream.create(body, stream_closed="true")
    assert response.status_code == 201
    assert response.headers["Stream-Closed"] == "true"
    read = stream.read()
    assert read.content == (body or b"")
    assert read.headers["Stream-Closed"] == "true"
    check_error(stream.append(b"more"), 409, "stream_closed")


@pytest.mark.spec("base 5.1-4")
def test_ttl_with_expiry_time_is_400(absent) -> None:
    stream = absent()
    response = stream.create(stream_expires_at="2099-01-31T12:00:00Z", **IN_AN_HOUR)
    check_error(response, 400, about="Stream-TTL")
    assert stream.head().status_code == 404


@pytest.mark.spec("base 5.1-3", "base 5.1-10")
@pytest.mark.parametrize(
    "ttl", ["+60", "060", "60.0", "6e1", "-1", "abc", "", "0x10", "60s", "9" * 40, "\u0666"]
)
def test_malformed_ttl_is_400(client, absent, ttl) -> None:
    stream = absent()
    response = client.put(stream.url, headers=[(b"Stream-TTL", ttl.encode())])
    check_error(response, 400, about="Stream-TTL")
    assert stream.head().status_code == 404


@pytest.mark.spec("base 5.1-10")
@pytest.mark.parametrize(
    "time",
    ["tomorrow", "2099-01-31", "2099-01-31T12:00:00", "2099-13-31T12:00:00Z", "4070908800", ""],
)
def test_malformed_expiry_time_is_400(absent, time) -> None:
    stream = absent()
    check_error(stream.create(stream_expires_at=time), 400, about="Stream-Expires-At")
    assert stream.head().status_code == 404


@pytest.mark.parametrize("content_type", ["text", "/", "text/", "/plain", "te xt/plain"])
def test_malformed_content_type_is_400(absent, content_type) -> None:
    check_error(absent(content_type).create(), 400, about="Content-Type")


@pytest.mark.spec("base 5.2.1-10")
def test_producer_may_write_the_initial_content(absent) -> None:
    stream = absent()
    created = stream.create(b"zero,", **producer(0))
    assert created.status_code == 201
    assert stream.append(b"zero,", **producer(0)).status_code == 204
    assert stream.append(b"one", **producer(1)).status_code == 200
    assert stream.read().content == b"zero,one"


@pytest.mark.spec("base 5.2-9")
def test_initial_content_may_have_a_stream_seq(absent) -> None:
    stream = absent()
    assert stream.create(b"x", stream_seq="b").status_code == 201
    check_error(stream.append(b"y", stream_seq="a"), 409, "stream_seq_regression")
    assert stream.append(b"y", stream_seq="c").status_code == 204


def test_racing_creations_create_once(absent) -> None:
    stream = absent()
    with ThreadPoolExecutor(8) as pool:
        attempts = [pool.submit(stream.create, b"once") for _ in range(24)]
    assert sorted(attempt.result().status_code for attempt in attempts) == [200] * 23 + [201]
    assert stream.read().content == b"once"


@pytest.mark.parametrize("path", ["a", "a/b/c/d/e/f", "ünï/cødé", "with space", "a:b@c;d=e,f", "~"])
def test_paths_of_any_depth_and_alphabet_name_streams(client, absent, path) -> None:
    stream = Stream(client, f"{absent().path}/{path}")
    assert stream.create(b"here").status_code == 201
    assert stream.read().content == b"here"
    assert OFFSET.fullmatch(stream.tail())


def test_different_paths_are_different_streams(client, absent) -> None:
    path = absent().path
    streams = [Stream(client, path + rest) for rest in ("", "/a", "/a/b", "/A", "/a%2Fb", "/a ")]
    for stream in streams:
        assert stream.create(stream.path.encode()).status_code == 201
    for stream in streams:
        assert stream.read().text == stream.path
