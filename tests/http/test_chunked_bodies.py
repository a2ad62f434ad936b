"""Bodies in chunks, of any size and in any packets."""

import socket

from tests.http.raw import RawConnection

TYPE = "Content-Type: text/plain"
CHUNKED = "Transfer-Encoding: chunked"


def test_thousands_of_tiny_chunks_in_one_write(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    body = bytes(ord("a") + number % 26 for number in range(8000))
    connection.request("POST", stream.url, TYPE, CHUNKED)
    connection.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
    connection.request("GET", stream.url)
    assert connection.response().status == 204
    assert connection.response().body == body


def test_bodies_of_any_number_of_chunks_do_not_mix(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    counts = (1, 1023, 1024, 1025, 2, 2048, 2049)
    for count in counts:
        connection.request("POST", stream.url, TYPE, CHUNKED)
        connection.send(b"".join(b"4\r\n%04d\r\n" % at for at in range(count)) + b"0\r\n\r\n")
        assert connection.response().status == 204
    assert stream.read().content == b"".join(b"%04d" % at for each in counts for at in range(each))


def test_sizes_of_chunks_are_no_headers(start_server, stream_on) -> None:
    """However many there are, and though each comes in a packet of its own."""
    server = start_server(header_bytes_max=2000)
    stream = stream_on(server)
    with RawConnection(server.port) as connection:
        connection._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.request("POST", stream.url, TYPE, CHUNKED)
        for number in range(3000):
            connection.send(b"4\r\n")
            connection.send(b"%04d\r\n" % number)
        connection.send(b"0\r\n\r\n")
        assert connection.response().status == 204
    assert stream.read().content == b"".join(b"%04d" % number for number in range(3000))


def test_extension_of_a_chunk_counts_as_headers(start_server, stream_on) -> None:
    server = start_server(header_bytes_max=2000)
    stream = stream_on(server)
    with RawConnection(server.port) as connection:
        connection.request("POST", stream.url, TYPE, CHUNKED, "Expect: 100-continue")
        assert connection.response().status == 100
        connection.send(b"4;" + b"x" * 5000)
        assert connection.response().status == 431
        assert connection.ended()
    assert stream.read().content == b""
