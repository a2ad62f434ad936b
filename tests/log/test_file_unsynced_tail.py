"""A last batch that was read from the system's cache alone is made durable before it counts.

A server that is killed between write and sync leaves such a batch, and so does one whose sync has
failed. The next one replays it; if the power fails after that it must still be there.
"""

import errno
from pathlib import Path
from random import Random

import pytest

from holdfast.errors import HoldfastError
from holdfast.log.file import FileLog
from holdfast.log.interface import CommitOutcome, ReplayedBatch
from holdfast.testing import FakeClock
from tests.log.implementations import OpenLog, batches
from tests.simulation.files import KilledError, SimFiles
from tests.simulation.timing import ClockWorker

DIRECTORY = Path("/log")
CRASHES = 60


class Disk:
    """A simulated disk, and a log on it that can be killed."""

    def __init__(self, **sizes):
        self.files = SimFiles()
        self.sizes = {"segment_bytes": 4096, "ballast_bytes": 0, "zero_ahead_bytes": 0, **sizes}
        self._worker = None

    def open(self):
        """Kill the log, if there is one, and start another on the same files."""
        if self._worker is not None:
            self._worker.kill()
        clock = FakeClock()
        self._worker = ClockWorker(clock)
        log = FileLog(DIRECTORY, clock, files=self.files, worker=self._worker, **self.sizes)
        return OpenLog(log, before_waiting=lambda: clock.advance(5))

    def check_after_power_failures(self, *expected):
        """Whatever of the unsynced is lost, this is replayed."""
        for seed in range(CRASHES):
            files = self.files.crash(Random(seed))
            log = FileLog(DIRECTORY, FakeClock(), files=files, **self.sizes)
            assert list(log.replay(0)) == list(expected), f"seed {seed}"


@pytest.fixture(params=[0, 1000], ids=["growing", "zeroed"])
def disk(request):
    disk = Disk(zero_ahead_bytes=request.param)
    disk.open().commit(*batches(b"one"))
    return disk


def kill_between_write_and_sync(log, disk, batch):
    # The zeros in front of the first batches are there already, so the write is the first.
    disk.files.kill_after(1)
    with pytest.raises(KilledError):
        log.append(*batch)
    disk.files.heal()


def test_batch_of_a_server_that_was_killed(disk):
    log = disk.open()
    log.commit(*batches(b"two", first=2))
    kill_between_write_and_sync(log, disk, ReplayedBatch(3, b"three" * 100))
    log = disk.open()
    assert log.replayed == batches(b"one", b"two", b"three" * 100)
    disk.check_after_power_failures(*log.replayed)
    log.commit(ReplayedBatch(4, b"four"))
    disk.check_after_power_failures(*log.replayed, ReplayedBatch(4, b"four"))


def test_batch_whose_sync_failed_and_could_not_be_disowned(disk):
    log = disk.open()
    disk.files.fail("sync", errno.EIO)
    disk.files.fail("create", errno.EIO)
    assert log.outcome(2, b"two") is CommitOutcome.UNKNOWN
    log = disk.open()
    assert log.replayed == batches(b"one", b"two")
    disk.check_after_power_failures(*log.replayed)


def test_header_that_disowns_it_does_not_come_back_once_it_was_replayed(disk):
    """The new server finds no room for a segment of its own, but serves what it has replayed."""
    log = disk.open()
    disk.files.fail("sync", errno.EIO, times=2)
    assert log.outcome(2, b"two") is CommitOutcome.UNKNOWN
    disk.files.fail("create", errno.ENOSPC)
    log = disk.open()
    assert log.replayed == batches(b"one", b"two")
    disk.check_after_power_failures(*log.replayed)


def test_start_is_refused_if_it_cannot_be_made_durable(disk):
    log = disk.open()
    log.commit(*batches(b"two", first=2))
    kill_between_write_and_sync(log, disk, ReplayedBatch(3, b"three"))
    disk.files.fail("sync", errno.EIO, times=2)
    with pytest.raises(HoldfastError, match=r"cannot be written: .*Input/output error"):
        disk.open()
    assert disk.open().replayed == batches(b"one", b"two", b"three")
    disk.check_after_power_failures(*batches(b"one", b"two", b"three"))


def test_ballast_is_freed_where_that_takes_room():
    disk = Disk(ballast_bytes=4096)
    disk.open().commit(*batches(b"one"))
    disk.files.fail("write", errno.ENOSPC)
    disk.files.fail("allocate", errno.ENOSPC)
    log = disk.open()
    assert "ballast" not in disk.files.names(DIRECTORY)
    assert log.replayed == batches(b"one")
    log.commit(*batches(b"two", first=2))
    assert "ballast" in disk.files.names(DIRECTORY)


def test_torn_batch_stays_cut(disk):
    log = disk.open()
    log.commit(*batches(b"two", first=2))
    disk.files.random = Random(1)
    disk.files.fail("write", errno.EIO)
    disk.files.fail("create", errno.EIO)
    assert log.outcome(3, b"torn" * 100) is CommitOutcome.UNKNOWN
    assert any(b"torn" in disk.files.read(DIRECTORY / name) for name in disk.files.names(DIRECTORY))
    log = disk.open()
    assert log.replayed == batches(b"one", b"two")
    disk.check_after_power_failures(*log.replayed)
    log.commit(ReplayedBatch(3, b"three"))
    disk.check_after_power_failures(*batches(b"one", b"two", b"three"))
