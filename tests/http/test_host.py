"""The Host header: needed, checked, and what a new stream's location is made of."""

import pytest

from tests.http.test_bad_input import check_raw_error


@pytest.mark.parametrize("headers", ["", "Host:\r\n", "Host: \r\n", "Host: :80\r\n"])
def test_request_without_a_host_is_400(new_stream, connect, headers) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    connection.send(f"GET {stream.url} HTTP/1.1\r\n{headers}\r\n".encode())
    check_raw_error(connection.response(), 400, "invalid_request")
    assert connection.ended()


def test_host_is_checked_in_every_request_of_a_connection(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    connection.request("GET", stream.url)
    assert connection.response().status == 200
    connection.send(f"GET {stream.url} HTTP/1.1\r\n\r\n".encode())
    check_raw_error(connection.response(), 400)
    assert connection.ended()


@pytest.mark.parametrize("headers", ["", "Host: a\r\n"], ids=["none", "one"])
def test_http_1_0_needs_no_host(new_stream, connect, headers) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    connection.send(f"GET {stream.url} HTTP/1.0\r\n{headers}\r\n".encode())
    assert connection.response().body == b"hello"


def test_host_left_out_over_http_1_0_is_not_left_out_over_1_1(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    connection.send(f"GET {stream.url} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
    assert connection.response().body == b"hello"
    connection.send(f"GET {stream.url} HTTP/1.1\r\n\r\n".encode())
    check_raw_error(connection.response(), 400)


@pytest.mark.parametrize("host", ["a b", 'a"b', "a/b", "a@b"])
def test_malformed_host_is_400(absent, connect, host) -> None:
    stream, connection = absent(), connect()
    connection.send(f"PUT {stream.url} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    check_raw_error(connection.response(), 400)
    assert stream.head().status_code == 404


def test_host_names_the_location(absent, connect) -> None:
    stream, connection = absent(), connect()
    connection.send(f"PUT {stream.url} HTTP/1.1\r\nHost: streams.example.com\r\n\r\n".encode())
    location = connection.response().headers["location"]
    assert location == f"http://streams.example.com{stream.url}"


def test_public_url_names_the_location(start_server, stream_on) -> None:
    server = start_server(public_url="https://streams.example.com/prefix")
    stream = stream_on(server)
    stream.delete()
    location = stream.create().headers["Location"]
    assert location == f"https://streams.example.com/prefix{stream.url}"
