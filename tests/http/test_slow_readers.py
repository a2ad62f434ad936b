"""Readers that do not read: bounded memory, and nothing lost once they do."""

from pathlib import Path

import pytest

from tests.http.raw import RawConnection
from tests.http.streams import BINARY, TEXT

PIECE = b"x" * 500_000


def resident_bytes(pid: int) -> int:
    """The memory a process holds, from /proc."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_slow_sse_readers_are_not_buffered_without_bound(start_server, stream_on) -> None:
    server = start_server()
    stream = stream_on(server, TEXT, PIECE)
    readers = [RawConnection(server.port) for _ in range(40)]
    try:
        for reader in readers:
            reader.request("GET", f"{stream.url}?offset=-1&live=sse")
        stream.head()
        before = resident_bytes(server.pid)
        for _ in range(20):
            stream.append(PIECE)
        # All of it for every reader would be 400 MB; the stream itself is 10.
        assert resident_bytes(server.pid) - before < 100_000_000
    finally:
        for reader in readers:
            reader.__exit__()
    assert stream.append(b"still alive").status_code == 204


def test_slow_sse_reader_catches_up_without_gap_or_repeat(new_stream) -> None:
    stream = new_stream(TEXT)
    with stream.sse() as events:
        events.until_up_to_date()
        for number in range(40):
            stream.append(b"%04d" % number + PIECE)
        stream.close()
        # Only now does anybody read.
        found = list(events)
    received = "".join(event.data for event in found if event.type == "data")
    expected = "".join(f"{number:04}" + PIECE.decode() for number in range(40))
    assert len(received) == len(expected)
    assert received == expected
    assert [event.type for event in found[-1:]] == ["control"]
    assert found[-1].json["streamClosed"] is True


def test_slow_catch_up_reader_gets_everything(new_stream, connect) -> None:
    stream, connection = new_stream(BINARY, PIECE * 2), connect()
    for _ in range(20):
        connection.request("GET", f"{stream.url}?offset=-1")
    stream.head()
    for _ in range(20):
        assert connection.response().body == PIECE * 2
