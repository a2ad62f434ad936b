"""What a log is, whoever keeps it: a file on this machine, or a quorum of others.

Rules every implementation keeps:

- Positions are the numbers of batches, from 1, without gaps. `append` takes exactly the next one.
- One batch is under way at a time; `done` is called once for it, on the event loop.
- COMMITTED: the batch is durable, and replay will give it back for ever (until it is trimmed).
- FAILED: no byte of the batch will ever be replayed; its position is free again.
- UNKNOWN: neither is certain. No batch may follow before `settle` has found out.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Outcome(Enum):
    """What became of a batch."""

    COMMITTED = "committed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Result(NamedTuple):
    """An outcome, and in words why it is not COMMITTED."""

    outcome: Outcome
    reason: str = ""


class Batch(NamedTuple):
    """A batch as it is replayed."""

    position: int
    body: bytes


class LogStats(NamedTuple):
    """What a log takes up."""

    size_bytes: int
    segments: int


class SealedSegment(NamedTuple):
    """A file of batches; its bytes up to `end` are durable and final, what follows is not."""

    path: str
    end: int
    first_position: int
    last_position: int


class Cut(NamedTuple):
    """Everything durable at one moment: positions up to `through`, and where they are kept."""

    through: int
    segments: tuple[SealedSegment, ...]


class Log(Protocol):
    """An ordered, durable sequence of batches with a single writer."""

    def replay(self, after: int) -> Iterator[Batch]:
        """Every durable batch past position `after`, in order; before `start` only."""

    def start(self, post: Callable[..., object]) -> None:
        """Make ready to append; `post` runs a call on the event loop from any thread."""

    def append(self, position: int, parts: list[bytes], done: Callable[[Result], None]) -> None:
        """Make the batch of these records durable, then call `done` with what became of it."""

    def settle(self, done: Callable[[Result], None]) -> None:
        """After UNKNOWN: find out what became of the batch; answers COMMITTED or FAILED."""

    def cut(self, done: Callable[[Cut], None]) -> None:
        """Seal what is durable so far; `done` gets every segment still kept, in order.

        It is called on the event loop, after the `done` of every batch up to `through` and before
        that of any later one. After a crash segments that were trimmed can be among them again.
        """

    def trim(self, through: int) -> None:
        """Forget batches up to position `through`, as far as whole segments allow."""

    def stats(self) -> LogStats:
        """Bytes and segments kept."""

    def close(self) -> None:
        """Finish what is under way and let go of files and threads."""
