"""A progress bar on stderr, for whoever watches; where nobody does there is none.

with progress("copying packs", total_bytes) as bar:
    bar.advance(len(piece))
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

__all__ = ["UNSEEN", "Bar", "progress"]


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
