"""HEAD: a stream's metadata."""

from datetime import datetime

import pytest

from tests.http.streams import JSON


@pytest.mark.spec("base 5.5-1")
def test_head_has_type_and_tail_and_no_body(new_stream) -> None:
    stream = new_stream(JSON, b"[1,2]")
    head = stream.head()
    assert head.status_code == 200
    assert head.headers["Content-Type"] == JSON
    assert head.headers["Stream-Next-Offset"] == stream.read().headers["Stream-Next-Offset"]
    assert head.content == b""


@pytest.mark.spec("base 5.5-1")
def test_nothing_follows_the_headers(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"some bytes"), connect()
    connection.request("HEAD", stream.url)
    connection.request("GET", stream.url)
    assert connection.response("HEAD").status == 200
    assert connection.response("GET").body == b"some bytes"


@pytest.mark.spec("base 5.5-2")
def test_head_of_a_stream_that_does_not_exist_is_404_without_a_body(absent, connect) -> None:
    connection = connect()
    connection.request("HEAD", absent().url)
    connection.request("GET", absent().url)
    assert connection.response("HEAD").status == 404
    assert connection.response("GET").status == 404


@pytest.mark.spec("base 5.5-3")
def test_head_has_the_ttl_of_a_stream_that_has_one(new_stream) -> None:
    head = new_stream(stream_ttl="3600").head().headers
    assert head["Stream-TTL"] == "3600"
    assert "Stream-Expires-At" not in head


@pytest.mark.spec("base 5.5-3")
@pytest.mark.parametrize("time", ["2099-01-31T12:00:00Z", "2099-01-31T14:00:00.250+02:00"])
def test_head_has_the_expiry_time_of_a_stream_that_has_one(new_stream, time) -> None:
    head = new_stream(stream_expires_at=time).head().headers
    assert datetime.fromisoformat(head["Stream-Expires-At"]) == datetime.fromisoformat(time)
    assert "Stream-TTL" not in head


@pytest.mark.spec("base 5.5-3")
def test_head_of_a_lasting_stream_has_neither(new_stream) -> None:
    head = new_stream().head().headers
    assert "Stream-TTL" not in head
    assert "Stream-Expires-At" not in head


@pytest.mark.spec("base 5.5-4")
def test_head_shows_closure(new_stream) -> None:
    stream = new_stream()
    assert "Stream-Closed" not in stream.head().headers
    stream.close()
    assert stream.head().headers["Stream-Closed"] == "true"


@pytest.mark.spec("base 5.5-5", "base 10.7-4")
def test_head_is_not_stored(new_stream, absent) -> None:
    assert new_stream().head().headers["Cache-Control"] == "no-store"
    assert absent().head().headers["Cache-Control"] == "no-store"
