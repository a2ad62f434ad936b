"""Bodies of snapshots on their way: slow, large, broken off, and overtaken by other writes."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from holdfast.objects.directory_objects import UNFINISHED
from holdfast.storage.snapshot_store import LARGE_AT_ONCE_MAX
from tests.http.bucketed import BucketStream, bucket_stream, offset, parts
from tests.http.raw import RawConnection, RawResponse
from tests.http.streams import BINARY, TEXT, check_error
from tests.moto_server import MotoServer
from tests.server_process import ServerProcess
from tests.storage_stats import until
from tests.tcp_proxy import TcpProxy

# Larger than what is stored with one request.
LARGE_BYTES = 20_000_000
SMALL_BYTES = 2000
MEBIBYTE = 1 << 20


class Upload:
    """A PUT of a snapshot whose body comes when the test wants it."""

    def __init__(self, connection: RawConnection, stream: BucketStream, at: int, size: int) -> None:
        self._connection = connection
        self._body = os.urandom(4096) * (size // 4096 + 1)
        self.body = self._body[:size]
        self._sent = 0
        connection.request("PUT", f"{stream.url}/snapshot/{offset(at)}", f"Content-Length: {size}")

    def send_half(self) -> None:
        """The first half of the body."""
        half = len(self.body) // 2
        self._connection.send(self.body[:half])
        self._sent = half

    def finish(self) -> RawResponse:
        """The rest of it, and the answer."""
        self._connection.send(self.body[self._sent :])
        return self._connection.response()


def objects(server: ServerProcess, *places: str) -> list[Path]:
    """All files of snapshots, finished or not."""
    store = server.data_dir / "objects"
    places = places or ("snapshots", UNFINISHED)
    return [path for place in places for path in (store / place).rglob("*") if path.is_file()]


def resident_bytes(server: ServerProcess, field: str = "VmHWM") -> int:
    """What the process takes up, or has taken up at most."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


@pytest.fixture
def upload(connect) -> Callable[..., Upload]:
    return lambda *arguments: Upload(connect(), *arguments)


@pytest.mark.spec("extensions 2.2-12")
@pytest.mark.parametrize("size", [SMALL_BYTES, LARGE_BYTES], ids=["small", "large"])
def test_appends_and_reads_go_on_meanwhile(client, upload, size) -> None:
    stream = bucket_stream(client, b"12345")
    sending = upload(stream, 5, size)
    sending.send_half()
    for number in range(3):
        assert stream.append(b"%d" % number).status_code == 204
        assert stream.read("-1").content == b"12345012"[: 6 + number]
    assert "Stream-Snapshot-Offset" not in stream.head().headers
    answer = sending.finish()
    assert answer.status == 204
    assert answer.headers["stream-next-offset"] == offset(8)
    assert stream.snapshot(offset(5)).content == sending.body
    assert parts(stream.bootstrap())[1:] == [(TEXT, b"0"), (TEXT, b"1"), (TEXT, b"2")]


def test_other_uploads_go_on_meanwhile(client, upload) -> None:
    """However many clients are slow to send theirs."""
    stream = bucket_stream(client, b"12345")
    others = [bucket_stream(client, b"12345") for _ in range(8)]
    sending = [upload(each, 5, LARGE_BYTES) for each in others[:6]]
    for each in sending:
        each.send_half()
    small = [upload(each, 5, SMALL_BYTES) for each in others[6:]]
    for each in small:
        each.send_half()
    assert stream.append(b"6").status_code == 204
    for each in [*small, *sending]:
        assert each.finish().status == 204
    for other, each in zip(others, [*sending, *small], strict=True):
        assert other.snapshot(offset(5)).content == each.body


def test_too_many_large_uploads_are_503(start_server, client_of) -> None:
    """What they hold in memory is bounded; small ones go on, and a place is free once one ends."""
    server = start_server()
    client = client_of(server)
    streams = [bucket_stream(client, b"12345") for _ in range(LARGE_AT_ONCE_MAX)]
    other = bucket_stream(client, b"12345")
    for ends_well in (False, True):
        with ExitStack() as stack:
            sending = [
                Upload(stack.enter_context(RawConnection(server.port)), stream, 5, LARGE_BYTES)
                for stream in streams
            ]
            for each in sending:
                each.send_half()
            until(lambda: len(objects(server, UNFINISHED)) == LARGE_AT_ONCE_MAX)
            refused = other.publish(offset(5), bytes(LARGE_BYTES))
            check_error(refused, 503, "overloaded")
            assert refused.headers["Retry-After"]
            assert other.publish(offset(5), b"small").status_code == 204
            if ends_well:
                assert [each.finish().status for each in sending] == [204] * len(sending)
        until(lambda: not objects(server, UNFINISHED))
    assert other.publish(offset(5), bytes(LARGE_BYTES)).status_code == 204


@pytest.mark.spec("extensions 2.2-10")
def test_newer_snapshot_overtakes(client, upload) -> None:
    stream = bucket_stream(client, b"12345", b"678")
    sending = upload(stream, 5, SMALL_BYTES)
    sending.send_half()
    assert stream.publish(offset(8), b"newer").status_code == 204
    answer = sending.finish()
    assert answer.status == 410
    assert answer.headers["stream-earliest-offset"] == offset(8)
    assert stream.snapshot(offset(8)).content == b"newer"


def test_last_of_two_at_one_offset_stays(client, upload) -> None:
    stream = bucket_stream(client, b"12345")
    first, second = upload(stream, 5, SMALL_BYTES), upload(stream, 5, SMALL_BYTES)
    first.send_half()
    second.send_half()
    assert second.finish().status == 204
    assert stream.snapshot(offset(5)).content == second.body
    assert first.finish().status == 204
    assert stream.snapshot(offset(5)).content == first.body


@pytest.mark.parametrize("size", [SMALL_BYTES, LARGE_BYTES], ids=["small", "large"])
def test_stream_is_deleted_meanwhile(start_server, client_of, size) -> None:
    server = start_server()
    stream = bucket_stream(client_of(server), b"12345")
    with RawConnection(server.port) as connection:
        sending = Upload(connection, stream, 5, size)
        sending.send_half()
        stream.delete()
        assert sending.finish().status == 404
    until(lambda: not objects(server))


def test_stream_is_deleted_and_created_again_meanwhile(start_server, client_of) -> None:
    server = start_server()
    stream = bucket_stream(client_of(server), b"12345")
    with RawConnection(server.port) as connection:
        sending = Upload(connection, stream, 5, SMALL_BYTES)
        sending.send_half()
        stream.delete()
        stream.create(b"abcde")
        assert sending.finish().status == 409
    assert stream.read("-1").content == b"abcde"
    check_error(stream.snapshot(), 404, "snapshot_not_found")
    until(lambda: not objects(server))


@pytest.mark.parametrize("size", [SMALL_BYTES, LARGE_BYTES], ids=["small", "large"])
@pytest.mark.parametrize("half", [False, True], ids=["none", "half"])
def test_client_goes_away_meanwhile(start_server, client_of, size, half) -> None:
    server = start_server()
    client = client_of(server)
    stream = bucket_stream(client, b"12345")
    with RawConnection(server.port) as connection:
        sending = Upload(connection, stream, 5, size)
        if half:
            sending.send_half()
            until(lambda: size == SMALL_BYTES or objects(server))
        stream.head()
    assert stream.append(b"6").status_code == 204
    assert "Stream-Snapshot-Offset" not in stream.head().headers
    assert stream.read("-1").content == b"123456"
    until(lambda: not objects(server))
    assert stream.publish(offset(6), b"state").status_code == 204
    assert stream.snapshot(offset(6)).content == b"state"


@pytest.mark.parametrize("size", [SMALL_BYTES, LARGE_BYTES], ids=["small", "large"])
def test_server_is_stopped_meanwhile(start_server, client_of, size) -> None:
    """It waits for the body as long as it waits for any request, and ends."""
    server = start_server(shutdown_timeout=0.5)
    stream = bucket_stream(client_of(server), b"12345")
    with RawConnection(server.port) as connection:
        Upload(connection, stream, 5, size).send_half()
        stream.head()
        assert server.stop() == 0
    stream.client = client_of(start_server())
    assert stream.read("-1").content == b"12345"
    check_error(stream.snapshot(), 404, "snapshot_not_found")


def test_silence_within_the_body_is_408(start_server, client_of) -> None:
    server = start_server(body_timeout=0.5)
    stream = bucket_stream(client_of(server), b"12345")
    with RawConnection(server.port) as connection:
        Upload(connection, stream, 5, LARGE_BYTES).send_half()
        assert connection.response().status == 408
        assert connection.ended()
    check_error(stream.snapshot(), 404, "snapshot_not_found")
    until(lambda: not objects(server))


EXPECT = "Expect: 100-continue"


def test_client_that_asks_first_is_told_to_go_on(client, connect) -> None:
    stream, connection = bucket_stream(client, b"12345"), connect()
    target = f"{stream.url}/snapshot/{offset(5)}"
    connection.request("PUT", target, EXPECT, "Content-Length: 5")
    assert connection.response().status == 100
    connection.send(b"state")
    assert connection.response().status == 204
    connection.request("PUT", target, EXPECT, "Transfer-Encoding: chunked")
    assert connection.response().status == 100
    connection.send(b"5\r\nagain\r\n0\r\n\r\n")
    assert connection.response().status == 204
    assert stream.snapshot(offset(5)).content == b"again"


@pytest.mark.parametrize(
    ("at", "size", "status"),
    [(6, 5, 409), (3, 5, 400), (5, 200_000_000, 413), (5, 134_217_729, 413)],
)
@pytest.mark.parametrize("expects", [False, True], ids=["sends", "asks"])
def test_refused_before_the_body_is_sent(client, connect, at, size, status, expects) -> None:
    stream, connection = bucket_stream(client, b"12345"), connect()
    fields = [f"Content-Length: {size}", *([EXPECT] if expects else [])]
    connection.request("PUT", f"{stream.url}/snapshot/{offset(at)}", *fields)
    assert connection.response().status == status
    assert connection.ended()


def test_refusal_while_the_body_is_sent(client, connect) -> None:
    """The connection ends with it, since nobody wants the rest."""
    stream, connection = bucket_stream(client, b"12345"), connect()
    connection.request(
        "PUT", f"{stream.url}/snapshot/{offset(3)}", f"Content-Length: {LARGE_BYTES}"
    )
    connection.send(bytes(100_000))
    answer = connection.response()
    assert answer.status == 400
    assert answer.headers["connection"] == "close"
    assert connection.ended()


def test_chunked_body_beyond_the_limit_is_413(start_server, client_of) -> None:
    server = start_server(snapshot_bytes_max=12_000_000)
    stream = bucket_stream(client_of(server), b"12345")
    with RawConnection(server.port) as connection:
        target = f"{stream.url}/snapshot/{offset(5)}"
        connection.request("PUT", target, "Transfer-Encoding: chunked")
        chunk = b"%x\r\n%b\r\n" % (1_000_000, bytes(1_000_000))
        for _ in range(12):
            connection.send(chunk)
        connection.send(b"1\r\nx\r\n")
        answer = connection.response()
    assert answer.status == 413
    assert b"payload_too_large" in answer.body
    check_error(stream.snapshot(), 404, "snapshot_not_found")
    until(lambda: not objects(server))


@pytest.mark.parametrize("body", [b"5\r\nstate\r\nnonsense\r\n", b"-1\r\n", b"5\r\nstateX\r\n"])
def test_malformed_chunks_are_400(client, connect, body) -> None:
    stream, connection = bucket_stream(client, b"12345"), connect()
    target = f"{stream.url}/snapshot/{offset(5)}"
    connection.request("PUT", target, "Transfer-Encoding: chunked")
    connection.send(body)
    assert connection.response().status == 400
    check_error(stream.snapshot(), 404, "snapshot_not_found")


def test_pipelined_requests_are_answered_in_order(client, connect) -> None:
    stream, connection = bucket_stream(client, b"12345"), connect()
    target = f"{stream.url}/snapshot/{offset(5)}"
    connection.request("HEAD", stream.url)
    connection.request("PUT", target, body=b"first")
    connection.request("GET", target)
    connection.request("PUT", target, body=b"second")
    connection.request("GET", target)
    connection.request("POST", stream.url, f"Content-Type: {TEXT}", body=b"6")
    connection.request("PUT", f"{stream.url}/snapshot/{offset(6)}", body=b"third")
    connection.request("GET", f"{stream.url}/snapshot/{offset(6)}")
    answers = [connection.response("HEAD"), *(connection.response() for _ in range(7))]
    assert [each.status for each in answers] == [200, 204, 200, 204, 200, 204, 204, 200]
    assert [each.body for each in answers if each.status == 200] == [
        b"",
        b"first",
        b"second",
        b"third",
    ]


def test_large_snapshot_does_not_go_through_memory(start_server, client_of) -> None:
    """Neither on its way in, nor out, nor within a bootstrap."""
    server = start_server()
    client = client_of(server)
    stream = bucket_stream(client, b"12345")
    stream.publish(offset(5), b"x" * MEBIBYTE)
    assert len(stream.snapshot(offset(5)).content) == MEBIBYTE
    before = resident_bytes(server)
    piece = os.urandom(MEBIBYTE)
    assert stream.publish(offset(5), (piece for _ in range(64))).status_code == 204
    for url in (f"{stream.url}/snapshot/{offset(5)}", f"{stream.url}/bootstrap"):
        with client.stream("GET", url) as answer:
            size = sum(len(each) for each in answer.iter_bytes())
        assert size >= 64 * MEBIBYTE
    assert resident_bytes(server) - before < 48 * MEBIBYTE


def test_reader_that_does_not_read_costs_little(start_server, client_of) -> None:
    server = start_server()
    client = client_of(server)
    stream = bucket_stream(client, b"12345")
    piece = bytes(MEBIBYTE)
    assert stream.publish(offset(5), (piece for _ in range(32))).status_code == 204
    before = resident_bytes(server)
    with RawConnection(server.port) as one, RawConnection(server.port) as other:
        one.request("GET", f"{stream.url}/bootstrap")
        other.request("GET", f"{stream.url}/snapshot/{offset(5)}")
        for _ in range(20):
            assert stream.append(b"x").status_code == 204
        assert resident_bytes(server) - before < 24 * MEBIBYTE
        assert len(other.response().body) == 32 * MEBIBYTE
        assert len(one.response().body) > 32 * MEBIBYTE


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


class TestS3:
    """The store is elsewhere, slow or away."""

    @pytest.fixture
    def proxy(self, moto) -> Iterator[TcpProxy]:
        with TcpProxy(moto.port) as proxy:
            yield proxy

    @pytest.fixture
    def stream(self, moto, proxy, start_server, client_of) -> BucketStream:
        settings = moto.settings(moto.new_bucket()) | {
            "s3_endpoint": f"http://127.0.0.1:{proxy.port}",
            "snapshot_cache_bytes": 0,
        }
        client = client_of(start_server(**settings))
        client.timeout = httpx.Timeout(60)
        return bucket_stream(client, b"12345")

    @pytest.mark.parametrize("size", [SMALL_BYTES, LARGE_BYTES], ids=["small", "large"])
    def test_snapshot_in_s3(self, stream, size) -> None:
        body = os.urandom(size)
        assert stream.publish(offset(5), body).status_code == 204
        assert stream.snapshot(offset(5)).content == body
        assert parts(stream.bootstrap()) == [(BINARY, body)]

    def test_slow_store_does_not_block_appends(self, stream, proxy) -> None:
        port = stream.client.base_url.port
        with RawConnection(port) as connection:
            sending = Upload(connection, stream, 5, SMALL_BYTES)
            with proxy.silence():
                sending.send_half()
                connection.send(sending.body[SMALL_BYTES // 2 :])
                for number in range(20):
                    assert stream.append(b"x").headers["Stream-Next-Offset"] == offset(6 + number)
                assert "Stream-Snapshot-Offset" not in stream.head().headers
            assert connection.response().status == 204
        assert stream.snapshot(offset(5)).content == sending.body

    @pytest.mark.slow
    def test_store_that_is_away_is_503(self, stream, moto) -> None:
        with moto.outage():
            refused = stream.publish(offset(5), b"state")
            check_error(refused, 503, "store_unavailable")
            assert refused.headers["Retry-After"]
            assert stream.read("-1").content == b"12345"
        assert stream.publish(offset(5), b"state").status_code == 204
        assert stream.snapshot(offset(5)).content == b"state"
