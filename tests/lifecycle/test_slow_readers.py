"""Readers that do not read: the server keeps their place, not their bytes."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.crash.wire import Wire
from tests.http.raw import RawConnection
from tests.lifecycle.live import EventConnection
from tests.thorough import some_of

MIB = 1024 * 1024
APPENDED = 112 * MIB
APPEND_BYTES = 4 * MIB
READERS = 6
# What one reader may hold back: an event or a page of `read_bytes_max`, framed and encoded.
HELD_BYTES_MAX = 4 * MIB
# Buffers of the appends themselves, the allocator's reserve, anything that does not grow.
SLACK_BYTES = 96 * MIB


def resident_bytes(server) -> int:
    """How much memory the server's process occupies; its number is in the lock file."""
    pid = int((server.data_dir / "lock").read_text())
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the process has no VmRSS")


async def append_much(server, stream) -> None:
    async with await Wire.open(server.port) as wire:
        for number in range(APPENDED // APPEND_BYTES):
            body = b"%04d" % number * (APPEND_BYTES // 4)
            answer = await wire.request("POST", stream.url, body, content_type="text/plain")
            assert answer.status == 204


def check_memory(server, before: int) -> None:
    """The stream itself is in memory; a buffer for each reader would be several times that."""
    grown = resident_bytes(server) - before
    limit = APPENDED + READERS * HELD_BYTES_MAX + SLACK_BYTES
    assert grown < limit < APPENDED * READERS / 2, f"grown by {grown / MIB:.0f} MiB"


def check_content(data: bytes) -> None:
    assert len(data) == APPENDED
    for number in range(APPENDED // APPEND_BYTES):
        part = data[number * APPEND_BYTES : (number + 1) * APPEND_BYTES]
        assert part == b"%04d" % number * (APPEND_BYTES // 4)


@pytest.mark.slow
def test_sse_readers_that_do_not_read_catch_up_later(start_server, stream_on) -> None:
    server = start_server(sse_lifetime=600)
    stream = stream_on(server)

    async def scenario() -> None:
        target = f"{stream.url}?offset=-1&live=sse"
        opening = (EventConnection.open(server.port, target) for _ in range(READERS))
        readers = await asyncio.gather(*opening)
        before = resident_bytes(server)
        await append_much(server, stream)
        check_memory(server, before)
        for reader in readers:
            await read_all_events(reader)
            await reader.__aexit__()
        check_memory(server, before)

    asyncio.run(scenario())


async def read_all_events(reader: EventConnection) -> None:
    """Read events until everything has come, and check it."""
    chunks: list[bytes] = []
    size = 0
    while size < APPENDED:
        assert await reader._read_chunk()
        event, _, _ = reader.body.partition(b"\n\n")
        reader.body = b""
        if event.startswith(b"event: data"):
            chunks.append(event.removeprefix(b"event: data\ndata:"))
            size += len(chunks[-1])
    check_content(b"".join(chunks))


@pytest.mark.slow
def test_catch_up_readers_that_do_not_read_catch_up_later(start_server, stream_on) -> None:
    """Each asks for the whole stream at once, page after page, and reads nothing for a while."""
    server = start_server()
    stream = stream_on(server)
    asyncio.run(append_much(server, stream))
    before = resident_bytes(server)
    offsets = range(0, APPENDED, MIB)
    readers = [RawConnection(server.port) for _ in range(READERS)]
    for reader in readers:
        for offset in offsets:
            reader.request("GET", f"{stream.url}?offset={offset:020d}")
    # Any answer to a later request shows that the server has done what it will do for these.
    for _ in range(20):
        assert stream.head().status_code == 200
    check_memory(server, before + APPENDED)
    for reader in readers:
        check_content(b"".join(reader.response().body for _ in offsets))
        reader.__exit__()
    check_memory(server, before + APPENDED)


@pytest.mark.slow
def test_pipelined_reads_of_one_write_wait_for_the_client(start_server, stream_on) -> None:
    """They arrive together, so that no pause in reading keeps them away."""
    server = start_server()
    stream = stream_on(server, body=b"x" * MIB)
    count = APPENDED * READERS // MIB
    request = f"GET {stream.url} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    before = resident_bytes(server)
    with RawConnection(server.port) as reader:
        reader.send(request * count)
        assert reader.response().body == b"x" * MIB
        for _ in range(20):
            assert stream.head().status_code == 200
        check_memory(server, before)
        for _ in range(count - 1):
            assert reader.response().body == b"x" * MIB
        check_memory(server, before)


@pytest.mark.slow
@pytest.mark.parametrize("live", some_of(["sse", "catch-up", "half a request"], 1))
def test_reader_that_never_reads_again_is_dropped(start_server, stream_on, live) -> None:
    """Its connection is as idle as one without requests."""
    server = start_server(idle_timeout=0.5, header_timeout=0.5, sse_heartbeat=0.1)
    stream = stream_on(server)
    for _ in range(4):
        stream.append(b"x" * APPEND_BYTES)
    query = "?offset=-1&live=sse" if live == "sse" else "?offset=-1"
    with RawConnection(server.port) as stuck:
        head = f"GET {stream.url}{query} HTTP/1.1\r\nHost: a\r\n"
        count = 1 if live == "sse" else 16
        rest = head if live == "half a request" else ""
        stuck.send(f"{head}\r\n".encode() * count + rest.encode())
        for connections in (2, 1):
            ends_s = time.monotonic() + 20
            line = b"holdfast_http_connections %d.0" % connections
            while line not in stream.client.get("/metrics").content:
                assert time.monotonic() < ends_s, f"there never were {connections} connections"
    assert b"holdfast_live_readers 0.0" in stream.client.get("/metrics").content


@pytest.mark.slow
def test_live_reader_is_never_idle(start_server, stream_on) -> None:
    """Neither silence nor a pause in its reading counts, once it reads again."""
    server = start_server(sse_lifetime=600, idle_timeout=0.1, sse_heartbeat=0.25)
    stream = stream_on(server)
    for _ in range(4):
        stream.append(b"x" * APPEND_BYTES)

    async def scenario() -> None:
        target = f"{stream.url}?offset=-1&live=sse"
        async with await EventConnection.open(server.port, target) as reader:
            await reader.read_until(4 * APPEND_BYTES)
            # More than two seconds, in which connections without a request are closed.
            while reader.body.count(b": heartbeat\n\n") < 12:
                assert await reader._read_chunk()
            stream.append(b"still here")
            await reader.read_until(4 * APPEND_BYTES + 10)

    asyncio.run(scenario())
