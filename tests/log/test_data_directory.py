"""The data directory: one server at a time, and only formats this one knows."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import DataDirectoryLockedError, HoldfastError, UnknownFormatError
from holdfast.log.directory import FORMAT, ORPHAN_WAIT_S_MAX, DataDirectory

HOLD = """
import sys
from pathlib import Path
from holdfast.log.directory import DataDirectory
directory = DataDirectory.open(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""


# A server whose child inherits the lock and ends when the pipe that is its input does.
HOLD_WITH_CHILD = """
import signal, subprocess, sys
from pathlib import Path
from holdfast.log.directory import DataDirectory
directory = DataDirectory.open(Path(sys.argv[1]))
child = subprocess.Popen(
    [sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=[directory.lock_descriptor]
)
if len(sys.argv) > 2:
    directory.close()
print("held", flush=True)
signal.pause()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "data"


def test_directory_is_made_with_its_marker(path):
    directory = DataDirectory.open(path)
    assert (path / "format").read_text() == FORMAT
    assert directory.log_path.is_dir()
    directory.close()


def test_directory_can_be_opened_again(path):
    for _ in range(3):
        DataDirectory.open(path).close()


def test_second_opening_is_refused_with_the_process(path):
    directory = DataDirectory.open(path)
    with pytest.raises(DataDirectoryLockedError) as caught:
        DataDirectory.open(path)
    assert str(path) in caught.value.message
    assert f"process {os.getpid()}" in caught.value.message
    directory.close()
    DataDirectory.open(path).close()


def test_refused_opening_does_not_give_up_the_lock_of_the_holder(path):
    directory = DataDirectory.open(path)
    for _ in range(2):
        with pytest.raises(DataDirectoryLockedError):
            DataDirectory.open(path)
    directory.close()


def test_lock_is_between_processes_and_ends_with_its_holder(path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DataDirectoryLockedError, match=f"process {holder.pid}"):
            DataDirectory.open(path)
        holder.kill()
        holder.wait()
    DataDirectory.open(path).close()


@contextmanager
def orphaned_lock(path, *options):
    """A server that was killed, and its child that lives on; ends it when called."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_WITH_CHILD, str(path), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout.readline() == b"held\n"
        server.kill()
        server.wait()
        yield server.stdin.close


class TestChildThatInheritsTheLock:
    def test_it_is_waited_for_when_its_server_is_gone(self, path):
        naps = []

        def sleep(seconds):
            naps.append(seconds)
            if len(naps) == 3:
                end_child()
            threading.Event().wait(0.01)

        with orphaned_lock(path) as end_child:
            directory = DataDirectory.open(path, sleep=sleep)
        assert len(naps) >= 3
        assert int((path / "lock").read_text()) == os.getpid()
        directory.close()

    def test_it_is_waited_for_without_a_seam_too(self, path):
        with orphaned_lock(path) as end_child:
            timer = threading.Timer(0.2, end_child)
            timer.start()
            DataDirectory.open(path).close()
            timer.join()

    def test_wait_has_an_end(self, path):
        naps = []
        with orphaned_lock(path):
            with pytest.raises(DataDirectoryLockedError, match="child of a server that has ended"):
                DataDirectory.open(path, sleep=naps.append)
        assert sum(naps) == pytest.approx(ORPHAN_WAIT_S_MAX, abs=0.1)

    def test_wait_ends_at_once_if_another_server_was_faster(self, path):
        def sleep(seconds):
            (path / "lock").write_text(f"{os.getpid()}\n")

        with orphaned_lock(path):
            with pytest.raises(DataDirectoryLockedError, match=f"process {os.getpid()}"):
                DataDirectory.open(path, sleep=sleep)

    def test_it_is_waited_for_when_its_server_has_closed_the_directory(self, path):
        with orphaned_lock(path, "close"):
            with pytest.raises(DataDirectoryLockedError) as caught:
                DataDirectory.open(path, sleep=lambda seconds: None)
        assert "process" not in caught.value.message

    def test_nothing_is_waited_for_while_the_server_lives(self, path):
        directory = DataDirectory.open(path)
        with pytest.raises(DataDirectoryLockedError):
            DataDirectory.open(path, sleep=pytest.fail)
        directory.close()


def test_directory_knows_where_its_parts_are(path):
    directory = DataDirectory.open(path)
    assert directory.log_path == path / "log"
    assert directory.objects_path == path / "objects"
    assert directory.catalog_path == path / "catalog.sqlite"
    directory.close()
    directory.close()


def test_lock_file_never_needs_more_room_than_it_has(path):
    sizes = set()
    for _ in range(3):
        directory = DataDirectory.open(path)
        sizes.add((path / "lock").stat().st_size)
        directory.close()
        sizes.add((path / "lock").stat().st_size)
    assert len(sizes) == 1


@pytest.mark.parametrize("marker", ["holdfast-data 2\n", "", "something else", "holdfast-data 1"])
def test_unknown_format_is_refused_and_the_lock_given_up(path, marker):
    DataDirectory.open(path).close()
    (path / "format").write_text(marker)
    for _ in range(2):
        with pytest.raises(UnknownFormatError) as caught:
            DataDirectory.open(path)
    assert str(path) in caught.value.message
    assert (path / "format").read_text() == marker


def test_marker_of_binary_rubbish_is_refused(path):
    DataDirectory.open(path).close()
    (path / "format").write_bytes(b"\xff\x00" * 1000)
    with pytest.raises(UnknownFormatError) as caught:
        DataDirectory.open(path)
    assert len(caught.value.message) < 1000


def test_log_without_a_marker_is_refused(path):
    DataDirectory.open(path).close()
    (path / "format").unlink()
    (path / "log" / "0000000001.seg").write_bytes(b"data")
    with pytest.raises(UnknownFormatError, match="holds a log but no file 'format'"):
        DataDirectory.open(path)


def test_crash_while_the_marker_is_written_is_no_obstacle(path):
    path.mkdir(parents=True)
    (path / "format.new").write_text("holdf")
    DataDirectory.open(path).close()
    assert (path / "format").read_text() == FORMAT


def test_path_that_cannot_be_a_directory_is_refused_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HoldfastError, match="cannot be used") as caught:
        DataDirectory.open(tmp_path / "file" / "data")
    assert "--data-dir" in caught.value.message


def test_directories_above_it_are_made_as_well(tmp_path):
    path = tmp_path / "a" / "b" / "c"
    for _ in range(2):
        directory = DataDirectory.open(path)
        assert directory.log_path.is_dir()
        directory.close()


def test_relative_path_is_made_as_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    DataDirectory.open(Path("a/b/c")).close()
    assert (tmp_path / "a" / "b" / "c" / "log").is_dir()


def test_every_new_directory_is_made_durable_in_the_one_above(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def record(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    path = tmp_path / "a" / "b" / "c"
    DataDirectory.open(path).close()
    for changed in (tmp_path, tmp_path / "a", tmp_path / "a" / "b", path):
        assert changed.stat().st_ino in synced
