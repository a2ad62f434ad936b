"""Whether a reader got every message once and in order."""

from holdfast.cli.bench.messages import StreamWritten

__all__ = ["Tally"]


class Tally:
    """The messages of one stream at one reader. Numbers count from 0."""

    __slots__ = ("_missing", "_replay_below", "duplicated", "next", "reordered", "replayed")

    def __init__(self) -> None:
        self.next = 0
        self.duplicated = 0
        self.reordered = 0
        self.replayed = 0
        self._missing: set[int] = set()
        self._replay_below = 0

    def take(self, number: int) -> bool:
        """Count a message; whether it is one that was not there before."""
        if number == self.next:
            self.next = number + 1
            return True
        if number > self.next:
            self._missing.update(range(self.next, number))
            self.next = number + 1
            return True
        if number in self._missing:
            self._missing.discard(number)
            self.reordered += 1
            return True
        if number < self._replay_below:
            self.replayed += 1
        else:
            self.duplicated += 1
        return False

    def expect_replay(self) -> None:
        """The reader starts again from an offset before some of what it has got."""
        self._replay_below = self.next

    def lost(self, written: StreamWritten) -> int:
        """How many messages are not here that were acknowledged."""
        if self.next >= written.sent and not self._missing:
            return 0
        wanted = set(range(self.next, written.sent)) | self._missing
        return len(wanted.difference(written.doubtful))
