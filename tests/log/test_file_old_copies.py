"""A log that ends before what the catalog covers: a new chain begins, and the old one can go."""

import errno
import shutil
from itertools import pairwise

import pytest

from holdfast.errors import HoldfastError, LogCorruptError
from holdfast.format.segments import decode_header
from holdfast.log.interface import CommitOutcome, Cut, ReplayedBatch
from tests.log.implementations import FileImplementation, batches

BODIES = [b"%d" % n * 100 for n in range(10)]
COVERED = 25


@pytest.fixture(params=[10, 1, 0])
def old(request, tmp_path):
    """A closed log with so many batches, and segments of two each."""
    implementation = FileImplementation(tmp_path / "log", segment_bytes=350)
    implementation.directory.mkdir()
    implementation.open().commit(*batches(*BODIES[: request.param]))
    implementation.close()
    yield implementation
    implementation.close()


def headers(implementation):
    return [decode_header(path.read_bytes()) for path in implementation.segments()]


def check_new_chain(implementation):
    """Nothing of the old log matters any more, and the new one keeps what it is given."""
    assert implementation.replay(COVERED) == []
    log = implementation.open(COVERED)
    assert log.replayed == []
    log.commit(ReplayedBatch(COVERED + 1, b"new"), ReplayedBatch(COVERED + 2, b"newer"))
    for _ in range(3):
        again = implementation.reopen(COVERED)
        assert again.replayed == [
            ReplayedBatch(COVERED + 1, b"new"),
            ReplayedBatch(COVERED + 2, b"newer"),
        ]
    cut = again.cut()
    assert cut.through == COVERED + 2
    assert [segment.first_position for segment in cut.segments] == [COVERED + 1]


def test_new_chain_begins_where_the_catalog_ends(old):
    log = old.open(COVERED)
    assert log.replayed == []
    (header,) = headers(old)
    assert header.first_position == COVERED + 1
    assert (header.predecessor, header.predecessor_end) == (0, 0)
    assert log.cut() == Cut(COVERED, ())
    old.close()
    check_new_chain(old)


def test_old_segments_go_only_when_the_new_one_is_durable(old):
    before = old.segments()
    old.files.fail("sync_directory", errno.EIO)
    with pytest.raises(HoldfastError, match="cannot be written"):
        old.open(COVERED)
    assert set(before) <= set(old.segments())
    old.files.heal()
    check_new_chain(old)


def test_they_go_later_where_there_was_no_room_at_start(old):
    before = old.segments()
    old.files.fail("create", errno.ENOSPC)
    log = old.open(COVERED)
    assert set(before) <= set(old.segments())
    assert log.cut() == Cut(COVERED, ())
    log.commit(ReplayedBatch(COVERED + 1, b"new"))
    assert not set(before) & set(old.segments())
    assert old.reopen(COVERED).replayed == [ReplayedBatch(COVERED + 1, b"new")]


def test_crash_before_they_are_removed_is_harmless(old):
    old.files.fail("remove", errno.EIO, times=100)
    old.open(COVERED)
    old.close()
    assert len(old.segments()) > 1
    old.files.heal()
    check_new_chain(old)
    assert len(old.segments()) <= 3


def test_crash_after_any_of_them_is_removed_is_harmless(old, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(old.directory, copy)
    old.open(COVERED)
    old.close()
    for kept in sorted(copy.glob("*.seg")):
        image = FileImplementation(tmp_path / f"image-{kept.stem}", segment_bytes=350)
        shutil.copytree(old.directory, image.directory)
        shutil.copy(kept, image.directory)
        check_new_chain(image)
        image.close()


def test_segments_that_came_back_do_not_confuse_a_log_that_has_gone_on(old, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(old.directory, copy)
    old.open(COVERED).commit(ReplayedBatch(COVERED + 1, b"new"))
    old.close()
    for path in copy.glob("*.seg"):
        shutil.copy(path, old.directory)
    assert old.reopen(COVERED).replayed == [ReplayedBatch(COVERED + 1, b"new")]


def test_unknown_outcome_of_its_first_batch_settles(old):
    log = old.open(COVERED)
    old.lose_next()
    assert log.outcome(COVERED + 1, b"lost") is CommitOutcome.UNKNOWN
    assert log.settle().outcome is CommitOutcome.FAILED
    old.close()
    check_new_chain(old)


def test_chain_goes_on_where_the_log_ends_with_the_catalog(tmp_path):
    log = FileImplementation(tmp_path, segment_bytes=350)
    log.open().commit(*batches(*BODIES))
    log.close()
    before = log.segments()
    again = log.open(after=10)
    assert again.replayed == []
    assert set(before) <= set(log.segments())
    for (path, header), (_, following) in pairwise(zip(log.segments(), headers(log), strict=True)):
        assert following.predecessor == int(path.stem)
        assert following.first_position > header.first_position
    assert again.cut().through == 10
    again.commit(ReplayedBatch(11, b"next"))
    assert log.reopen(after=10).replayed == [ReplayedBatch(11, b"next")]
    assert log.reopen().replayed == [*batches(*BODIES), ReplayedBatch(11, b"next")]
    log.close()


def test_log_that_starts_too_late_says_what_can_be_done(tmp_path):
    log = FileImplementation(tmp_path, segment_bytes=350)
    opened = log.open()
    opened.commit(*batches(*BODIES))
    opened.log.trim(5)
    log.close()
    with pytest.raises(LogCorruptError, match="segments are missing") as caught:
        log.replay(after=3)
    assert "Restore them from a backup" in caught.value.message
    assert "`holdfast check --repair` if only the catalog is missing" in caught.value.message
