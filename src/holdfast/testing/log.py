"""A log whose every outcome a test decides."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from holdfast.log.interface import CommitOutcome, CommitResult, Cut, LogStats, ReplayedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ScriptedLog:
    """Keeps batches in memory and answers only when `answer` is called.

    `batches` is what survives: hand it to another `ScriptedLog` to restart after a crash.
    """

    def __init__(self, batches: list[ReplayedBatch] | None = None) -> None:
        self.batches: list[ReplayedBatch] = batches if batches is not None else []
        self.under_way: ReplayedBatch | None = None
        self.settling = False
        self._done: Callable[[CommitResult], None] | None = None
        self._post: Callable[..., object] | None = None
        self._cuts: deque[tuple[Callable[[Cut], None], Cut]] = deque()
        # The last position that is no longer among the batches.
        self._trimmed = 0

    def replay(self, after: int) -> Iterator[ReplayedBatch]:
        """The batches that were committed."""
        self._trimmed = max(self._trimmed, after)
        return iter([batch for batch in self.batches if batch.position > after])

    def start(self, post: Callable[..., object]) -> None:
        self._post = post

    def append(
        self, position: int, parts: list[bytes], done: Callable[[CommitResult], None]
    ) -> None:
        """Hold the batch until `answer`."""
        assert self.under_way is None, "one batch at a time"
        assert position == self._last_position + 1, "positions have no gaps"
        self.under_way = ReplayedBatch(position, b"".join(parts))
        self._done = done

    def settle(self, done: Callable[[CommitResult], None]) -> None:
        """Hold the request until `answer`."""
        assert self.under_way is not None, "only an unknown outcome needs settling"
        self.settling = True
        self._done = done

    def answer(self, outcome: CommitOutcome, *, stored: bool | None = None) -> None:
        """Give the pending batch this outcome; `stored` is what is true if it is UNKNOWN."""
        assert self.under_way is not None, "no batch is under way"
        assert self._done is not None, "the outcome was given already"
        self._give_cuts()
        done, self._done = self._done, None
        keeps = outcome is CommitOutcome.COMMITTED or (outcome is CommitOutcome.UNKNOWN and stored)
        if keeps and self.under_way not in self.batches:
            self.batches.append(self.under_way)
        if outcome is not CommitOutcome.UNKNOWN:
            self.under_way = None
            self.settling = False
        done(
            CommitResult(
                outcome, "" if outcome is CommitOutcome.COMMITTED else "as the test wants it"
            )
        )

    def cut(self, done: Callable[[Cut], None]) -> None:
        """Report what is committed now; there are no segments."""
        assert self._post is not None, "start() comes before cut()"
        unsettled = self.under_way
        through = self._last_position if unsettled is None else unsettled.position - 1
        self._cuts.append((done, Cut(through, ())))
        self._post(self._give_cuts)

    def _give_cuts(self) -> None:
        while self._cuts:
            done, cut = self._cuts.popleft()
            done(cut)

    @property
    def _last_position(self) -> int:
        last = self.batches[-1].position if self.batches else 0
        return max(last, self._trimmed)

    def trim(self, through: int) -> None:
        self._trimmed = max(self._trimmed, min(through, self._last_position))
        self.batches[:] = [batch for batch in self.batches if batch.position > through]

    def stats(self) -> LogStats:
        return LogStats(sum(len(batch.body) for batch in self.batches), 1)

    def close(self) -> None:
        """Nothing to release."""
