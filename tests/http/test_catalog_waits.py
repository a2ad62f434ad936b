"""Look-ups in a catalog that is not in the page cache: a thread waits for the disk, nobody else."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from holdfast.storage.page_cache import CachedFiles
from tests.http.raw import RawConnection
from tests.http.streams import Stream, producer
from tests.server_process import COMMAND, ServerProcess
from tests.storage_stats import flush, until

# A server whose threads cannot read the catalog while a file exists, which is how a slow disk
# behaves. The check of the page cache cannot end either, so every look-up has to wait.
SERVER = """
import os, sys, time
from holdfast import failpoints
from holdfast.cli.main import run
gate = sys.argv.pop(1)
def wait(name):
    while name == "catalog.warm" and os.path.exists(gate):
        time.sleep(0.005)
failpoints.hook = wait
run()
"""
TEXT_HEADER = "Content-Type: text/plain"
PRODUCER = ("Producer-Id: writer", "Producer-Epoch: 0", "Producer-Seq: 0")


class SlowServer(ServerProcess):
    """A server that reads no catalog until it is told to."""

    def __init__(self, data_dir: Path, **settings: object) -> None:
        super().__init__(data_dir, **settings)
        self._gate = data_dir.with_name("gate")
        self._gate.touch()
        rest = self._arguments[len(COMMAND) - 1 :]
        self._arguments = [sys.executable, "-c", SERVER, str(self._gate), *rest]

    def read_on(self) -> None:
        """Have the disk respond."""
        self._gate.unlink(missing_ok=True)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowServer]:
    """A slow server with `test/hot` in memory; the other streams are in packs only."""
    with ServerProcess(tmp_path / "data") as server:
        with httpx.Client(base_url=server.url) as client:
            for name in ("cold", "source", "listed", "pipelined"):
                assert Stream(client, f"test/{name}").create(b"old,").status_code == 201
            fork = Stream(client, "test/fork")
            assert fork.create(stream_forked_from="/test/source").status_code == 201
            assert fork.append(b"own").status_code == 204
            produced = Stream(client, "test/produced")
            assert produced.create().status_code == 201
            assert produced.append(b"once", **producer(0)).status_code == 200
            assert Stream(client, "test/brief").create(stream_ttl="1").status_code == 201
            flush(client)
            assert Stream(client, "test/hot").create().status_code == 201
        server.kill()
    with SlowServer(tmp_path / "data") as server:
        yield server
        server.read_on()


def test_only_requests_for_streams_on_disk_wait(slow: SlowServer) -> None:
    """Health checks and writes to streams in memory go on; the others get their responses later."""
    with ExitStack() as stack:

        def ask(method: str, target: str, *headers: str, body: bytes = b"") -> RawConnection:
            connection = stack.enter_context(RawConnection(slow.port))
            connection.request(method, target, *headers, body=body)
            return connection

        asked = {
            "read": ask("GET", "/test/cold"),
            "fork": ask("GET", "/test/fork"),
            "append": ask("POST", "/test/cold", TEXT_HEADER, body=b"new"),
            "create": ask("PUT", "/test/new", TEXT_HEADER),
            "list": ask("GET", "/test/streams?prefix=listed"),
            "bootstrap": ask("GET", "/test/listed/bootstrap"),
            "no stream": ask("GET", "/test/none"),
            "duplicate": ask("POST", "/test/produced", TEXT_HEADER, *PRODUCER, body=b"once"),
        }
        pipelined = stack.enter_context(RawConnection(slow.port))
        for number in range(10):
            name = "pipelined" if number % 5 == 0 else "hot"
            pipelined.request("POST", f"/test/{name}", TEXT_HEADER, body=b"%d" % number)
        with httpx.Client(base_url=slow.url) as client:
            hot = Stream(client, "test/hot")
            for _ in range(3):
                assert client.get("/healthz").status_code == 200
                assert hot.append(b"now").status_code == 204
            assert hot.read().content == b"now" * 3
            assert not any(map(has_response, [*asked.values(), pipelined]))
            slow.read_on()
            found = {name: each.response() for name, each in asked.items()}
            assert {name: each.status for name, each in found.items()} == {
                "read": 200,
                "fork": 200,
                "append": 204,
                "create": 201,
                "list": 200,
                "bootstrap": 200,
                "no stream": 404,
                "duplicate": 204,
            }
            assert found["read"].body in {b"old,", b"old,new"}
            assert found["fork"].body == b"old,own"
            assert b'"stream_id":"listed"' in found["list"].body
            # An append that waits is not overtaken by those behind it.
            assert {pipelined.response().status for _ in range(10)} == {204}
            assert hot.read().content == b"now" * 3 + b"12346789"
            assert Stream(client, "test/pipelined").read().content == b"old,05"
            # The sweep waited as well: this one had to be found in the catalog.
            until(lambda: "brief" not in client.get("/test/streams").text)


def has_response(connection: RawConnection) -> bool:
    """Whether there is anything to read by now."""
    connection._socket.setblocking(False)
    try:
        return bool(connection._socket.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection._socket.settimeout(10.0)


def test_the_page_cache_is_asked_whether_it_has_a_file(tmp_path: Path) -> None:
    """What was just written is there; what the system was asked to drop is not."""
    path = tmp_path / "file"
    files = CachedFiles([path])
    assert files.are_resident()
    path.touch()
    assert files.are_resident()
    path.write_bytes(bytes(300_001))
    assert files.are_resident()
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if files.are_resident():
        pytest.skip("this file system keeps its files in memory")
    assert not files.are_resident()
    path.read_bytes()
    assert files.are_resident()
