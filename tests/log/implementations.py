"""The logs that the contract is run over, and how each is opened, made to fail, and closed.

To add another (a replicated log), write a class like these and name it in `KEEPING`.
"""

import errno
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random

from holdfast.log.file import FileLog
from holdfast.log.interface import CommitOutcome, CommitResult, MemoryLog, ReplayedBatch
from holdfast.testing import FakeClock, FaultyFiles, ScriptedLog
from tests.simulation.files import SimFiles
from tests.simulation.timing import ClockWorker

ANSWER_S_MAX = 30
SIMULATED_S = 5.0


class OpenLog:
    """A started log; answers are waited for, as an event loop would."""

    def __init__(self, log, *, after=0, before_waiting=lambda: None):
        self.log = log
        self.replayed = list(log.replay(after))
        self._before_waiting = before_waiting
        self._calls = SimpleQueue()
        log.start(self._post)

    def _post(self, call, *args):
        self._calls.put((call, args))

    def append(self, position, *parts):
        """What became of the batch."""
        results = []
        self.log.append(position, list(parts), results.append)
        return self._wait(results)

    def settle(self):
        """What became of a batch whose outcome was unknown."""
        results = []
        self.log.settle(results.append)
        return self._wait(results)

    def cut(self):
        """What was durable at that moment."""
        cuts = []
        self.log.cut(cuts.append)
        return self._wait(cuts)

    def _wait(self, results):
        self._before_waiting()
        while not results:
            self._run_one()
        (result,) = results
        return result

    def wait_for_one(self):
        """Run one call that the log has posted."""
        self._before_waiting()
        self._run_one()

    def _run_one(self):
        try:
            call, args = self._calls.get(timeout=ANSWER_S_MAX)
        except Empty:
            raise AssertionError("the log does not answer") from None
        call(*args)

    def outcome(self, position, *parts):
        return self.append(position, *parts).outcome

    def commit(self, *batches):
        """Append batches, all of which must be committed."""
        for batch in batches:
            assert self.append(batch.position, batch.body) == CommitResult(CommitOutcome.COMMITTED)

    def close(self):
        self.log.close()


class FileImplementation:
    """Segment files in a directory."""

    def __init__(self, directory, *, segment_bytes=4096, ballast_bytes=0, zero_ahead_bytes=0):
        self.directory = directory
        self.files = self._make_files()
        self.segment_bytes = segment_bytes
        self.ballast_bytes = ballast_bytes
        self.zero_ahead_bytes = zero_ahead_bytes
        self._seed = 0
        self._open = []

    def _make_files(self):
        return FaultyFiles()

    def make(self, **parts):
        """A log that was not read or started yet."""
        self._seed += 1
        return FileLog(
            self.directory,
            parts.pop("clock", None) or FakeClock(seed=self._seed),
            segment_bytes=self.segment_bytes,
            ballast_bytes=self.ballast_bytes,
            zero_ahead_bytes=self.zero_ahead_bytes,
            files=self.files,
            **parts,
        )

    def open(self, after=0):
        opened = OpenLog(self.make(), after=after)
        self._open.append(opened)
        return opened

    def reopen(self, after=0):
        """As after a crash: closing writes nothing."""
        self.close()
        return self.open(after)

    def close(self):
        while self._open:
            self._open.pop().close()

    def fail_next(self):
        """Have the next batch fail for certain."""
        self.files.fail("sync", errno.EIO)

    def lose_next(self):
        """Have the outcome of the next batch be unknown."""
        self.files.fail("sync", errno.EIO)
        self.files.fail("create", errno.EIO)

    # For tests of the files themselves.

    def segments(self):
        return sorted(self.directory.glob("*.seg"))

    def replay(self, after=0):
        """What the files say now, without starting to write."""
        return list(self.make().replay(after))


class SimulatedImplementation(FileImplementation):
    """The file log without a thread, on a disk in memory: a restart is a power failure."""

    def __init__(self, directory, **sizes):
        super().__init__(Path("/data/log"), **sizes)
        self.random = Random(1)
        self._workers = []

    def _make_files(self):
        return SimFiles()

    def open(self, after=0):
        clock = FakeClock()
        self._workers.append(ClockWorker(clock))
        log = self.make(clock=clock, worker=self._workers[-1])
        opened = OpenLog(log, after=after, before_waiting=lambda: clock.advance(SIMULATED_S))
        self._open.append(opened)
        return opened

    def reopen(self, after=0):
        self.lose_power()
        return self.open(after)

    def lose_power(self):
        while self._workers:
            self._workers.pop().kill()
        self._open.clear()
        self.files = self.files.crash(self.random)

    def segments(self):
        names = self.files.names(self.directory)
        return [self.directory / name for name in names if name.endswith(".seg")]


class ScriptedImplementation:
    """The log that tests of the engine use: it must keep the contract too."""

    def __init__(self, directory):
        self._batches = []
        self._outcomes = []
        self._log = None

    def open(self, after=0):
        self._log = ScriptedLog(list(self._batches))
        return OpenLog(self._log, after=after, before_waiting=self._answer)

    def reopen(self, after=0):
        self.close()
        return self.open(after)

    def close(self):
        if self._log is not None:
            self._batches = self._log.batches

    def fail_next(self):
        self._outcomes = [CommitOutcome.FAILED]

    def lose_next(self):
        self._outcomes = [CommitOutcome.UNKNOWN, CommitOutcome.FAILED]

    def _answer(self):
        if self._log.under_way is None:
            return
        outcome = self._outcomes.pop(0) if self._outcomes else CommitOutcome.COMMITTED
        self._log.answer(outcome, stored=False)


class MemoryImplementation:
    """Keeps nothing, so only what does not outlive it is asked of it."""

    def __init__(self, directory):
        pass

    def open(self, after=0):
        return OpenLog(MemoryLog(), after=after)

    def close(self):
        pass


FILES = {
    "file": FileImplementation,
    "zeroed file": partial(FileImplementation, zero_ahead_bytes=1000),
    "simulated file": partial(SimulatedImplementation, zero_ahead_bytes=1000),
}
KEEPING = {
    **FILES,
    "scripted": ScriptedImplementation,
}
ALL = {**KEEPING, "memory": MemoryImplementation}


def batches(*bodies, first=1):
    """Batches with these bodies, from position `first` on."""
    return [ReplayedBatch(first + at, body) for at, body in enumerate(bodies)]
