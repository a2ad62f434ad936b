"""The file log on a disk that is full or broken: nothing is promised that cannot be kept."""

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.log.interface import CommitOutcome, ReplayedBatch
from tests.log.implementations import FileImplementation, batches
from tests.memory_directory import memory_directory
from tests.thorough import examples

BALLAST_BYTES = 8192


@pytest.fixture(params=[0, 500], ids=["growing", "zeroed"])
def disk(request, tmp_path):
    """A log with a ballast, and two batches in it."""
    implementation = FileImplementation(
        tmp_path, ballast_bytes=BALLAST_BYTES, zero_ahead_bytes=request.param
    )
    implementation.open().commit(*batches(b"one", b"two"))
    yield implementation
    implementation.close()


@pytest.fixture
def log(disk):
    """The log, freshly restarted."""
    return disk.reopen()


def ballast_bytes(disk):
    path = disk.directory / "ballast"
    return path.stat().st_size if path.exists() else 0


def bytes_on_disk(disk):
    return b"".join(path.read_bytes() for path in disk.segments())


class TestSync:
    def test_failed_bytes_are_on_disk_but_no_part_of_the_log(self, disk, log):
        log.commit(ReplayedBatch(3, b"three"))
        disk.files.fail("sync", errno.EIO)
        disk.files.fail("truncate", errno.EIO)
        result = log.append(4, b"never acknowledged")
        assert result.outcome is CommitOutcome.FAILED
        assert "Input/output error" in result.reason
        assert b"never acknowledged" in bytes_on_disk(disk)
        for _ in range(3):
            assert disk.reopen().replayed == batches(b"one", b"two", b"three")

    def test_failed_bytes_are_cut_off_where_that_can_be_done(self, disk, log):
        log.commit(ReplayedBatch(3, b"three"))
        disk.files.fail("sync", errno.EIO)
        assert log.outcome(4, b"never acknowledged") is CommitOutcome.FAILED
        assert b"never acknowledged" not in bytes_on_disk(disk)

    def test_segment_is_abandoned_and_the_next_one_names_its_end(self, disk, log):
        log.commit(ReplayedBatch(3, b"three"))
        before = disk.segments()
        disk.files.fail("sync", errno.EIO)
        log.append(4, b"failed")
        assert len(disk.segments()) == len(before) + 1
        log.commit(ReplayedBatch(4, b"four"))
        assert disk.reopen().replayed == batches(b"one", b"two", b"three", b"four")

    def test_first_batch_of_a_segment_fails(self, disk, log):
        disk.files.fail("sync", errno.EIO)
        assert log.outcome(3, b"failed") is CommitOutcome.FAILED
        assert disk.reopen().replayed == batches(b"one", b"two")

    def test_many_failures_leave_no_files_behind(self, disk, log):
        for _ in range(10):
            disk.files.fail("sync", errno.EIO)
            assert log.outcome(3, b"failed") is CommitOutcome.FAILED
        log.commit(ReplayedBatch(3, b"three"))
        assert disk.reopen().replayed == batches(b"one", b"two", b"three")
        assert len(disk.segments()) == 3


class TestWrite:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
    def test_half_written_batch_fails_and_appends_go_on(self, disk, log, code):
        disk.files.fail("write", code)
        assert log.outcome(3, b"failed" * 100) is CommitOutcome.FAILED
        log.commit(ReplayedBatch(3, b"three"))
        assert disk.reopen().replayed == batches(b"one", b"two", b"three")

    def test_reason_says_what_the_system_said(self, disk, log):
        disk.files.fail("write", errno.ENOSPC)
        assert "No space left on device" in log.append(3, b"failed").reason


class TestFullDisk:
    def test_ballast_is_laid_at_start(self, disk, log):
        assert ballast_bytes(disk) == BALLAST_BYTES

    def test_ballast_is_freed_so_that_the_failure_can_be_recorded(self, disk, log):
        log.commit(ReplayedBatch(3, b"three"))
        disk.files.fail("write", errno.ENOSPC)
        assert log.outcome(4, b"failed") is CommitOutcome.FAILED
        assert ballast_bytes(disk) == 0

    def test_appends_fail_without_a_byte_written_while_there_is_no_room(self, disk, log):
        disk.files.fail("write", errno.ENOSPC)
        log.append(3, b"failed")
        before = bytes_on_disk(disk)
        disk.files.fail("allocate", errno.ENOSPC, times=5)
        for _ in range(5):
            result = log.append(3, b"failed again")
            assert result.outcome is CommitOutcome.FAILED
            assert "no room" in result.reason
        assert bytes_on_disk(disk) == before

    def test_appends_work_again_once_there_is_room(self, disk, log):
        disk.files.fail("write", errno.ENOSPC)
        disk.files.fail("allocate", errno.ENOSPC, times=2)
        outcomes = [log.outcome(3, b"three") for _ in range(4)]
        assert outcomes == [CommitOutcome.FAILED] * 3 + [CommitOutcome.COMMITTED]
        assert ballast_bytes(disk) == BALLAST_BYTES
        assert disk.reopen().replayed == batches(b"one", b"two", b"three")

    def test_no_room_for_another_segment(self, disk, log):
        disk.segment_bytes = 100
        log = disk.reopen()
        log.commit(ReplayedBatch(3, b"x" * 200))
        disk.files.fail("create", errno.ENOSPC)
        result = log.append(4, b"failed")
        assert result.outcome is CommitOutcome.FAILED
        assert ballast_bytes(disk) == 0
        log.commit(ReplayedBatch(4, b"four"))
        assert ballast_bytes(disk) == BALLAST_BYTES
        assert disk.reopen().replayed == batches(b"one", b"two", b"x" * 200, b"four")

    def test_segment_is_sealed_once_a_successor_was_tried(self, disk, log):
        """A header that names its end may be on disk, even though its creation failed."""
        disk.segment_bytes = 300
        log = disk.reopen()
        log.commit(ReplayedBatch(3, b"three"))
        path = disk.segments()[-1]
        before = path.read_bytes()
        disk.files.fail("sync", errno.EIO)
        assert log.outcome(4, b"too large for the segment" * 20) is CommitOutcome.FAILED
        log.commit(ReplayedBatch(4, b"would fit"))
        assert before.startswith(path.read_bytes())
        assert disk.reopen().replayed == batches(b"one", b"two", b"three", b"would fit")

    def test_no_room_for_the_header_of_another_segment(self, disk, log):
        disk.segment_bytes = 100
        log = disk.reopen()
        log.commit(ReplayedBatch(3, b"x" * 200))
        disk.files.fail("write", errno.ENOSPC)
        assert log.outcome(4, b"failed") is CommitOutcome.FAILED
        assert disk.replay() == batches(b"one", b"two", b"x" * 200)
        log.commit(ReplayedBatch(4, b"four"))
        assert disk.reopen().replayed == batches(b"one", b"two", b"x" * 200, b"four")

    def test_server_starts_without_room_for_the_ballast(self, disk, log):
        disk.close()
        (disk.directory / "ballast").unlink()
        disk.files.fail("allocate", errno.ENOSPC, times=2)
        log = disk.open()
        assert log.replayed == batches(b"one", b"two")
        assert log.outcome(3, b"three") is CommitOutcome.FAILED
        assert log.outcome(3, b"three") is CommitOutcome.COMMITTED
        assert ballast_bytes(disk) == BALLAST_BYTES

    def test_log_without_ballast_fails_and_recovers_all_the_same(self, tmp_path):
        disk = FileImplementation(tmp_path / "log")
        disk.directory.mkdir()
        log = disk.open()
        disk.files.fail("write", errno.ENOSPC)
        assert log.outcome(1, b"failed") is CommitOutcome.FAILED
        log.commit(ReplayedBatch(1, b"one"))
        assert disk.reopen().replayed == batches(b"one")
        disk.close()


class TestUnknown:
    """A write failed, and the failure cannot be recorded either."""

    @pytest.mark.parametrize(
        "broken",
        [("sync", "create"), ("sync", "sync"), ("write", "write"), ("write", "create")],
        ids=" then ".join,
    )
    def test_outcome_is_unknown_and_settles_as_failed(self, disk, log, broken):
        log.commit(ReplayedBatch(3, b"three"))
        for operation in broken:
            disk.files.fail(operation, errno.EIO)
        result = log.append(4, b"lost")
        assert result.outcome is CommitOutcome.UNKNOWN
        assert "disowned" in result.reason
        assert log.settle().outcome is CommitOutcome.FAILED
        log.commit(ReplayedBatch(4, b"four"))
        expected = batches(b"one", b"two", b"three", b"four")
        for _ in range(3):
            assert disk.reopen().replayed == expected

    def test_settling_goes_on_until_it_succeeds(self, disk, log):
        disk.files.fail("sync", errno.EIO)
        disk.files.fail("create", errno.EIO, times=2)
        assert log.outcome(3, b"lost") is CommitOutcome.UNKNOWN
        assert log.settle().outcome is CommitOutcome.FAILED
        log.commit(ReplayedBatch(3, b"three"))
        assert disk.reopen().replayed == batches(b"one", b"two", b"three")

    def test_full_disk_that_has_not_even_room_for_a_header(self, disk, log):
        log.commit(ReplayedBatch(3, b"three"))
        disk.files.fail("write", errno.ENOSPC, times=2)
        assert log.outcome(4, b"lost") is CommitOutcome.UNKNOWN
        assert ballast_bytes(disk) == 0
        assert log.settle().outcome is CommitOutcome.FAILED
        log.commit(ReplayedBatch(4, b"four"))
        assert ballast_bytes(disk) == BALLAST_BYTES
        assert disk.reopen().replayed == batches(b"one", b"two", b"three", b"four")

    def test_closing_while_it_cannot_settle_does_not_hang(self, disk, log):
        disk.files.fail("sync", errno.EIO)
        disk.files.fail("create", errno.EIO, times=1000)
        assert log.outcome(3, b"lost") is CommitOutcome.UNKNOWN
        log.log.settle(lambda result: None)
        log.close()
        disk.files.heal()
        found = disk.reopen().replayed
        assert found[:2] == batches(b"one", b"two")
        assert disk.reopen().replayed == found


faults = st.lists(
    st.tuples(
        st.sampled_from(["write", "sync", "create", "allocate"]),
        st.sampled_from([errno.EIO, errno.ENOSPC]),
    ),
    max_size=3,
)
events = st.lists(st.tuples(faults, st.booleans(), st.integers(0, 300)), min_size=5, max_size=14)


@settings(max_examples=examples(40), derandomize=True, deadline=None)
@given(events, st.sampled_from([0, 200]), st.sampled_from([0, 4096]))
def test_any_faults_and_crashes_keep_what_was_committed(history, zero_ahead_bytes, ballast):
    with memory_directory() as directory:
        disk = FileImplementation(
            Path(directory),
            segment_bytes=400,
            ballast_bytes=ballast,
            zero_ahead_bytes=zero_ahead_bytes,
        )
        expected, log = [], disk.open()
        for number, (planned, crash, size) in enumerate(history):
            for operation, code in planned:
                disk.files.fail(operation, code)
            batch = ReplayedBatch(len(expected) + 1, b"%d" % number * (size + 1))
            outcome = log.outcome(*batch)
            disk.files.heal()
            if outcome is CommitOutcome.UNKNOWN and not crash:
                outcome = log.settle().outcome
                assert outcome is CommitOutcome.FAILED
            if outcome is CommitOutcome.COMMITTED:
                expected.append(batch)
            if crash:
                log = disk.reopen()
                if outcome is CommitOutcome.UNKNOWN and log.replayed == [*expected, batch]:
                    expected.append(batch)
                assert log.replayed == expected
        assert disk.reopen().replayed == expected
        disk.close()
