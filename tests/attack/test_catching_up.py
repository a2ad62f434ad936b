"""Many readers that catch up at once, and readers that never read."""

import signal
import time

import pytest

from tests.attack.flood import Flood
from tests.attack.probe import Probe, resident_bytes
from tests.http.bucketed import bucket_stream
from tests.http.raw import RawConnection
from tests.http.streams import BINARY, JSON, TEXT
from tests.storage_stats import flush, metrics, until

MIB = 1024 * 1024
READERS = 1000
STALLED = 300
# What a reader may hold of the server's memory, its connection included.
HELD_BYTES_MAX = 256 * 1024
BODIES = {
    TEXT: b"ab\n" * (MIB // 3),
    JSON: b"[%b]" % b",".join([b'{"n":1,"text":"some words"}'] * 20_000),
    BINARY: bytes(range(256)) * (MIB // 256),
}
HOT = {"hot_bytes_soft": 300 * MIB, "hot_bytes_hard": 600 * MIB}


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["memory", "packs"])
@pytest.mark.parametrize("kind", [TEXT, BINARY])
def test_readers_that_come_together_let_others_through(
    start_server, stream_on, client_of, kind, place
) -> None:
    """As after a restart: everybody connects and wants everything."""
    server = start_server(**HOT)
    stream, probed = stream_on(server, kind), stream_on(server)
    for _ in range(32):
        stream.append(BODIES[kind])
    if place == "packs":
        flush(client_of(server))
    with Probe(server.port, probed.url) as probe, Flood(server.port, READERS) as flood:
        flood.send(get(f"{stream.url}?offset=-1&live=sse"), timeout_s=30)
        ends_s = time.monotonic() + 30
        while not all(each.received for each in flood.connections):
            assert time.monotonic() < ends_s, "some readers got nothing"
            flood.read(timeout_s=0.1)
            # Otherwise this process needs gigabytes.
            for each in flood.connections:
                del each.received[1:]
    assert probe.waits.failures == []
    assert probe.waits.requests > 2
    assert probe.waits.worst_health_s < 0.25
    assert probe.waits.worst_append_s < 0.5


@pytest.mark.slow
def test_who_connects_last_does_not_wait_for_long(start_server, stream_on) -> None:
    """Everybody else is there before, and wants everything."""
    server = start_server(**HOT)
    stream = stream_on(server)
    for _ in range(8):
        stream.append(BODIES[TEXT])
    server.signal(signal.SIGSTOP)
    try:
        with Flood(server.port, READERS) as flood, RawConnection(server.port) as last:
            flood.send(get(f"{stream.url}?offset=-1&live=sse"), timeout_s=30, reads=False)
            last.request("GET", "/healthz")
            started_s = time.monotonic()
            server.signal(signal.SIGCONT)
            assert last.response().status == 200
            # A thousand connections and requests take their time, but not a thousand turns.
            assert time.monotonic() - started_s < 1
    finally:
        server.signal(signal.SIGCONT)


def hold(server, path: str, count: int = STALLED) -> float:
    """The memory for each of many readers of this path that never read."""
    with Flood(server.port, 3, receive_bytes=4096) as first:
        # What is loaded and cached once for all.
        first.send(get(path), timeout_s=10, reads=False)
        time.sleep(1)
    before = resident_bytes(server.pid)
    with Flood(server.port, count, receive_bytes=4096) as flood:
        flood.send(get(path) * 6, timeout_s=10, reads=False)
        held = [0, -MIB]
        # Until it grows no more.
        while abs(held[-1] - held[-2]) > MIB // 4:
            time.sleep(1)
            held.append(resident_bytes(server.pid) - before)
    return max(held) / count


@pytest.mark.slow
@pytest.mark.parametrize("place", ["memory", "packs"])
@pytest.mark.parametrize("kind", list(BODIES))
@pytest.mark.parametrize("query", ["?offset=-1&live=sse", "?offset=-1", "/bootstrap"])
def test_readers_that_never_read_hold_little(start_server, client_of, kind, place, query) -> None:
    server = start_server(**HOT)
    client = client_of(server)
    stream = bucket_stream(client, *[BODIES[kind]] * 8, content_type=kind)
    if place == "packs":
        flush(client)
    assert hold(server, stream.url + query) < HELD_BYTES_MAX


@pytest.mark.slow
@pytest.mark.parametrize("size", [MIB // 2, 16 * MIB])
def test_readers_of_snapshots_that_never_read_hold_little(start_server, client_of, size) -> None:
    server = start_server(**HOT)
    stream = bucket_stream(client_of(server), b"x", content_type=BINARY)
    assert stream.publish(f"{0:020d}", bytes(size)).status_code == 204
    assert hold(server, f"{stream.url}/snapshot/{0:020d}") < HELD_BYTES_MAX


@pytest.mark.slow
def test_readers_beyond_the_budget_are_disconnected(start_server, stream_on, client_of) -> None:
    budget = 4 * MIB
    server = start_server(unsent_bytes_max=budget, **HOT)
    client, stream = client_of(server), stream_on(server, BINARY)
    for _ in range(8):
        stream.append(BODIES[BINARY])
    with Flood(server.port, STALLED // 4, receive_bytes=4096) as flood:
        flood.send(get(f"{stream.url}?offset=-1&live=sse"), timeout_s=10, reads=False)
        until(lambda: metrics(client)["holdfast_http_unsent_bytes"] > budget)
        until(lambda: metrics(client)["holdfast_http_unsent_disconnects_total"] > 0)
        # Others get on, and have all of it in the end.
        assert b"".join(read_all(stream)) == 8 * BODIES[BINARY]
        assert metrics(client)["holdfast_http_unsent_bytes"] < 2 * budget
    assert "clients that did not read" in server.stderr()


def read_all(stream):
    offset = "-1"
    while True:
        answer = stream.read(offset)
        assert answer.status_code == 200
        yield answer.content
        offset = answer.headers["Stream-Next-Offset"]
        if "Stream-Up-To-Date" in answer.headers:
            return
