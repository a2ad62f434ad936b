"""What every log does, and a log in memory.

Rules every implementation keeps:

- Positions are the numbers of batches, from 1, without gaps. `append` takes exactly the next one.
- One batch is under way at a time; `done` is called once for it, on the event loop.
- COMMITTED: the batch is durable, and replay returns it until it is trimmed.
- FAILED: no byte of the batch will ever be replayed; its position is free again.
- UNKNOWN: neither is certain. No batch may follow before `settle` has found out.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CommitOutcome(Enum):
    COMMITTED = "committed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class CommitResult(NamedTuple):
    """An outcome, and the reason if it is not COMMITTED."""

    outcome: CommitOutcome
    reason: str = ""


_COMMITTED = CommitResult(CommitOutcome.COMMITTED)


class ReplayedBatch(NamedTuple):
    position: int
    body: bytes


class LogStats(NamedTuple):
    """The size of a log."""

    size_bytes: int
    segments: int


class SealedSegment(NamedTuple):
    """A file of batches; its bytes up to `end` are durable and final."""

    path: str
    end: int
    first_position: int
    last_position: int


class Cut(NamedTuple):
    """Everything durable at one moment: positions up to `through`, and the segments with them."""

    through: int
    segments: tuple[SealedSegment, ...]


class Log(Protocol):
    """An ordered, durable sequence of batches with a single writer."""

    def replay(self, after: int) -> Iterator[ReplayedBatch]:
        """Yield every durable batch past position `after`, in order; only before `start`."""

    def start(self, post: Callable[..., object]) -> None:
        """Prepare for appends; `post` runs a call on the event loop from any thread."""

    def append(
        self, position: int, parts: list[bytes], done: Callable[[CommitResult], None]
    ) -> None:
        """Make the batch of these records durable, then call `done` with the result."""

    def settle(self, done: Callable[[CommitResult], None]) -> None:
        """After UNKNOWN, find out whether the batch is COMMITTED or FAILED."""

    def cut(self, done: Callable[[Cut], None]) -> None:
        """Seal everything durable; `done` gets all retained segments, in order.

        `done` is called on the event loop, after the `done` of every batch up to `through` and
        before that of any later one. After a crash, trimmed segments may be among them again.
        """

    def trim(self, through: int) -> None:
        """Remove the segments that hold nothing past position `through`."""

    def stats(self) -> LogStats: ...

    def close(self) -> None:
        """Finish what is under way, and close files and threads."""


class MemoryLog:
    """Reports every batch as committed and stores nothing; for tests and demos."""

    def __init__(self) -> None:
        self._post: Callable[..., object] | None = None
        self._position = 0

    def replay(self, after: int) -> Iterator[ReplayedBatch]:
        self._position = after
        return iter(())

    def start(self, post: Callable[..., object]) -> None:
        self._post = post

    def append(
        self, position: int, parts: list[bytes], done: Callable[[CommitResult], None]
    ) -> None:
        del parts
        assert self._post is not None, "start() comes before append()"
        self._position = position
        self._post(done, _COMMITTED)

    def settle(self, done: Callable[[CommitResult], None]) -> None:
        raise AssertionError("a memory log has no unknown outcomes")

    def cut(self, done: Callable[[Cut], None]) -> None:
        assert self._post is not None, "start() comes before cut()"
        self._post(done, Cut(self._position, ()))

    def trim(self, through: int) -> None: ...

    def stats(self) -> LogStats:
        return LogStats(0, 0)

    def close(self) -> None: ...
