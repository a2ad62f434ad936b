"""Seeded histories of a file log on a simulated disk: faults, kills, power failures, old copies.

Each history is several lives of a log on one disk. Whatever happens, what a life replays is what
was acknowledged before it; only the batch that was under way at a life's end may be there or not.
"""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from holdfast.errors import HoldfastError, LogCorruptError
from holdfast.format.segments import decode_header, iter_batches
from holdfast.log.file import FileLog
from holdfast.log.interface import CommitOutcome, ReplayedBatch
from holdfast.testing import FakeClock
from tests.simulation.files import KilledError, SimFiles
from tests.simulation.timing import ClockWorker

DIRECTORY = Path("/data/log")
PATIENCE_S = 30.0


class History:
    """What was acknowledged so far, and the disk it has to be on."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.clock = FakeClock(seed=seed)
        capacity_bytes = self.random.choice([None, None, 3000])
        self.files = SimFiles(Random(seed + 1), capacity_bytes=capacity_bytes)
        self.sizes = {
            "segment_bytes": self.random.choice([300, 800, 5000]),
            "ballast_bytes": self.random.choice([0, 600]),
            "zero_ahead_bytes": self.random.choice([0, 0, 200, 1024]),
        }
        self.committed: list[ReplayedBatch] = []
        # Handed over, and neither acknowledged nor refused.
        self.under_way: ReplayedBatch | None = None
        # Stored elsewhere up to here, as a catalog would know.
        self.covered = 0
        self.seen = set()

    def live(self):
        """One life of the log; it ends in a stop, a kill or a power failure."""
        self.files.fault_rate = self.random.choice([0, 0, 0.02, 0.2])
        if self.random.random() < 0.7:
            self.files.kill_after(self.random.randint(0, self.random.choice([8, 40])))
        life = Life(self)
        with suppress(KilledError):
            if life.start():
                life.run()
                if self.random.random() < 0.3:
                    life.stop()
        life.end()
        if self.random.random() < 0.5:
            self.seen.add("power failure")
            self.files = self.files.crash(self.random)
        self.files.heal()

    @property
    def may_be_stuck(self):
        """A disk that keeps failing, or is full with nothing to free, settles nothing."""
        full = self.files.capacity_bytes is not None and not self.sizes["ballast_bytes"]
        return full or self.files.fault_rate > 0

    def check_replay(self, replayed):
        """Whether the batch that was under way is among what was replayed."""
        expected = self.committed[self.covered :]
        if replayed == expected:
            return False
        assert replayed == [*expected, self.under_way]
        return True

    def check_cut(self, cut):
        """The segments hold what was acknowledged, and would after a power failure."""
        after_crash = self.files.crash(Random(len(self.committed)))
        assert cut.through == len(self.committed)
        found = []
        for path, end, first_position, last_position in cut.segments:
            data = self.files.read(Path(path))
            assert after_crash.read(Path(path))[:end] == data[:end]
            frames = list(iter_batches(memoryview(data), decode_header(data), end))
            assert (frames[0].position, frames[-1].position) == (first_position, last_position)
            found += [ReplayedBatch(frame.position, frame.body) for frame in frames]
        assert found == self.committed[len(self.committed) - len(found) :]
        assert len(found) >= len(self.committed) - self.covered


class Life:
    """A log between its start and its end."""

    def __init__(self, history):
        self.history = history
        self.random, self.clock = history.random, history.clock
        self.worker = ClockWorker(self.clock)
        self.ended = False
        self.log = None

    def start(self):
        """Whether it could: a disk that fails may refuse it, but never for what is on it."""
        history = self.history
        self.log = FileLog(
            DIRECTORY,
            self.clock,
            files=history.files,
            worker=self.worker,
            records_end=True,
            **history.sizes,
        )
        found = history.check_replay(list(self.log.replay(history.covered)))
        try:
            self.log.start(self.post)
        except LogCorruptError:
            raise
        except HoldfastError:
            history.seen.add("start refused")
            return False
        if found:
            history.committed.append(history.under_way)
            history.seen.add("unknown batch found")
        history.under_way = None
        return True

    def run(self):
        for _ in range(self.random.randint(0, 15)):
            self.random.choices([self.append, self.cut, self.change], [8, 1, 1])[0]()

    def stop(self):
        """In good order: what is under way is finished, and the end is recorded."""
        self.log.close()
        self.history.seen.add("stopped")

    def end(self):
        """As a kill does it: nothing more is done, nothing more is answered."""
        self.ended = True
        self.worker.kill()

    def post(self, call, *args):
        self.clock.call_soon(self.answer, call, args)

    def answer(self, call, args):
        if not self.ended:
            call(*args)

    def wait(self, answers):
        until_s = self.clock.monotonic_s() + PATIENCE_S
        while not answers and self.clock.monotonic_s() < until_s:
            self.clock.advance(0.0005)
        assert answers or self.history.may_be_stuck, "the log does not answer"
        return answers[0] if answers else None

    def append(self):
        history = self.history
        if history.under_way is not None:
            # Given up on while its outcome was unknown, and only settling is allowed then.
            return
        body = self.random.randbytes(self.random.choice([0, 10, 100, 700]))
        batch = history.under_way = ReplayedBatch(len(history.committed) + 1, body)
        results = []
        self.log.append(batch.position, [batch.body], results.append)
        result = self.wait(results)
        history.seen.add(result.outcome)
        if result.outcome is CommitOutcome.UNKNOWN:
            if self.random.random() < 0.5:
                history.files.heal()
            settled = []
            self.log.settle(settled.append)
            result = self.wait(settled) or result
        if result.outcome is CommitOutcome.COMMITTED:
            history.committed.append(batch)
        if result.outcome is not CommitOutcome.UNKNOWN:
            history.under_way = None

    def cut(self):
        history, cuts = self.history, []
        self.log.cut(cuts.append)
        cut = self.wait(cuts)
        history.check_cut(cut)
        history.seen.add("cut")
        if self.random.random() < 0.7:
            history.covered = cut.through
            self.log.trim(cut.through)

    def change(self):
        """Let the disk get better or worse."""
        self.history.files.fault_rate = self.random.choice([0, 0, 0.1, 0.5])


def check_seed(seed):
    history = History(seed)
    copy = None
    for _ in range(history.random.randint(2, 8)):
        history.live()
        if history.random.random() < 0.2:
            copy = history.files.crash(history.random)
        everything = history.covered == len(history.committed) and history.under_way is None
        if copy is not None and everything and history.random.random() < 0.5:
            history.files, copy = copy, None
            history.seen.add("old copy")
    # A healthy disk with room on it: the log goes on.
    history.files.capacity_bytes = None
    life = Life(history)
    assert life.start()
    committed = len(history.committed)
    life.append()
    assert len(history.committed) == committed + 1
    life.cut()
    life.end()
    return history.seen


@pytest.mark.parametrize("start", range(0, 200, 10))
def test_any_history_keeps_what_was_acknowledged(start):
    for seed in range(start, start + 10):
        check_seed(seed)


def test_histories_have_everything_in_them():
    seen = set().union(*(check_seed(seed) for seed in range(60)))
    assert seen >= {*CommitOutcome, "power failure", "start refused", "unknown batch found", "cut"}
    assert {"old copy", "stopped"} <= seen


def test_same_seed_gives_the_same_history():
    def trace(seed):
        history = History(seed)
        for _ in range(5):
            history.live()
        return history.committed, history.covered, history.clock.monotonic_s()

    assert [trace(seed) for seed in range(5)] == [trace(seed) for seed in range(5)]
