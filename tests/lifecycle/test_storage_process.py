"""The storage process lives and dies with its server, and a server survives its death."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.crash.storage_kills import child_of, is_running
from tests.http.raw import RawConnection
from tests.http.streams import check_error
from tests.server_process import ServerProcess
from tests.storage_stats import flush, metrics, stats, until
from tests.thorough import some_of

# How long a storage process may outlive its server: it takes far less.
ORPHAN_S = 2.0
EXIT_S = 10.0


def child_started(server: ServerProcess) -> int:
    """The id of the storage process, once there is one."""
    return until(lambda: child_of(server))


@pytest.mark.parametrize("number", some_of([signal.SIGTERM, signal.SIGINT], 1))
def test_signal_to_the_server_ends_both(start_server, stream_on, number: signal.Signals) -> None:
    server = start_server()
    stream = stream_on(server, body=b"x")
    child = child_started(server)
    flush(stream.client)
    server.signal(number)
    assert server.wait() == 0
    assert not is_running(child)


@pytest.mark.parametrize("number", some_of([signal.SIGTERM, signal.SIGINT], 1))
def test_signal_to_the_whole_group_ends_both(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in a terminal: the child gets it as well, and leaves the decision to the server."""
    server = ServerProcess(tmp_path / "data")
    server._arguments.insert(0, "setsid")
    with server, httpx.Client(base_url=server.url) as client:
        child = child_started(server)
        assert os.getpgid(child) == os.getpgid(server.pid) == server.pid
        # Only once it has begun its work does it leave such decisions to the server.
        client.post("/cluster/collect-garbage").raise_for_status()
        os.killpg(server.pid, number)
        assert server.wait() == 0
        assert not is_running(child)
        assert "killed by signal" not in server.stderr()


@pytest.mark.slow
def test_second_signal_ends_both_at_once(start_server, stream_on) -> None:
    server = start_server()
    stream = stream_on(server)
    child = child_started(server)
    with RawConnection(server.port) as unfinished:
        # A request that is never complete keeps the server until its time is over.
        unfinished.request("POST", stream.url, "Content-Length: 5", "Expect: 100-continue")
        assert unfinished.response().status == 100
        server.signal(signal.SIGTERM)
        until(lambda: "stopping gracefully; repeat" in server.stderr())
        server.signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM
    until(lambda: not is_running(child), ORPHAN_S)


def test_child_does_not_outlive_a_killed_server(start_server, stream_on) -> None:
    server = start_server()
    stream_on(server, body=b"x")
    child = child_started(server)
    server.kill()
    until(lambda: not is_running(child), ORPHAN_S)


def test_restart_waits_for_the_child_of_a_killed_server(start_server, stream_on, client_of) -> None:
    server = start_server()
    stream = stream_on(server, body=b"x")
    child = child_started(server)
    os.kill(child, signal.SIGSTOP)
    try:
        server.kill()
        assert is_running(child)
        with ThreadPoolExecutor(1) as thread:
            starting = thread.submit(start_server)
            lock = server.data_dir / "lock"
            until(lambda: len(users_of(lock)) == 2)
            assert not starting.done()
            os.kill(child, signal.SIGCONT)
            server = starting.result()
    finally:
        if is_running(child):
            os.kill(child, signal.SIGCONT)
    assert not is_running(child)
    assert "locked by the child of a server that has ended: waiting" in server.stderr()
    stream.client = client_of(server)
    assert stream.read().content == b"x"
    flush(stream.client)


def users_of(path: Path) -> list[int]:
    """The processes that have a file open."""
    found = []
    for directory in Path("/proc").glob("[0-9]*/fd"):
        try:
            targets = {each.readlink() for each in directory.iterdir()}
        except OSError:
            continue
        if path in targets:
            found.append(int(directory.parent.name))
    return found


def test_second_server_is_turned_away_at_once(start_server) -> None:
    """The child holds the lock too, but the server is alive: there is nothing to wait for."""
    server = start_server()
    child_started(server)
    with pytest.raises(AssertionError, match=f"in use by another server .process {server.pid}."):
        start_server()


def test_killed_child_is_replaced(start_server, stream_on) -> None:
    server = start_server()
    stream = stream_on(server, body=b"x")
    client = stream.client
    for kills in range(1, 4):
        child = child_started(server)
        os.kill(child, signal.SIGKILL)
        until(lambda: metrics(client)["holdfast_storage_restarts_total"] == kills)  # noqa: B023
        assert stream.append(b"x").status_code == 204
        assert until(lambda: child_of(server)) != child
        until(lambda: client.post("/cluster/flush").status_code == 204)
        assert stats(client)["flush"]["process_restarts"] == kills
        assert stats(client)["hot"]["bytes"] == 0
    assert server.stderr().count("the storage process was killed by signal 9") == 3
    assert stream.read().content == b"xxxx"
    # What its predecessors did still counts.
    assert until(lambda: metrics(client)["holdfast_flushes_total"] >= 3)


@pytest.mark.slow
def test_commands_to_a_dead_child_are_answered(start_server, stream_on) -> None:
    """With 503, which is an invitation to come again."""
    server = start_server()
    stream = stream_on(server, body=b"x")
    child = child_started(server)
    os.kill(child, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(stream.client.post, f"/cluster/{path}")
            for path in ("flush", "collect-garbage")
        ]
        until(lambda: stats(stream.client)["flush"]["in_progress"])
        os.kill(child, signal.SIGKILL)
        for answer in asked:
            check_error(answer.result(), 503, "store_unavailable")
            assert int(answer.result().headers["Retry-After"]) >= 1
    until(lambda: stats(stream.client)["flush"]["flushed_position"] >= 1)


@pytest.mark.slow
def test_child_that_hangs_does_not_keep_the_server(start_server, stream_on) -> None:
    server = start_server()
    stream_on(server, body=b"x")
    child = child_started(server)
    os.kill(child, signal.SIGSTOP)
    started_s = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - started_s < EXIT_S, "the promise is 10 s"
    assert not is_running(child)


def test_server_with_nothing_to_store_has_no_child(start_server, stream_on) -> None:
    server = start_server(durability="memory")
    stream_on(server, body=b"x")
    assert child_of(server) is None


def test_no_child_is_left_where_a_start_fails(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir(parents=True)
    (tmp_path / "format").write_text("something else")
    server = ServerProcess(tmp_path)
    with pytest.raises(AssertionError, match="something else"):
        server.start()
    found = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, check=False)
    assert found.stdout == b""
