"""The logs that the contract is run over, and how each is opened, made to fail, and closed.

To add another (a replicated log), write a class like these and name it in `KEEPING`.
"""

import errno
from functools import partial
from queue import Empty, SimpleQueue

from holdfast.log.file import FileLog
from holdfast.log.interface import Batch, Outcome, Result
from holdfast.log.memory import MemoryLog
from holdfast.testing import FakeClock, FaultyFiles, ScriptedLog

ANSWER_S_MAX = 30


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

    def _wait(self, results) -> Result:
        self._before_waiting()
        while not results:
            try:
                call, args = self._calls.get(timeout=ANSWER_S_MAX)
            except Empty:
                raise AssertionError("the log does not answer") from None
            call(*args)
        (result,) = results
        return result

    def outcome(self, position, *parts):
        return self.append(position, *parts).outcome

    def commit(self, *batches):
        """Append batches, all of which must be committed."""
        for batch in batches:
            assert self.append(batch.position, batch.body) == Result(Outcome.COMMITTED)

    def close(self):
        self.log.close()


class FileImplementation:
    """Segment files in a directory."""

    def __init__(self, directory, *, segment_bytes=4096, ballast_bytes=0, zero_ahead_bytes=0):
        self.directory = directory
        self.files = FaultyFiles()
        self.segment_bytes = segment_bytes
        self.ballast_bytes = ballast_bytes
        self.zero_ahead_bytes = zero_ahead_bytes
        self._seed = 0
        self._open = []

    def make(self):
        """A log that was not read or started yet."""
        self._seed += 1
        return FileLog(
            self.directory,
            FakeClock(seed=self._seed),
            segment_bytes=self.segment_bytes,
            ballast_bytes=self.ballast_bytes,
            zero_ahead_bytes=self.zero_ahead_bytes,
            files=self.files,
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
        self._outcomes = [Outcome.FAILED]

    def lose_next(self):
        self._outcomes = [Outcome.UNKNOWN, Outcome.FAILED]

    def _answer(self):
        outcome = self._outcomes.pop(0) if self._outcomes else Outcome.COMMITTED
        self._log.answer(outcome, stored=False)


class MemoryImplementation:
    """Keeps nothing, so only what does not outlive it is asked of it."""

    def __init__(self, directory):
        pass

    def open(self, after=0):
        return OpenLog(MemoryLog(), after=after)

    def close(self):
        pass


KEEPING = {
    "file": FileImplementation,
    "zeroed file": partial(FileImplementation, zero_ahead_bytes=1000),
    "scripted": ScriptedImplementation,
}
ALL = {**KEEPING, "memory": MemoryImplementation}


def batches(*bodies, first=1):
    """Batches with these bodies, from position `first` on."""
    return [Batch(first + at, body) for at, body in enumerate(bodies)]
