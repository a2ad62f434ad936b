"""A progress bar on stderr, for whoever watches; where nobody does there is none.

with progress("copying packs", total_bytes) as bar:
    bar.advance(len(piece))
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID
    from rich.text import Text

__all__ = ["UNSEEN", "Bar", "Steps", "progress", "steps"]


class Bar(Protocol):
    """How far something has come."""

    def advance(self, size_bytes: int) -> None:
        """So much more is done; any thread may say so."""


class _Unseen:
    """The bar where nobody looks."""

    def advance(self, size_bytes: int) -> None:
        """Nobody looks."""


UNSEEN: Final = _Unseen()


class _Shown:
    """The bar on a terminal."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._advance = advance

    def advance(self, size_bytes: int) -> None:
        """Draw it anew, soon."""
        self._advance(size_bytes)


@contextmanager
def progress(what: str, total_bytes: int | None) -> Iterator[Bar]:
    """Show how much of `total_bytes` is done; None where that is not known before the end."""
    if not sys.stderr.isatty():
        yield UNSEEN
        return
    # Takes a tenth of a second to load, so only where it is needed.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        # What remains on the screen is the command's own last line.
        transient=True,
    )
    with shown:
        yield _Shown(partial(shown.advance, shown.add_task(what, total=total_bytes)))


class Steps:
    """One bar for the steps of a job, each with a name and a unit of its own."""

    def __init__(self, shown: "Progress") -> None:
        self._shown = shown
        self._task: TaskID | None = None
        self._what = ""

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        """A step begins; the same one with another total begins anew."""
        if self._task is not None and what == self._what:
            self._shown.reset(self._task, start=True, total=total, unit=unit)
            return
        self.done()
        self._what = what
        self._task = self._shown.add_task(what, total=total, unit=unit)

    def advance(self, n: int) -> None:
        """So much more of the step is done."""
        if self._task is not None:
            self._shown.advance(self._task, n)

    def done(self) -> None:
        """The step is over."""
        if self._task is not None:
            self._shown.remove_task(self._task)
            self._task = None


@contextmanager
def steps() -> Iterator[Steps]:
    """Show the steps of a job on stderr, which must be a terminal."""
    from rich.console import Console  # noqa: PLC0415 (as above)
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    class Counts(TextColumn):
        def render(self, task: "Task") -> "Text":
            if task.total is not None:
                self.text_format = "{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"
            elif task.completed:
                self.text_format = "{task.completed:,.0f} {task.fields[unit]}"
            else:
                self.text_format = ""
            return super().render(task)

    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        Counts(""),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with shown:
        yield Steps(shown)
