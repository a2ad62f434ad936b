"""Clients that hang up, fall silent or talk nonsense: they harm nobody but themselves."""

import socket
import struct
import time
from random import Random

import pytest

from tests.http.raw import RawConnection
from tests.http.streams import producer
from tests.http.test_bad_input import check_raw_error
from tests.server_process import ServerProcess

TYPE = "Content-Type: text/plain"
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("rude") / "data"
    with ServerProcess(data_dir, sse_heartbeat=0.1, header_timeout=0.5) as process:
        yield process
        assert "Traceback" not in process.stderr()


def wait_for(stream, line: bytes) -> None:
    """Wait until the metrics say so."""
    ends_s = time.monotonic() + DEADLINE_S
    while line not in (page := stream.client.get("/metrics").content):
        assert time.monotonic() < ends_s, page


def reset(connection: RawConnection) -> None:
    """Hang up as a crashed client does: with a reset instead of an end."""
    linger = struct.pack("ii", 1, 0)
    connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.__exit__()


@pytest.mark.parametrize("hang_up", [reset, RawConnection.__exit__], ids=["reset", "end"])
@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"PO",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123",
        b"POST /v1/stream/a HTTP/1.1\r\nHost:a\r\nContent-Length:9\r\nExpect: 100-continue\r\n\r\n",
    ],
    ids=["nothing", "method", "head", "no body", "half a body", "half a chunk", "expectation"],
)
def test_connection_cut_in_a_request_leaves_nothing(server, stream_on, part, hang_up) -> None:
    stream = stream_on(server)
    with RawConnection(server.port) as connection:
        connection.send(part.replace(b"/v1/stream/a", stream.url.encode()))
        hang_up(connection)
    wait_for(stream, b"holdfast_http_connections 1.0")
    assert stream.read().content == b""


@pytest.mark.parametrize("hang_up", [reset, RawConnection.__exit__], ids=["reset", "end"])
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_live_reader_that_hangs_up_is_forgotten(server, stream_on, live, hang_up) -> None:
    stream = stream_on(server, body=b"x")
    readers = [RawConnection(server.port) for _ in range(10)]
    for reader in readers:
        reader.request("GET", f"{stream.url}?offset=now&live={live}")
    wait_for(stream, b"holdfast_live_readers 10.0")
    for reader in readers:
        hang_up(reader)
    wait_for(stream, b"holdfast_live_readers 0.0")
    wait_for(stream, b"holdfast_http_connections 1.0")
    assert stream.append(b"y").status_code == 204


@pytest.mark.parametrize("hang_up", [reset, RawConnection.__exit__], ids=["reset", "end"])
def test_sse_reader_that_hangs_up_is_noticed_without_a_heartbeat(
    start_server, stream_on, hang_up
) -> None:
    server = start_server(sse_heartbeat=60, sse_lifetime=600)
    stream = stream_on(server, body=b"x")
    readers = [RawConnection(server.port) for _ in range(10)]
    for reader in readers:
        reader.request("GET", f"{stream.url}?offset=-1&live=sse")
    wait_for(stream, b"holdfast_live_readers 10.0")
    for reader in readers:
        hang_up(reader)
    wait_for(stream, b"holdfast_live_readers 0.0")
    wait_for(stream, b"holdfast_http_connections 1.0")
    counted = b'holdfast_http_requests_total{route="sse",status="200"} 10.0'
    assert counted in stream.client.get("/metrics").content


def test_client_that_leaves_before_its_answer_still_appended(server, stream_on) -> None:
    """It may have been sent again by then, which is what producers are for."""
    stream = stream_on(server)
    with RawConnection(server.port) as connection:
        headers = ("Producer-Id: writer", "Producer-Epoch: 0", "Producer-Seq: 0")
        connection.request("POST", stream.url, TYPE, *headers, body=b"once")
    again = stream.append(b"once", **producer(0))
    assert again.status_code in {200, 204}
    assert stream.read().content == b"once"


def test_half_closed_connection_gets_its_answers(server, stream_on) -> None:
    stream = stream_on(server)
    with RawConnection(server.port) as connection:
        for number in range(10):
            connection.request("POST", stream.url, TYPE, body=b"%d" % number)
        connection.request("GET", stream.url)
        connection._socket.shutdown(socket.SHUT_WR)
        assert {connection.response().status for _ in range(10)} == {204}
        assert connection.response().body == b"0123456789"
        assert connection.ended()


def test_half_closed_long_poll_is_answered(server, stream_on) -> None:
    stream = stream_on(server, body=b"x")
    with RawConnection(server.port) as connection:
        connection.request("GET", f"{stream.url}?offset=now&live=long-poll")
        connection._socket.shutdown(socket.SHUT_WR)
        assert connection.response().status == 204
        assert connection.ended()


def test_sse_reader_that_half_closes_is_gone(server, stream_on) -> None:
    """A reader that left looks the same, and is not to be kept until a heartbeat finds out."""
    stream = stream_on(server, body=b"first")
    with RawConnection(server.port) as connection:
        connection.request("GET", f"{stream.url}?offset=-1&live=sse")
        wait_for(stream, b"holdfast_live_readers 1.0")
        connection._socket.shutdown(socket.SHUT_WR)
        wait_for(stream, b"holdfast_live_readers 0.0")


def test_half_closed_in_a_request_is_the_end(server) -> None:
    with RawConnection(server.port) as connection:
        connection.send(b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345")
        connection._socket.shutdown(socket.SHUT_WR)
        assert connection.ended()


def test_two_hundred_appends_in_one_write(server, stream_on) -> None:
    stream = stream_on(server)
    head = f"POST {stream.url} HTTP/1.1\r\nHost: a\r\n{TYPE}\r\nContent-Length: 4\r\n\r\n".encode()
    with RawConnection(server.port) as connection:
        connection.send(b"".join(head + b"%03d\n" % number for number in range(200)))
        answers = [connection.response() for _ in range(200)]
    assert {answer.status for answer in answers} == {204}
    tails = [int(answer.headers["stream-next-offset"]) for answer in answers]
    assert tails == list(range(4, 804, 4))
    assert stream.read().content == b"".join(b"%03d\n" % number for number in range(200))


def test_reads_and_refusals_between_pipelined_appends_keep_their_place(server, stream_on) -> None:
    stream = stream_on(server)
    with RawConnection(server.port) as connection:
        for _ in range(30):
            connection.request("POST", stream.url, TYPE, body=b"x")
            connection.request("POST", stream.url, "Content-Type: text/other", body=b"y")
            connection.request("GET", stream.url)
        for number in range(1, 31):
            assert connection.response().status == 204
            assert connection.response().status == 409
            assert connection.response().body == b"x" * number


def test_thousands_of_requests_behind_an_append_are_answered(start_server, stream_on) -> None:
    server = start_server()
    stream = stream_on(server)
    request = f"HEAD {stream.url} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    with RawConnection(server.port) as connection:
        connection.request("POST", stream.url, TYPE, body=b"x")
        connection.send(request * 3000)
        assert connection.response().status == 204
        for _ in range(3000):
            assert connection.response("HEAD").status == 200


def test_noise_is_answered_or_cut_and_others_go_on(server, stream_on) -> None:
    stream = stream_on(server)
    random = Random(1)
    for _ in range(50):
        with RawConnection(server.port) as connection:
            connection.send(random.randbytes(random.randint(1, 3000)) + b"\r\n\r\n")
            check_raw_error(connection.response(), 400)
            assert connection.ended()
    assert stream.append(b"fine").status_code == 204


def test_damaged_requests_never_hang_or_harm(server, stream_on) -> None:
    """One byte of a good request is changed, in every place."""
    stream = stream_on(server)
    good = (
        f"POST {stream.url} HTTP/1.1\r\nHost: a\r\n{TYPE}\r\nContent-Length: 2\r\n\r\nhi".encode()
    )
    for at in range(0, len(good), 2):
        bad = good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :]
        with RawConnection(server.port) as connection:
            connection.send(bad)
            connection._socket.shutdown(socket.SHUT_WR)
            while connection._file.readline():
                pass
    assert stream.append(b"fine").status_code == 204
    assert set(stream.read().content.replace(b"fine", b"")) <= set(b"hi\x3d\x3c")


def test_silence_after_a_slow_answer_times_out(server, stream_on) -> None:
    """The time for a request's head counts, even if an earlier answer was read slowly."""
    stream = stream_on(server)
    for _ in range(8):
        stream.append(b"x" * 1_000_000)
    with RawConnection(server.port) as connection:
        for _ in range(8):
            connection.request("GET", f"{stream.url}?offset=-1")
        connection.send(b"GET /healthz HTTP/1.1\r\nHos")
        # Answers to others show that the server has come as far as it can without this client.
        for _ in range(3):
            stream.head()
        for _ in range(8):
            assert len(connection.response().body) == 1_000_000
        check_raw_error(connection.response(), 408, "request_timeout")
        assert connection.ended()


@pytest.mark.slow
def test_slow_but_steady_bodies_are_taken(start_server, stream_on) -> None:
    """The time limit is on silence and on the rate, not on the whole."""
    server = start_server(body_timeout=1, body_rate_min=1)
    stream = stream_on(server)
    with RawConnection(server.port) as connection:
        connection.request("POST", stream.url, TYPE, "Content-Length: 10")
        for number in range(10):
            connection.send(b"%d" % number)
            time.sleep(0.4)
        assert connection.response().status == 204
    assert stream.read().content == b"0123456789"


def test_connections_that_left_make_room_for_others(start_server) -> None:
    server = start_server(connections_max=20)
    for _ in range(3):
        crowd = [RawConnection(server.port) for _ in range(30)]
        statuses = []
        for connection in crowd:
            connection.request("GET", "/healthz")
            statuses.append(connection.response().status)
        assert statuses.count(200) >= 1
        assert set(statuses) <= {200, 503}
        assert statuses.count(503) >= 10
        for connection in crowd:
            connection.__exit__()
        ends_s = time.monotonic() + DEADLINE_S
        while not answers(server):
            assert time.monotonic() < ends_s


def answers(server) -> bool:
    with RawConnection(server.port) as connection:
        connection.request("GET", "/healthz")
        return connection.response().status == 200
