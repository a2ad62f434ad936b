"""Single keys from the terminal that stdin is, if it is one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable
from typing import Any

__all__ = ["Keyboard"]

KEYS_AT_ONCE_MAX = 64


class Keyboard:
    """Calls `on_key` with every key while it is taken; then the terminal is as it was before."""

    def __init__(self, on_key: Callable[[str], None], on_gone: Callable[[], None]) -> None:
        self._on_key = on_key
        self._on_gone = on_gone
        self._descriptor = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._before: list[Any] | None = None

    def take(self) -> None:
        """Let keys come one by one, and unseen."""
        if self._descriptor is None:
            return
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor, termios.TCSADRAIN)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def give_back(self) -> None:
        """Set the terminal as it was; harmless if it was not taken."""
        if self._descriptor is None or self._before is None:
            return
        before, self._before = self._before, None
        asyncio.get_running_loop().remove_reader(self._descriptor)
        # A terminal that was closed needs nothing set.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

    def _read(self) -> None:
        assert self._descriptor is not None, "only a terminal is read from"
        try:
            keys = os.read(self._descriptor, KEYS_AT_ONCE_MAX)
        except OSError:
            keys = b""
        if not keys:
            self._on_gone()
        for key in keys.decode("ascii", "ignore"):
            self._on_key(key)
