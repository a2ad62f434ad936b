"""Runs `holdfast top`: live, as plain text, or as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED, say
from holdfast.cli.top.plain import plain
from holdfast.cli.top.source import Source
from holdfast.cli.top.stopping import Stop, stopped_by_signals
from holdfast.cli.top.ticks import Ticks
from holdfast.client import Client
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, SettingsError

if TYPE_CHECKING:
    from holdfast.cli.top.figures import Figures

__all__ = ["run_top"]

INTERVAL_S_MIN: Final = 0.1
INTERVAL_S_MAX: Final = 3600.0


async def run_top(
    client: Client,
    *,
    interval_s: float,
    once: bool,
    as_json: bool,
    count: int | None,
    clock: Clock,
) -> int:
    """Show a server's figures, and return the exit code.

    Raises HoldfastError if the server cannot be reached at the beginning, or has no metrics.
    """
    _check(interval_s, once, count)
    top = _Top(Source(client, clock), clock, interval_s)
    live = not once and not as_json and _is_terminal()
    if not once and not as_json and not live:
        count = count or 1
        say(f"holdfast: stdout is no terminal: {_printing(count)}")
    # Leaving a view, or a stream of figures, is not interrupting any work.
    on_interrupt = 0 if live or (as_json and not once) else EXIT_INTERRUPTED
    stop = Stop()
    with stopped_by_signals(stop, on_interrupt=on_interrupt):
        if live:
            return await stop.run(top.show(stop, count))
        return await stop.run(top.write(1 if once else count, once=once, as_json=as_json))


def _check(interval_s: float, once: bool, count: int | None) -> None:
    if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
        raise SettingsError(
            f"--interval must be from {INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g} seconds"
        )
    if count is not None and count < 1:
        raise SettingsError("--count must be at least 1")
    if once and count is not None:
        raise SettingsError("--once and --count cannot be given together")


def _is_terminal() -> bool:
    if not sys.stdout.isatty():
        return False
    # Takes a tenth of a second to load, so only where it is needed.
    from rich.console import Console  # noqa: PLC0415

    from holdfast.cli.top.live import can_show  # noqa: PLC0415

    return can_show(Console())


def _printing(count: int) -> str:
    return "printing one snapshot, as with --once" if count == 1 else f"printing {count} snapshots"


class _Top:
    """One server, and the ways to show it."""

    def __init__(self, source: Source, clock: Clock, interval_s: float) -> None:
        self._source = source
        self._clock = clock
        self._interval_s = interval_s

    async def show(self, stop: Stop, count: int | None) -> int:
        """Draw the live view."""
        from holdfast.cli.top.live import LiveView  # noqa: PLC0415

        first = await self._source.begin()
        return await LiveView(self._source, self._clock, self._interval_s, stop).show(first, count)

    async def write(self, count: int | None, *, once: bool, as_json: bool) -> int:
        """Write the figures of so many intervals to stdout, or of all to come."""
        await self._source.begin()
        ticks = Ticks(self._clock, self._interval_s)
        written = 0
        while count is None or written < count:
            await ticks.next()
            figures = await self._source.next()
            if once and not as_json and not figures.reachable:
                raise HoldfastError(figures.error or "The server cannot be reached.")
            sys.stdout.buffer.write(_as_line(figures) if as_json else _as_text(figures, written))
            sys.stdout.buffer.flush()
            written += 1
            if once and not figures.reachable:
                return EXIT_FAILED
        return 0


def _as_line(figures: Figures) -> bytes:
    return msgspec.json.encode(figures) + b"\n"


def _as_text(figures: Figures, before: int) -> bytes:
    """Snapshots have an empty line between them."""
    text = ("\n" if before else "") + plain(figures) + "\n"
    return text.encode(sys.stdout.encoding, "replace")
