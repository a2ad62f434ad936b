"""Targets with scheme and host, as clients of proxies send them: the path is all that counts."""

import pytest

from tests.http.bucketed import bucket_stream, new_stream_in, offset
from tests.http.streams import TEXT


@pytest.fixture(scope="module")
def snapshot_bucket(client) -> str:
    """A bucket that is called like the resource."""
    assert client.put("/snapshot").status_code in {201, 409}
    return "snapshot"


def test_body_of_a_stream_in_a_bucket_called_snapshot(client, connect, snapshot_bucket) -> None:
    connection = connect()
    target = f"http://h/{snapshot_bucket}/{offset(1)}-small"
    connection.request("PUT", target, f"Content-Type: {TEXT}", body=b"a body")
    assert connection.response().status == 201
    assert client.get(f"/{snapshot_bucket}/{offset(1)}-small").content == b"a body"


def test_requests_behind_a_large_one_are_answered(client, connect, snapshot_bucket) -> None:
    connection, body = connect(), b"x" * 3_000_000
    target = f"http://h/{snapshot_bucket}/{offset(2)}-large"
    connection.request("PUT", target, f"Content-Type: {TEXT}", body=body)
    connection.request("GET", "http://h/healthz")
    connection.request("GET", "/healthz")
    assert [connection.response().status for _ in range(3)] == [201, 200, 200]
    stream = client.head(f"/{snapshot_bucket}/{offset(2)}-large")
    assert stream.headers["Stream-Next-Offset"] == offset(len(body))


def test_large_snapshot(client, connect) -> None:
    """It may be larger than the bodies of other requests."""
    stream, connection = bucket_stream(client, b"abc"), connect()
    body = bytes(9 * 1024 * 1024)
    connection.request("PUT", f"http://h{stream.url}/snapshot/{offset(3)}", body=body)
    connection.request("HEAD", stream.url)
    assert connection.response().status == 204
    assert connection.response("HEAD").status == 200
    assert stream.snapshot(offset(3)).content == body


def test_everything_else(client, connect) -> None:
    stream, connection = bucket_stream(client, b"abc"), connect()
    connection.request("GET", f"HTTP://other.example{stream.url}?offset=-1")
    assert connection.response().body == b"abc"
    connection.request("POST", f"https://h{stream.url}", f"Content-Type: {TEXT}", body=b"d")
    assert connection.response().status == 204
    other = new_stream_in(stream.bucket, client)
    connection.request("DELETE", f"http://h{other.url}")
    assert connection.response().status == 204
    assert stream.read("-1").content == b"abcd"
