"""The limit on open files: raised where it may be, and otherwise kept clear of."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.raw import RawConnection
from tests.http.streams import Stream
from tests.http.test_bad_input import check_raw_error
from tests.server_process import ServerProcess

DEADLINE_S = 20.0
SPARE_FILES = 96


@contextlib.contextmanager
def limited(data_dir: Path, soft: int, hard: int, **settings: object) -> Iterator[ServerProcess]:
    """A server whose shell has set these limits."""
    server = ServerProcess(data_dir, **settings)
    script = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    server._arguments = ["/bin/sh", "-c", script, "sh", *server._arguments]
    with server:
        yield server


def ask(connection: RawConnection) -> int:
    connection.request("GET", "/healthz")
    return connection.response().status


def test_connections_stay_below_a_hard_limit(tmp_path) -> None:
    with (
        limited(tmp_path / "data", 160, 160, wal_segment_bytes=4096) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client,
        contextlib.ExitStack() as stack,
    ):
        assert "at most 64 connections" in server.stderr()
        assert "ulimit -n" in server.stderr()
        stream = Stream(client, "open/files")
        stream.create()
        crowd = [stack.enter_context(RawConnection(server.port)) for _ in range(160 - SPARE_FILES)]
        for connection in crowd[:-1]:
            assert ask(connection) == 200
        for connection in crowd[-1:]:
            connection.request("GET", "/healthz")
            check_raw_error(connection.response(), 503, "overloaded")
        lines = [b"%0399d\n" % number for number in range(100)]
        for line in lines:
            assert stream.append(line).status_code == 204
        assert len(list((server.data_dir / "log").glob("*.seg"))) > 5
        assert stream.read().content == b"".join(lines)
        assert "Traceback" not in server.stderr()


def test_limit_is_raised_as_far_as_it_may_be(tmp_path) -> None:
    with limited(tmp_path / "data", 64, 4096, connections_max=1000) as server:
        assert "connections instead of" not in server.stderr()
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(RawConnection(server.port)) for _ in range(200)]
            assert {ask(connection) for connection in crowd} == {200}


@pytest.mark.slow
def test_limit_that_leaves_hardly_any_room_is_survived(tmp_path) -> None:
    with limited(tmp_path / "data", 64, 64) as server:
        crowd = [RawConnection(server.port) for _ in range(100)]
        for connection in crowd:
            connection.request("GET", "/healthz")
        for connection in crowd:
            connection.__exit__()
        ends_s = time.monotonic() + DEADLINE_S
        while not answers(server):
            assert time.monotonic() < ends_s, "the server never answered again"


def answers(server: ServerProcess) -> bool:
    try:
        with RawConnection(server.port) as connection:
            return ask(connection) == 200
    except (EOFError, OSError):
        return False
