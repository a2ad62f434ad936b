"""Offers of another protocol: they are ignored, and the request is one like any other."""

import signal
import socket

import pytest

from tests.http.raw import RawConnection
from tests.http.test_bad_input import check_raw_error

TYPE = "Content-Type: text/plain"
OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAA")


def deletion_of(stream) -> bytes:
    """A body that would delete the stream if it were taken for a request."""
    return f"DELETE {stream.url} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def test_body_behind_an_offer_is_data(new_stream, connect) -> None:
    stream, victim, connection = new_stream(), new_stream(body=b"alive"), connect()
    body = deletion_of(victim)
    connection.request("POST", stream.url, TYPE, *OFFER, body=body)
    connection.request("GET", stream.url)
    assert connection.response().status == 204
    assert connection.response().body == body
    assert victim.read().content == b"alive"


def test_chunks_behind_an_offer_are_data(new_stream, connect) -> None:
    stream, victim, connection = new_stream(), new_stream(body=b"alive"), connect()
    body = deletion_of(victim)
    connection.request("POST", stream.url, TYPE, *OFFER, "Transfer-Encoding: chunked")
    connection.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    connection.request("GET", stream.url)
    assert connection.response().status == 204
    assert connection.response().body == body
    assert victim.read().content == b"alive"


def test_request_with_an_offer_may_arrive_byte_by_byte(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    head = [f"POST {stream.url} HTTP/1.1", "Host: a", TYPE, *OFFER, "Content-Length: 5", "", ""]
    for byte in "\r\n".join(head).encode() + b"hello":
        connection.send(bytes([byte]))
    assert connection.response().status == 204
    assert stream.read().content == b"hello"


def test_connection_goes_on_after_an_offer(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    for headers in (OFFER, (), ("Connection: Upgrade", "Upgrade: websocket"), ()):
        connection.request("GET", stream.url, *headers)
        response = connection.response()
        assert response.status == 200
        assert response.body == b"hello"
        assert "upgrade" not in response.headers


def test_more_offers_in_one_read_than_calls_may_nest(start_server) -> None:
    """The server sleeps while they arrive, so that it finds more than a thousand of them."""
    server = start_server()
    request = b"GET / HTTP/1.1\r\nHost:a\r\nConnection:upgrade\r\nUpgrade:a\r\n\r\n"
    with RawConnection(server.port) as connection:
        connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)
        server.signal(signal.SIGSTOP)
        try:
            connection.send(request * 1500)
        finally:
            server.signal(signal.SIGCONT)
        for _ in range(1500):
            check_raw_error(connection.response(), 404)
    assert "Traceback" not in server.stderr()


def test_upgrade_that_the_connection_header_does_not_name_is_no_offer(new_stream, connect) -> None:
    stream, victim, connection = new_stream(), new_stream(body=b"alive"), connect()
    body = deletion_of(victim)
    connection.request("POST", stream.url, TYPE, "Upgrade: h2c", body=body)
    connection.request("GET", stream.url, "Upgrade: h2c")
    assert connection.response().status == 204
    assert connection.response().body == body
    assert victim.read().content == b"alive"


def test_upgrades_in_several_headers_are_one_offer(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    offer = ("Connection: Upgrade", "Upgrade: h2c", "Upgrade: websocket")
    connection.request("POST", stream.url, TYPE, *offer, body=b"hello")
    assert connection.response().status == 204
    assert stream.read().content == b"hello"


def test_close_beside_an_offer_is_honoured(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    connection.request("GET", stream.url, "Connection: close, Upgrade", "Upgrade: h2c")
    response = connection.response()
    assert response.body == b"hello"
    assert response.headers["connection"] == "close"
    assert connection.ended()


def test_expectation_beside_an_offer_is_met_once(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    connection.request(
        "POST", stream.url, TYPE, *OFFER, "Content-Length: 5", "Expect: 100-continue"
    )
    assert connection.response().status == 100
    connection.send(b"hello")
    assert connection.response().status == 204
    assert stream.read().content == b"hello"


def test_offer_over_http_1_0_needs_no_host(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    connection.send(f"GET {stream.url} HTTP/1.0\r\n{OFFER[0]}\r\n{OFFER[1]}\r\n\r\n".encode())
    response = connection.response()
    assert response.status == 200
    assert response.body == b"hello"
    assert connection.ended()


def test_too_large_body_behind_an_offer_is_413(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    connection.request("POST", stream.url, TYPE, *OFFER, f"Content-Length: {9 * 1024 * 1024}")
    connection.send(b"x" * 1000)
    check_raw_error(connection.response(), 413, "payload_too_large")
    assert connection.ended()


@pytest.mark.parametrize("target", ["a:80", "http://a/v1/stream/victim", "/v1/stream/victim", "*"])
@pytest.mark.parametrize("headers", [(), OFFER], ids=["", "offer"])
def test_tunnel_is_refused(server, new_stream, connect, target, headers) -> None:
    victim, connection = new_stream(body=b"alive"), connect()
    before = server.stderr()
    connection.request("CONNECT", target, *headers)
    connection.send(deletion_of(victim))
    response = connection.response("CONNECT")
    assert 400 <= response.status < 500
    check_raw_error(response, response.status)
    assert victim.read().content == b"alive"
    assert "Traceback" not in server.stderr().removeprefix(before)
