"""A log that keeps nothing: for tests and demos, and it says so at start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.log.interface import Cut, LogStats, Outcome, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.log.interface import Batch

_COMMITTED = Result(Outcome.COMMITTED)


class MemoryLog:
    """Calls every batch committed at once; a restart starts empty."""

    def __init__(self) -> None:
        self._post: Callable[..., object] | None = None
        self._position = 0

    def replay(self, after: int) -> Iterator[Batch]:
        """Nothing: there is nothing to come back to."""
        self._position = after
        return iter(())

    def start(self, post: Callable[..., object]) -> None:
        """Make ready to append."""
        self._post = post

    def append(self, position: int, parts: list[bytes], done: Callable[[Result], None]) -> None:
        """Answer COMMITTED in the event loop's next round."""
        del parts
        assert self._post is not None, "start() comes before append()"
        self._position = position
        self._post(done, _COMMITTED)

    def settle(self, done: Callable[[Result], None]) -> None:
        """Never needed: no outcome is unknown here."""
        raise AssertionError("a memory log has no unknown outcomes")

    def cut(self, done: Callable[[Cut], None]) -> None:
        """Tell the position alone: there are no segments."""
        assert self._post is not None, "start() comes before cut()"
        self._post(done, Cut(self._position, ()))

    def trim(self, through: int) -> None:
        """Nothing to forget."""

    def stats(self) -> LogStats:
        """Nothing is kept."""
        return LogStats(0, 0)

    def close(self) -> None:
        """Nothing to let go of."""
