"""`Cache-Control`, ETags and conditional reads."""

import re

import pytest

from tests.http.streams import JSON

ETAG = re.compile(r'"[0-9a-z.]+:\d+:\d+(:c)?"')


def lifetime_s(cache_control: str) -> int:
    """How long a cache may hand out an answer, stale or not."""
    return sum(
        int(seconds) for seconds in re.findall(r"(?:max-age|revalidate)=(\d+)", cache_control)
    )


@pytest.mark.spec("base 8.1-1")
def test_catch_up_reads_may_be_shared(new_stream) -> None:
    stream = new_stream(body=b"hello")
    for response in (stream.read(), stream.read("2".zfill(20)), stream.long_poll("-1")):
        cache_control = response.headers["Cache-Control"]
        assert cache_control == "public, max-age=60, stale-while-revalidate=300"


@pytest.mark.spec("base 8.1-2", "base 10.7-4")
def test_catch_up_reads_can_be_kept_private(start_server, stream_on) -> None:
    stream = stream_on(start_server(cache_scope="private"), body=b"hello")
    cache_control = stream.read().headers["Cache-Control"]
    assert cache_control == "private, max-age=60, stale-while-revalidate=300"
    assert stream.head().headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("ttl", [2, 30, 100, 359])
def test_no_cache_outlives_the_stream(new_stream, ttl) -> None:
    cache_control = new_stream(body=b"x", stream_ttl=str(ttl)).read().headers["Cache-Control"]
    assert lifetime_s(cache_control) <= ttl


def test_long_ttl_leaves_reads_cacheable(new_stream) -> None:
    cache_control = new_stream(body=b"x", stream_ttl="36000").read().headers["Cache-Control"]
    assert cache_control.startswith("public, max-age=60")


@pytest.mark.parametrize("status", [400, 404])
def test_errors_are_not_stored(new_stream, absent, status) -> None:
    response = new_stream().read("nonsense") if status == 400 else absent().read()
    assert response.status_code == status
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.spec("base 8.1-3")
def test_etag_names_stream_and_range(new_stream) -> None:
    stream = new_stream(body=b"hello")
    whole, part, tail = stream.read(), stream.read("2".zfill(20)), stream.read(stream.tail())
    polled = stream.long_poll("-1")
    for response in (whole, part, tail, polled):
        assert ETAG.fullmatch(response.headers["ETag"])
    assert len({response.headers["ETag"] for response in (whole, part, tail)}) == 3
    assert stream.read("-1").headers["ETag"] == whole.headers["ETag"]


@pytest.mark.spec("base 8.1-3")
def test_now_has_no_etag(new_stream) -> None:
    assert "ETag" not in new_stream(body=b"hello").read("now").headers


@pytest.mark.spec("base 8.1-3")
def test_equal_ranges_of_different_streams_have_different_etags(new_stream) -> None:
    one, other = new_stream(body=b"same"), new_stream(body=b"same")
    assert one.read().headers["ETag"] != other.read().headers["ETag"]


@pytest.mark.spec("base 8.1-4")
@pytest.mark.parametrize("form", ["{}", "W/{}", '"x", {}', '{} , W/"y"', "*"])
def test_matching_etag_is_304_without_a_body(new_stream, form) -> None:
    stream = new_stream(JSON, b"[1,2]")
    etag = stream.read().headers["ETag"]
    response = stream.get({}, if_none_match=form.format(etag))
    assert response.status_code == 304
    assert response.content == b""
    assert response.headers["ETag"] == etag


@pytest.mark.spec("base 8.1-4")
def test_304_carries_what_a_cache_has_to_update(new_stream) -> None:
    stream = new_stream(body=b"hello")
    full = stream.read()
    response = stream.get({}, if_none_match=full.headers["ETag"])
    for name in ("Cache-Control", "ETag", "Stream-Next-Offset", "Stream-Up-To-Date"):
        assert response.headers[name] == full.headers[name]


@pytest.mark.spec("base 8.1-4")
def test_connection_goes_on_after_a_304(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    etag = stream.read().headers["ETag"]
    connection.request("GET", stream.url, f"If-None-Match: {etag}")
    connection.request("GET", stream.url)
    assert connection.response().status == 304
    assert connection.response().body == b"hello"


@pytest.mark.parametrize("etag", ['"other"', "nonsense", '""', ""])
def test_other_etag_is_200(new_stream, etag) -> None:
    response = new_stream(body=b"hello").get({}, if_none_match=etag)
    assert response.status_code == 200
    assert response.content == b"hello"


@pytest.mark.spec("base 8.1-4")
def test_new_data_changes_the_etag(new_stream) -> None:
    stream = new_stream(body=b"hello")
    etag = stream.read().headers["ETag"]
    stream.append(b" world")
    response = stream.get({}, if_none_match=etag)
    assert response.status_code == 200
    assert response.content == b"hello world"
    assert response.headers["ETag"] != etag


@pytest.mark.spec("base 8.1-5", "base 8.1-6", "base 8.1-7")
@pytest.mark.parametrize("offset", ["-1", "tail"])
def test_closing_changes_the_etag(new_stream, offset) -> None:
    stream = new_stream(body=b"hello")
    offset = stream.tail() if offset == "tail" else offset
    before = stream.read(offset).headers["ETag"]
    stream.close()
    response = stream.get({"offset": offset}, if_none_match=before)
    assert response.status_code == 200
    assert response.headers["Stream-Closed"] == "true"
    assert response.headers["ETag"].endswith(':c"')
    assert not before.endswith(':c"')
    assert stream.get({"offset": offset}, if_none_match=response.headers["ETag"]).status_code == 304


@pytest.mark.spec("base 8.1-5")
def test_closing_leaves_the_etag_of_a_partial_answer(new_stream) -> None:
    stream = new_stream(body=b"hello")
    before = stream.read(max_bytes=2).headers["ETag"]
    stream.close()
    assert stream.read(max_bytes=2).headers["ETag"] == before
