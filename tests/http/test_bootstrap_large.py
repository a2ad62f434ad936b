"""Bootstraps that do not fit into one read: several, of messages of any size, and slow readers."""

from collections.abc import Iterator

import httpx
import pytest

from tests.http.bucketed import bucket_stream, offset, parts
from tests.http.cold import IDLE, flush_and_forget, write_many
from tests.http.raw import RawConnection
from tests.http.streams import BINARY, JSON, TEXT, check_error
from tests.http.test_bootstrap import EMPTY, bootstrap_parts
from tests.server_process import ServerProcess
from tests.storage_stats import flush

# Every message, and several, and none fit into a read.
SIZES = [1, 10, 500, 999, 1000, 1001, 5000, 1, 2500, 100, 100, 100]
SMALL_READS = IDLE | {"read_bytes_max": 1000, "snapshot_cache_bytes": 0}


@pytest.fixture(scope="module")
def small_reads(tmp_path_factory) -> Iterator[httpx.Client]:
    """A server that reads a kilobyte at a time."""
    with ServerProcess(tmp_path_factory.mktemp("large") / "data", **SMALL_READS) as server:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            yield client


def message(kind: str, size: int) -> bytes:
    if kind != JSON:
        return (b"ab\r\n--" * (size // 6 + 1))[:size]
    return b"1" * size if size < 3 else b'"%b"' % (b"x" * (size - 2))


@pytest.mark.spec("extensions 3.2-7")
@pytest.mark.parametrize("store", ["hot", "cold", "mixed"])
@pytest.mark.parametrize("kind", [TEXT, BINARY, JSON])
@pytest.mark.parametrize("snapshot", [False, True], ids=["all", "since"])
def test_several_reads(small_reads, kind, store, snapshot) -> None:
    bodies = [message(kind, size) for size in SIZES]
    stream = bucket_stream(small_reads, content_type=kind)
    expected = [EMPTY]
    for number, body in enumerate(bodies):
        stream.append(b"[%b]" % body if kind == JSON else body)
        expected.append((kind, body))
        if snapshot and number == 4:
            stream.publish(stream.tail(), b"s" * 3000, "a/b")
            expected = [("a/b", b"s" * 3000)]
        if store == "mixed" and number % 3 == 1:
            flush(small_reads)
    if store == "cold":
        flush_and_forget(stream)
    assert bootstrap_parts(stream) == expected


@pytest.mark.parametrize("store", ["hot", "cold", "mixed"])
@pytest.mark.parametrize("kind", [TEXT, BINARY, JSON])
def test_more_than_a_mebibyte(small_reads, kind, store) -> None:
    sizes = [700_000, 1, 1_500_000, 3_000_000, 2, 900_000]
    bodies = [message(kind, size) for size in sizes]
    stream = bucket_stream(small_reads, content_type=kind)
    for number, body in enumerate(bodies):
        stream.append(b"[%b]" % body if kind == JSON else body)
        if store == "mixed" and number % 2:
            flush(small_reads)
    if store == "cold":
        flush_and_forget(stream)
    assert bootstrap_parts(stream) == [EMPTY, *((kind, body) for body in bodies)]


def test_many_messages(small_reads) -> None:
    stream = bucket_stream(small_reads, content_type=BINARY)
    bodies = [b"%d;" % number * 20 for number in range(2000)]
    write_many(stream, bodies[:-10])
    flush_and_forget(stream)
    for body in bodies[-10:]:
        stream.append(body)
    assert bootstrap_parts(stream) == [EMPTY, *((BINARY, body) for body in bodies)]


def test_what_is_appended_meanwhile_is_for_the_next_read(client, connect) -> None:
    stream = bucket_stream(client, *[b"#" * 4_000_000] * 3)
    connection = connect()
    connection.request("GET", f"{stream.url}/bootstrap")
    for _ in range(3):
        stream.append(b"later")
    answer = connection.response()
    assert answer.headers["stream-next-offset"] == offset(12_000_000)
    assert b"later" not in answer.body
    assert answer.body.count(b"#") == 12_000_000
    assert stream.read(answer.headers["stream-next-offset"]).content == b"later" * 3


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("event", ["snapshot", "deletion"])
def test_what_goes_meanwhile_breaks_it_off(start_server, client_of, event, cold) -> None:
    """Nobody takes a part for the whole; who comes back gets what is right."""
    server = start_server(**IDLE)
    client = client_of(server)
    stream = bucket_stream(client, *[b"#" * 4_000_000] * 4)
    if cold:
        flush_and_forget(stream)
    with RawConnection(server.port) as connection:
        connection.request("GET", f"{stream.url}/bootstrap")
        stream.head()
        if event == "snapshot":
            assert stream.publish(offset(16_000_000), b"state").status_code == 204
        else:
            assert stream.delete().status_code == 204
        if cold:
            flush(client)
            client.post("/cluster/collect-garbage")
        try:
            whole = connection.response().body
        except (OSError, ValueError):
            whole = b""
    assert whole.count(b"#") in {0, 16_000_000}
    if event == "snapshot":
        assert parts(stream.bootstrap()) == [(BINARY, b"state")]
    else:
        check_error(stream.bootstrap(), 404, "stream_not_found")
    assert "Traceback" not in server.stderr()
