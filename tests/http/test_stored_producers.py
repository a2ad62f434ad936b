"""Producers that are in the catalog only, on a server with a limit, and very many of them."""

import asyncio
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from holdfast.storage.catalog import Catalog
from tests.http.conftest import DEADLINE_S
from tests.http.streams import Stream, check_error, producer
from tests.server_process import ServerProcess
from tests.storage_stats import flush

MANY = 200_000
CONNECTIONS = 16
PIPELINED = 50


def test_they_are_known_after_a_crash_and_limited(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", producers_max=3) as server:
        with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
            stream = Stream(client, "b/s")
            stream.create()
            for name in ("a", "b"):
                digest = name * 16
                added = stream.append(b"x", producer_digest=digest, **producer(0, 1, name))
                assert added.status_code == 200
            flush(client)
            assert stream.append(b"x", **producer(0, 0, "c")).status_code == 200
        server.kill()
        server.start()
        with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
            stream = Stream(client, "b/s")
            for name, epoch in (("a", 1), ("c", 0)):
                again = stream.append(b"x", **producer(0, epoch, name))
                assert again.status_code == 204
                assert again.headers["Producer-Seq"] == "0"
            other = stream.append(b"y", producer_digest="0" * 16, **producer(0, 1, "a"))
            check_error(other, 409, "producer_digest_mismatch")
            assert other.headers["Producer-Digest"] == "a" * 16
            check_error(stream.append(b"x", **producer(2, 1, "a")), 409)
            check_error(stream.append(b"x", **producer(0, 0, "b")), 403)
            flush(client)
            refused = stream.append(b"x", **producer(0, 0, "d"))
            check_error(refused, 403, "quota_exceeded", about="3 producers")
            assert stream.append(b"y", **producer(1, 1, "b")).status_code == 200
            assert stream.append(b"z").status_code == 204
            assert stream.read().content == b"xxxyz"


@pytest.mark.slow
def test_very_many_on_one_stream_cost_a_flush_of_one_byte_nothing(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client,
    ):
        stream = Stream(client, "b/s")
        stream.create()
        asyncio.run(_write(server.port))
        flush(client)
        packs = server.data_dir / "objects" / "packs"
        before = set(packs.iterdir())
        assert stream.append(b"y", **producer(1, 0, "session-7")).status_code == 200
        flush(client)
        [pack] = set(packs.iterdir()) - before
        assert pack.stat().st_size < 1000
        assert stream.append(b"x", **producer(0, 0, "session-9")).status_code == 204
        with closing(Catalog(server.data_dir / "catalog.sqlite")) as catalog:
            started_s = time.perf_counter()
            row = catalog.find_name("b/s")
            loaded_s = time.perf_counter() - started_s
            count, state = catalog.find_producer(row.number, b"session-7")
            found_s = time.perf_counter() - started_s - loaded_s
        assert (count, state[:2]) == (MANY, (0, 1))
        assert loaded_s < 0.02
        assert found_s < 0.02


async def _write(port: int) -> None:
    """Append a byte as each of the producers."""

    async def some(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(first, MANY, CONNECTIONS * PIPELINED):
            numbers = range(at, min(MANY, at + CONNECTIONS * PIPELINED), CONNECTIONS)
            writer.write(b"".join(map(_request, numbers)))
            for _ in numbers:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 "), head
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*map(some, range(CONNECTIONS)))


def _request(number: int) -> bytes:
    return (
        b"POST /v1/stream/b/s HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
        b"Content-Length: 1\r\nProducer-Id: session-%d\r\nProducer-Epoch: 0\r\n"
        b"Producer-Seq: 0\r\n\r\nx" % number
    )
