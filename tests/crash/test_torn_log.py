"""The data directory of a real server, damaged by hand: torn ends are cut, damage is refused."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.crash.conftest import MakeServer
from tests.http.streams import Stream, producer
from tests.server_process import ServerProcess
from tests.thorough import some_of

APPENDS = 40
TEXT = "text/plain"


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed server left that holds a stream."""
    data_dir = tmp_path_factory.mktemp("killed") / "data"
    with ServerProcess(data_dir) as server:
        with client_of(server) as client:
            stream = Stream(client, "torn/one")
            assert stream.create().status_code == 201
            for seq in range(APPENDS):
                assert stream.append(b"%d\n" % seq, **producer(seq)).status_code == 200
        server.kill()
    return data_dir


@pytest.fixture
def server(make_server: MakeServer, left_behind: Path) -> ServerProcess:
    """A server that holds a stream and was killed."""
    server = make_server()
    shutil.copytree(left_behind, server.data_dir)
    return server


def client_of(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=10)


def segments(server: ServerProcess) -> list[Path]:
    return sorted((server.data_dir / "log").glob("*.seg"))


def end_of_data(path: Path) -> int:
    """Where the last batch ends: zeros follow it, and no body here ends in one."""
    return len(path.read_bytes().rstrip(b"\0"))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int) -> None:
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x10]))


def check_all_there(server: ServerProcess) -> None:
    expected = b"".join(b"%d\n" % seq for seq in range(APPENDS))
    with client_of(server) as client:
        stream = Stream(client, "torn/one")
        assert stream.read().content == expected
        duplicate = stream.append(b"again", **producer(APPENDS - 1))
        assert duplicate.status_code == 204
        assert stream.read().content == expected


def check_takes_appends(server: ServerProcess) -> None:
    """What comes after a cut is as safe as what came before."""
    with client_of(server) as client:
        stream = Stream(client, "torn/two")
        stream.create()
        assert stream.append(b"after the cut").status_code == 204
    server.kill()
    server.start()
    check_all_there(server)
    with client_of(server) as client:
        assert Stream(client, "torn/two").read().content == b"after the cut"


def fails_to_start(server: ServerProcess) -> str:
    """Start the server, which must refuse; what it says is returned."""
    finished = subprocess.run(
        server._arguments, capture_output=True, text=True, timeout=30, check=False
    )
    assert finished.returncode == 1, finished
    assert finished.stdout == "", "it said that it listens"
    assert "Traceback" not in finished.stderr
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("holdfast: ")
    return last


TAILS = {
    "zeros": bytes(5000),
    "noise": Random(1).randbytes(5000),
    "one byte": b"H",
    "magic only": b"HFB\x01",
    "frame without body": b"HFB\x01" + Random(2).randbytes(28),
}


@pytest.mark.parametrize("tail", some_of(TAILS.values(), 1), ids=TAILS.keys())
def test_a_torn_tail_is_cut(server: ServerProcess, tail: bytes) -> None:
    path = segments(server)[-1]
    overwrite(path, end_of_data(path), tail)
    server.start()
    check_all_there(server)
    check_takes_appends(server)


@pytest.mark.slow
def test_noise_at_the_end_of_the_file_is_cut(server: ServerProcess) -> None:
    with segments(server)[-1].open("ab") as file:
        file.write(Random(3).randbytes(100))
    server.start()
    check_all_there(server)
    check_takes_appends(server)


@pytest.mark.parametrize("how", some_of(["cut", "zeros"], 1))
def test_a_half_written_batch_is_cut(server: ServerProcess, how: str) -> None:
    """Its frame is whole, its body is not; the power went before it was acknowledged."""
    server.start()
    with client_of(server) as client:
        Stream(client, "torn/three").create(b"never acknowledged")
    server.kill()
    last = segments(server)[-1]
    end = end_of_data(last)
    if how == "cut":
        os.truncate(last, end - 3)
    else:
        overwrite(last, end - 3, bytes(3))
    server.start()
    with client_of(server) as client:
        assert Stream(client, "torn/three").head().status_code == 404
    assert "torn tail" in server.stderr()
    check_takes_appends(server)


@pytest.mark.slow
def test_an_unfinished_segment_is_no_part_of_the_log(server: ServerProcess) -> None:
    last = segments(server)[-1]
    last.with_name(f"{int(last.stem) + 1:010d}.seg").write_bytes(last.read_bytes()[:30])
    server.start()
    check_all_there(server)
    check_takes_appends(server)


def test_a_flipped_byte_in_the_middle_is_refused(server: ServerProcess) -> None:
    path = segments(server)[-1]
    at = end_of_data(path) // 2
    flip(path, at)
    damaged = path.read_bytes()
    message = fails_to_start(server)
    found = re.search(r"damaged: (\S+) at byte (\d+):", message)
    assert found, message
    assert Path(found[1]) == path
    # The batch that the byte belongs to, of which each holds one small append.
    assert at - 200 < int(found[2]) <= at
    assert path.read_bytes() == damaged, "a refusal changes nothing"
    flip(path, at)
    server.start()
    check_all_there(server)


@pytest.mark.slow
def test_a_damaged_header_is_refused(server: ServerProcess) -> None:
    path = segments(server)[-1]
    flip(path, 20)
    message = fails_to_start(server)
    assert str(path) in message
    assert "byte 0" in message


def test_a_missing_segment_is_refused(server: ServerProcess) -> None:
    for _ in range(2):
        server.start()
        with client_of(server) as client:
            assert Stream(client, "torn/one").append(b"more\n").status_code == 204
        server.kill()
    first, *_ = segments(server)
    first.unlink()
    assert str(first.parent) in fails_to_start(server)


@pytest.mark.slow
def test_a_flipped_byte_in_an_older_segment_is_refused(server: ServerProcess) -> None:
    """The last batch of a segment that has a successor is no torn tail."""
    server.start()
    with client_of(server) as client:
        assert Stream(client, "torn/one").append(b"more\n").status_code == 204
    server.kill()
    path = segments(server)[0]
    flip(path, end_of_data(path) - 1)
    message = fails_to_start(server)
    assert str(path) in message
    assert re.search(r"at byte \d+", message)


@pytest.mark.slow
def test_an_unknown_format_is_refused(server: ServerProcess) -> None:
    marker = server.data_dir / "format"
    known = marker.read_text()
    marker.write_text("holdfast-data 99\n")
    message = fails_to_start(server)
    assert "holdfast-data 99" in message
    assert str(server.data_dir) in message
    marker.unlink()
    assert "'format'" in fails_to_start(server)
    marker.write_text(known)
    server.start()
    check_all_there(server)


@pytest.mark.parametrize("how", some_of(["running", "stopped by a signal"], 1))
def test_a_second_server_on_the_same_directory_is_refused(server: ServerProcess, how: str) -> None:
    server.start()
    if how != "running":
        server.signal(signal.SIGSTOP)
    message = fails_to_start(server)
    server.signal(signal.SIGCONT)
    assert f"{server.data_dir} is in use by another server" in message
    assert f"process {server._process.pid}" in message
    check_all_there(server)
    check_takes_appends(server)


def test_a_killed_server_leaves_no_lock_behind(server: ServerProcess) -> None:
    server.start()
    server.kill()
    assert (server.data_dir / "lock").exists()
    server.start()
    check_all_there(server)
