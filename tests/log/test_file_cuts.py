"""Cuts of the file log: which segments they tell, and what can be read in them."""

import errno
from pathlib import Path

import pytest

from holdfast.format.segments import HEADER_BYTES, decode_header, iter_batches
from holdfast.log.interface import CommitOutcome, Cut, ReplayedBatch
from tests.log.implementations import FileImplementation, batches

BODIES = [b"%d" % n * 1000 for n in range(10)]


def read(implementation, cut):
    """What is in the segments of a cut, read as another process would."""
    found, expected = [], None
    for path, end, first_position, last_position in cut.segments:
        data = implementation.files.read(Path(path))
        header = decode_header(data)
        frames = list(iter_batches(memoryview(data), header, end))
        assert expected in {None, first_position}
        assert [frame.position for frame in frames] == [*range(first_position, last_position + 1)]
        assert frames[-1].end == end
        found += [ReplayedBatch(frame.position, frame.body) for frame in frames]
        expected = last_position + 1
    return found


class TestSegments:
    def test_they_hold_what_was_appended(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(*BODIES))
        cut = log.cut()
        assert len(cut.segments) > 2
        assert read(segmented_log, cut) == batches(*BODIES)

    def test_they_are_final(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(*BODIES[:2]))
        cut = log.cut()
        log.commit(*batches(*BODIES)[2:])
        assert read(segmented_log, cut) == batches(*BODIES[:2])
        assert read(segmented_log, log.cut()) == batches(*BODIES)

    def test_they_are_durable(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(*BODIES))
        cut = log.cut()
        segmented_log.reopen()
        assert read(segmented_log, cut) == batches(*BODIES)

    def test_those_of_earlier_starts_are_among_them(self, segmented_log):
        for start in range(0, 9, 3):
            log = segmented_log.reopen()
            log.commit(*batches(*BODIES)[start : start + 3])
        assert read(segmented_log, log.cut()) == batches(*BODIES[:9])

    def test_those_that_were_trimmed_are_not(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(*BODIES[:5]))
        first = log.cut()
        log.commit(*batches(*BODIES)[5:])
        log.log.trim(first.through)
        assert read(segmented_log, log.cut()) == batches(*BODIES)[5:]
        assert not {Path(segment.path) for segment in first.segments} & set(
            segmented_log.segments()
        )

    def test_batch_that_failed_is_in_none_of_them(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(b"one"))
        segmented_log.fail_next()
        assert log.outcome(2, b"failed") is CommitOutcome.FAILED
        log.commit(*batches(b"two", first=2))
        assert read(segmented_log, log.cut()) == batches(b"one", b"two")

    def test_cutting_twice_opens_one_segment(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(b"one"))
        cut = log.cut()
        before = segmented_log.segments()
        assert [log.cut() for _ in range(3)] == [cut] * 3
        assert segmented_log.segments() == before


class TestDiskThatFails:
    """There is no room for another segment: what is durable is told all the same."""

    FAULTS = (("create", errno.ENOSPC), ("write", errno.ENOSPC), ("sync", errno.EIO))

    @pytest.mark.parametrize(("operation", "code"), FAULTS)
    def test_segment_without_a_successor_is_told(self, segmented_log, operation, code):
        log = segmented_log.open()
        log.commit(*batches(*BODIES))
        segmented_log.files.fail(operation, code)
        cut = log.cut()
        assert cut.through == 10
        assert read(segmented_log, cut) == batches(*BODIES)
        log.commit(ReplayedBatch(11, b"next"))
        assert read(segmented_log, cut) == batches(*BODIES)
        assert read(segmented_log, log.cut()) == [*batches(*BODIES), ReplayedBatch(11, b"next")]
        assert segmented_log.reopen().replayed == [*batches(*BODIES), ReplayedBatch(11, b"next")]

    def test_it_takes_no_more_batches(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(b"one"))
        segmented_log.files.fail("create", errno.EIO, times=3)
        (segment,) = log.cut().segments
        assert log.cut() == log.cut() == Cut(1, (segment,))
        log.commit(*batches(b"two", first=2))
        assert log.cut().segments[0] == segment

    def test_it_goes_once_it_has_a_successor_and_is_trimmed(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(b"one"))
        segmented_log.files.fail("create", errno.EIO)
        (segment,) = log.cut().segments
        log.log.trim(1)
        assert Path(segment.path) in segmented_log.segments()
        log.commit(*batches(b"two", first=2))
        log.log.trim(1)
        assert read(segmented_log, log.cut()) == batches(b"two", first=2)
        assert Path(segment.path) not in segmented_log.segments()

    def test_ballast_is_freed_and_laid_again(self, tmp_path):
        disk = FileImplementation(tmp_path, ballast_bytes=8192)
        log = disk.open()
        log.commit(*batches(b"one"))
        disk.files.fail("write", errno.ENOSPC)
        assert log.cut().through == 1
        assert not (tmp_path / "ballast").exists()
        log.commit(*batches(b"two", first=2))
        assert (tmp_path / "ballast").stat().st_size == 8192
        disk.close()

    def test_cut_of_a_log_that_started_on_a_full_disk(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(b"one", b"two"))
        segmented_log.reopen()
        segmented_log.close()
        segmented_log.files.fail("create", errno.ENOSPC, times=2)
        log = segmented_log.open()
        assert read(segmented_log, log.cut()) == batches(b"one", b"two")
        assert log.outcome(3, b"no room") is CommitOutcome.FAILED
        log.commit(*batches(b"three", first=3))
        assert read(segmented_log, log.cut()) == batches(b"one", b"two", b"three")

    def test_cut_while_an_outcome_is_unknown(self, segmented_log):
        log = segmented_log.open()
        log.commit(*batches(b"one"))
        segmented_log.lose_next()
        assert log.outcome(2, b"lost") is CommitOutcome.UNKNOWN
        segmented_log.files.fail("create", errno.EIO)
        cut = log.cut()
        assert cut.through == 1
        assert read(segmented_log, cut) == batches(b"one")
        assert log.settle().outcome is CommitOutcome.FAILED
        assert read(segmented_log, cut) == batches(b"one")


def test_empty_segment_is_never_told(segmented_log):
    for _ in range(3):
        assert segmented_log.reopen().cut() == Cut(0, ())
    assert len(segmented_log.segments()) == 1
    assert len(segmented_log.files.read(segmented_log.segments()[0])) == HEADER_BYTES
