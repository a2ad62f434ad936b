"""HTTP/1.1 itself: pipelining, keep-alive, framing and limits."""

import pytest

from tests.http.raw import RawConnection
from tests.http.test_bad_input import check_raw_error

TYPE = "Content-Type: text/plain"


def test_pipelined_requests_are_answered_in_order(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    connection.request("POST", stream.url, TYPE, body=b"one,")
    connection.request("GET", stream.url)
    connection.request("POST", stream.url, TYPE, body=b"two")
    connection.request("HEAD", stream.url)
    connection.request("GET", stream.url)
    connection.request("DELETE", stream.url)
    connection.request("GET", stream.url)
    assert connection.response().status == 204
    assert connection.response().body == b"one,"
    assert connection.response().status == 204
    assert connection.response("HEAD").headers["stream-next-offset"] == "7".zfill(20)
    assert connection.response().body == b"one,two"
    assert connection.response().status == 204
    assert connection.response().status == 404


def test_requests_behind_a_long_poll_wait_for_it(new_patient_stream, start_long_poll) -> None:
    stream = new_patient_stream(body=b"old,")
    waiting = start_long_poll(stream, "now")
    waiting.request("GET", stream.url)
    stream.append(b"new")
    assert waiting.response().body == b"new"
    assert waiting.response().body == b"old,new"


def test_more_pipelined_requests_than_are_taken_at_once(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    request = f"POST {stream.url} HTTP/1.1\r\nHost: a\r\n{TYPE}\r\nContent-Length: 1\r\n\r\n"
    connection.send(b"".join(request.encode() + b"%d" % (number % 10) for number in range(500)))
    assert {connection.response().status for _ in range(500)} == {204}
    assert stream.read().content == b"0123456789" * 50


def test_request_may_arrive_byte_by_byte(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    head = f"POST {stream.url} HTTP/1.1\r\nHost: a\r\n{TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n"
    for byte in head.encode() + b"2\r\nhe\r\n3;note=x\r\nllo\r\n0\r\nTrailer: y\r\n\r\n":
        connection.send(bytes([byte]))
    assert connection.response().status == 204
    assert stream.read().content == b"hello"


def test_connection_stays_open_between_requests(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    for number in range(5):
        connection.request("POST", stream.url, TYPE, body=b"%d" % number)
        assert connection.response().status == 204
    connection.request("GET", stream.url)
    assert connection.response().body == b"01234"


@pytest.mark.parametrize("status", [200, 404], ids=["success", "error"])
def test_connection_close_is_honoured(new_stream, absent, connect, status) -> None:
    stream = new_stream(body=b"x") if status == 200 else absent()
    connection = connect()
    connection.request("GET", stream.url, "Connection: close")
    response = connection.response()
    assert response.status == status
    assert response.headers["connection"] == "close"
    assert connection.ended()


def test_http_1_0_is_answered_and_closed(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    connection.send(f"GET {stream.url} HTTP/1.0\r\n\r\n".encode())
    response = connection.response()
    assert response.status == 200
    assert response.body == b"hello"
    assert "transfer-encoding" not in response.headers
    assert connection.ended()


def test_http_1_0_client_may_keep_the_connection(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    for _ in range(2):
        connection.send(f"GET {stream.url} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
        response = connection.response()
        assert response.body == b"hello"
        assert response.headers["connection"].lower() == "keep-alive"


def test_sse_over_http_1_0_is_not_chunked(new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello", stream_closed="true"), connect()
    connection.send(f"GET {stream.url}?offset=-1&live=sse HTTP/1.0\r\n\r\n".encode())
    response = connection.response()
    assert "transfer-encoding" not in response.headers
    assert response.body.startswith(b"event: data\ndata:hello\n\n")


def test_expect_100_continue_is_answered_before_the_body(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    connection.request("POST", stream.url, TYPE, "Content-Length: 5", "Expect: 100-continue")
    assert connection.response().status == 100
    connection.send(b"hello")
    assert connection.response().status == 204
    assert stream.read().content == b"hello"


def test_expect_100_continue_is_not_given_to_what_is_refused(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    size = 9 * 1024 * 1024
    connection.request("POST", stream.url, TYPE, f"Content-Length: {size}", "Expect: 100-continue")
    check_raw_error(connection.response(), 413, "payload_too_large")


BAD_FRAMING = {
    "length and chunks": "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "chunks and length": "Transfer-Encoding: chunked\r\nContent-Length: 5",
    "two lengths": "Content-Length: 5\r\nContent-Length: 6",
    "negative length": "Content-Length: -5",
    "length with sign": "Content-Length: +5",
    "length in words": "Content-Length: five",
    "list of lengths": "Content-Length: 5, 6",
    "unknown coding": "Transfer-Encoding: gzip",
    "chunked not last": "Transfer-Encoding: chunked, gzip",
}


@pytest.mark.parametrize("headers", BAD_FRAMING.values(), ids=BAD_FRAMING.keys())
def test_ambiguous_framing_is_400_and_ends_the_connection(new_stream, connect, headers) -> None:
    stream, connection = new_stream(), connect()
    head = f"POST {stream.url} HTTP/1.1\r\nHost: a\r\n{TYPE}\r\n{headers}\r\n\r\n"
    connection.send(head.encode() + b"5\r\nhello\r\n0\r\n\r\n")
    check_raw_error(connection.response(), 400)
    assert connection.ended()
    assert stream.read().content == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/stream/a HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /v1/stream/a HTTP/1.1\r\nHost : a\r\n\r\n",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    ],
    ids=["words", "no target", "no colon", "space before colon", "chunk size", "TLS"],
)
def test_what_is_not_http_is_400_and_ends_the_connection(connect, request_bytes) -> None:
    connection = connect()
    connection.send(request_bytes)
    check_raw_error(connection.response(), 400)
    assert connection.ended()


def test_answers_before_malformed_bytes_are_not_lost(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    connection.request("POST", stream.url, TYPE, body=b"kept")
    connection.send(b"nonsense\r\n\r\n")
    assert connection.response().status == 204
    check_raw_error(connection.response(), 400)
    assert connection.ended()
    assert stream.read().content == b"kept"


@pytest.mark.parametrize(
    "line", ["GET /healthz", *(f"GET /healthz HTTP/{version}" for version in ("0.9", "2.0", "9.9"))]
)
def test_other_versions_of_http_are_505(connect, line) -> None:
    connection = connect()
    connection.send(f"{line}\r\nHost: a\r\n\r\n".encode())
    check_raw_error(connection.response(), 505, "http_version_not_supported")
    assert connection.ended()


def test_later_minor_version_is_treated_as_http_1_1(connect) -> None:
    connection = connect()
    for _ in range(2):
        connection.send(b"GET /healthz HTTP/1.2\r\nHost: a\r\n\r\n")
        assert connection.response().status == 200
    connection.send(b"GET /healthz HTTP/1.2\r\n\r\n")
    check_raw_error(connection.response(), 400)


def test_http_1_0_client_gets_no_interim_response(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    head = f"POST {stream.url} HTTP/1.0\r\n{TYPE}\r\nContent-Length: 5\r\n"
    connection.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
    stream.head()
    connection.send(b"hello")
    assert connection.response().status == 204
    assert connection.ended()
    assert stream.read().content == b"hello"


@pytest.mark.parametrize(
    "shape", ["one large", "many small", "only separators", "target", "unfinished"]
)
def test_too_many_header_bytes_are_431(connect, shape) -> None:
    large = "y" * 70_000
    request = {
        "one large": f"GET /v1/stream/a HTTP/1.1\r\nHost: a\r\nX: {large}\r\n\r\n",
        "many small": "GET /v1/stream/a HTTP/1.1\r\n" + "X: y\r\n" * 20_000 + "\r\n",
        "only separators": "GET /v1/stream/a HTTP/1.1\r\nHost: a\r\n" + "X:\r\n" * 8_000 + "\r\n",
        "target": f"GET /v1/stream/a?x={large} HTTP/1.1\r\nHost: a\r\n\r\n",
        "unfinished": f"GET /v1/stream/a HTTP/1.1\r\nHost: a\r\nX: {large}",
    }[shape]
    connection = connect()
    connection.send(request.encode())
    check_raw_error(connection.response(), 431, "headers_too_large")
    assert connection.ended()


def test_trailers_are_no_headers(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    for trailer in ("Stream-Closed: true", "Stream-Seq: 9", "Content-Type: a/b", "Producer-Id: p"):
        connection.request("POST", stream.url, TYPE, "Transfer-Encoding: chunked")
        connection.send(f"1\r\nx\r\n0\r\n{trailer}\r\n\r\n".encode())
        assert connection.response().status == 204
    assert stream.append(b"y", stream_seq="1").status_code == 204
    assert stream.read().content == b"xxxxy"


TRAILERS = {
    "one large": b"X: " + b"y" * 200_000,
    "many small": b"X: y\r\n" * 40_000,
    "large name": b"y" * 200_000,
}


@pytest.mark.parametrize("trailer", TRAILERS.values(), ids=TRAILERS.keys())
def test_too_many_trailer_bytes_end_the_connection(new_stream, connect, trailer) -> None:
    stream, connection = new_stream(), connect()
    connection.request("POST", stream.url, TYPE, "Transfer-Encoding: chunked")
    connection.send(b"1\r\nx\r\n0\r\n")
    connection.send(trailer)
    assert connection.response().status in {400, 431}
    assert connection.ended()
    assert stream.read().content == b""


def test_absolute_target_and_lower_case_headers_are_understood(server, new_stream, connect) -> None:
    stream, connection = new_stream(body=b"hello"), connect()
    connection.send(f"GET {server.url}{stream.url} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
    assert connection.response().body == b"hello"


def test_unfinished_headers_time_out(start_server) -> None:
    with RawConnection(start_server(header_timeout=0.3).port) as connection:
        connection.send(b"GET /v1/stream/a HTTP/1.1\r\nHost")
        check_raw_error(connection.response(), 408, "request_timeout")
        assert connection.ended()


def test_unfinished_body_times_out(start_server, stream_on) -> None:
    server = start_server(body_timeout=0.3)
    stream = stream_on(server)
    with RawConnection(server.port) as connection:
        connection.request("POST", stream.url, TYPE, "Content-Length: 5")
        connection.send(b"he")
        check_raw_error(connection.response(), 408, "request_timeout")
        assert connection.ended()
    assert stream.read().content == b""


def test_idle_connection_is_closed(start_server, stream_on) -> None:
    server = start_server(idle_timeout=0.3)
    stream = stream_on(server, body=b"x")
    with RawConnection(server.port) as connection:
        connection.request("GET", stream.url)
        assert connection.response().status == 200
        assert connection.ended()


def test_connection_beyond_the_limit_is_503(start_server) -> None:
    server = start_server(connections_max=2)
    with RawConnection(server.port) as one, RawConnection(server.port) as two:
        for connection in (one, two):
            connection.request("GET", "/healthz")
            assert connection.response().status == 200
        with RawConnection(server.port) as three:
            three.request("GET", "/healthz")
            response = three.response()
            check_raw_error(response, 503, "overloaded")
            assert int(response.headers["retry-after"]) > 0
        two.request("GET", "/healthz")
        assert two.response().status == 200


def test_connection_cut_in_a_body_appends_nothing(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    connection.request("POST", stream.url, TYPE, "Content-Length: 100")
    connection.send(b"only the beginning")
    connection.__exit__()
    stream.append(b"whole")
    assert stream.read().content == b"whole"
