"""Every truncation and every flipped bit of a small log: a true prefix, or a refusal in words.

Bits are flipped and files cut in place, and the log is read as at a start. What is accepted must be
what was committed; only where the last segment ends may something be missing.
"""

import errno
import logging
import re
from pathlib import Path

import pytest

from holdfast.errors import LogCorruptError
from holdfast.format.segments import FRAME_BYTES, HEADER_BYTES, decode_header
from holdfast.log.interface import CommitOutcome, ReplayedBatch
from tests.log.implementations import FileImplementation, batches
from tests.memory_directory import memory_directory

BODIES = [b"alpha", b"", b"gamma gamma", b"delta", b"HFB\x01HFB\x01", b"zeta" * 3, b"eta"]


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Thousands of torn tails are cut here; their warnings are not the point."""
    caplog.set_level(logging.CRITICAL)


@pytest.fixture(params=[0, 64], ids=["growing", "zeroed"])
def small(request):
    """Three segments with seven batches; the last segment holds three."""
    with memory_directory() as directory:
        implementation = FileImplementation(
            Path(directory), segment_bytes=180, zero_ahead_bytes=request.param
        )
        log = implementation.open()
        log.commit(*batches(*BODIES[:4]))
        implementation.segment_bytes = 4096
        log = implementation.reopen()
        log.commit(*batches(*BODIES)[4:])
        implementation.close()
        assert len(implementation.segments()) == 3
        yield implementation


def outcome(log):
    """What is replayed, or the refusal."""
    try:
        return log.replay()
    except LogCorruptError as error:
        return error


def check_refusal(error, path):
    """It names a file and a byte, or what is missing."""
    named = re.search(r"([^ ]+\.seg) at byte (\d+)", error.message)
    assert named or "segments are missing" in error.message
    assert path.parent.name in error.message


def flips(data):
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            yield at, bytes(flipped)


def frame_ends(bodies):
    ends, at = [], HEADER_BYTES
    for body in bodies:
        at += FRAME_BYTES + len(body)
        ends.append(at)
    return ends


def test_the_log_is_whole_to_begin_with(small):
    assert small.replay() == batches(*BODIES)


def test_every_flipped_bit_is_refused_or_costs_the_last_batch_alone(small):
    *_, last_start, last_end = frame_ends(BODIES[4:])
    whole = batches(*BODIES)
    for path in small.segments():
        is_last = path == small.segments()[-1]
        end = last_start if is_last else end_of_data(small, path)
        sound = path.read_bytes()
        for at, damaged in flips(sound):
            path.write_bytes(damaged)
            found = outcome(small)
            if at < end:
                assert isinstance(found, LogCorruptError)
                check_refusal(found, path)
            elif is_last and at < last_end:
                assert found == whole[:-1]
            else:
                assert found == whole, "zeros and disowned bytes mean nothing"
        path.write_bytes(sound)


def end_of_data(small, path):
    """Where the batches of one of the first segments end; zeros may follow."""
    paths = small.segments()
    successor = paths[paths.index(path) + 1]
    return decode_header(successor.read_bytes()).predecessor_end


def test_flipped_bit_is_named_with_its_file_and_the_batch_it_is_in(small):
    path = small.segments()[0]
    sound = path.read_bytes()
    starts = [HEADER_BYTES, *frame_ends(BODIES[:3])[:-1]]
    assert end_of_data(small, path) == frame_ends(BODIES[:3])[-1]
    for at, damaged in flips(sound[: end_of_data(small, path)]):
        path.write_bytes(damaged)
        start = max((start for start in starts if start <= at), default=0)
        assert f"{path} at byte {start}:" in outcome(small).message
    path.write_bytes(sound)


def test_every_truncation_of_the_last_segment_gives_a_prefix(small):
    path = small.segments()[-1]
    sound = path.read_bytes()
    ends = frame_ends(BODIES[4:])
    for size in range(len(sound)):
        path.write_bytes(sound[:size])
        kept = sum(end <= size for end in ends)
        assert outcome(small) == batches(*BODIES)[: 4 + kept]


def test_every_truncation_of_an_earlier_segment_is_refused(small):
    for path in small.segments()[:-1]:
        sound = path.read_bytes()
        for size in range(end_of_data(small, path)):
            path.write_bytes(sound[:size])
            found = outcome(small)
            assert isinstance(found, LogCorruptError)
            check_refusal(found, path)
        path.write_bytes(sound)


def test_log_goes_on_after_every_truncation_of_its_end(small):
    path = small.segments()[-1]
    sound = path.read_bytes()
    others = {other: other.read_bytes() for other in small.segments()[:-1]}
    for size in range(HEADER_BYTES - 3, frame_ends(BODIES[4:])[-1], 3):
        for other in small.segments():
            other.unlink()
        for other, data in others.items():
            other.write_bytes(data)
        path.write_bytes(sound[:size])
        log = small.open()
        kept = log.replayed
        following = ReplayedBatch(len(kept) + 1, b"after the cut")
        log.commit(following)
        small.close()
        assert small.replay() == [*kept, following]


@pytest.mark.parametrize("rubbish", [b"\x00" * 100, b"\xff" * 100, b"HFB\x01" * 30])
def test_rubbish_behind_the_end_is_cut(small, rubbish):
    path = small.segments()[-1]
    path.write_bytes(path.read_bytes() + rubbish)
    assert small.replay() == batches(*BODIES)


def abandoned(tmp_path, *, then):
    """A log whose first segment ends with a batch that failed, all of its bytes on disk."""
    log = FileImplementation(tmp_path)
    opened = log.open()
    opened.commit(*batches(b"one", b"two"))
    log.files.fail("sync", errno.EIO)
    assert opened.outcome(3, b"failed") is CommitOutcome.FAILED
    opened.commit(*batches(*then, first=3))
    log.close()
    return log


def flipped_outcomes(log, path):
    sound = path.read_bytes()
    for at, damaged in flips(sound):
        path.write_bytes(damaged)
        yield at, outcome(log)
    path.write_bytes(sound)


def test_no_flipped_bit_brings_back_a_failed_batch(tmp_path):
    log = abandoned(tmp_path, then=[b"three", b"four"])
    whole = batches(b"one", b"two", b"three", b"four")
    for path in log.segments():
        for _, found in flipped_outcomes(log, path):
            assert isinstance(found, LogCorruptError) or found in (whole, whole[:-1])


def test_no_flipped_bit_brings_back_a_failed_batch_that_nothing_followed(tmp_path):
    log = abandoned(tmp_path, then=[])
    for path in log.segments():
        for _, found in flipped_outcomes(log, path):
            assert isinstance(found, LogCorruptError) or found == batches(b"one", b"two")
