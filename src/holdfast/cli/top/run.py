"""Run `holdfast top`: live, as plain text, or as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from holdfast.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED, say
from holdfast.cli.top.measure import (
    Figures,
    Sample,
    ServerStatus,
    StorageStats,
    decode_lenient,
    measure,
    parse_exposition,
)
from holdfast.cli.top.rows import plain
from holdfast.client import Client
from holdfast.client.calls import pause
from holdfast.client.failures import is_missing
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutboundError, SettingsError

__all__ = ["ServerSource", "Stopper", "Ticks", "handling", "run_top"]

INTERVAL_S_MIN: Final = 0.1
INTERVAL_S_MAX: Final = 3600.0
T = TypeVar("T")


async def run_top(
    client: Client,
    *,
    interval_s: float,
    once: bool,
    as_json: bool,
    count: int | None,
    clock: Clock,
) -> int:
    """Show a server's figures and return the exit code.

    Raises HoldfastError if the server cannot be reached at the beginning, or has no metrics.
    """
    _check(interval_s, once, count)
    source = ServerSource(client, clock)
    live = not once and not as_json and _is_terminal()
    if not once and not as_json and not live:
        count = count or 1
        say(f"holdfast: stdout is not a terminal: {_printing(count)}")
    # Ctrl-C is the normal way to leave a view or an endless stream of figures.
    on_interrupt = 0 if live or (as_json and not once) else EXIT_INTERRUPTED
    stopper = Stopper()
    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGINT: lambda: stopper.end(on_interrupt),
        signal.SIGTERM: lambda: stopper.end(128 + signal.SIGTERM),
        signal.SIGHUP: lambda: stopper.end(128 + signal.SIGHUP),
    }
    with handling(handlers):
        if live:
            from holdfast.cli.top.live import LiveView  # noqa: PLC0415 (see _is_terminal)

            return await stopper.run(LiveView(source, clock, interval_s, stopper).show(count))
        count = 1 if once else count
        work = _write(source, clock, interval_s, count, once=once, as_json=as_json)
        return await stopper.run(work)


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
    # Takes a tenth of a second to import.
    from rich.console import Console  # noqa: PLC0415

    from holdfast.cli.top.live import can_show  # noqa: PLC0415

    return can_show(Console())


def _printing(count: int) -> str:
    return "printing one snapshot, as with --once" if count == 1 else f"printing {count} snapshots"


async def _write(
    source: ServerSource,
    clock: Clock,
    interval_s: float,
    count: int | None,
    *,
    once: bool,
    as_json: bool,
) -> int:
    """Write the figures of `count` intervals to stdout, or of all to come."""
    await source.begin()
    ticks = Ticks(clock, interval_s)
    written = 0
    while count is None or written < count:
        await ticks.next()
        figures = await source.next()
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
    # Snapshots are separated by an empty line.
    text = ("\n" if before else "") + plain(figures) + "\n"
    return text.encode(sys.stdout.encoding, "replace")


class ServerSource:
    """One server, sample by sample."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._last: Sample | None = None
        self._unreachable_since_ms: int | None = None
        # Requesting these again and again would show up as errors in the figures.
        self._absent: set[str] = set()

    async def begin(self) -> Figures:
        """Take the first sample, without rates; raise if the server has no metrics."""
        try:
            return await self._next()
        except HoldfastError as error:
            if is_missing(error):
                raise HoldfastError(f"{self._client.url} has no /metrics to show.") from None
            raise

    async def next(self) -> Figures:
        """Return the figures since the last sample, or since when the server is unreachable."""
        try:
            figures = await self._next()
        except HoldfastError as error:
            now_ms = self._clock.now_ms()
            if self._unreachable_since_ms is None:
                self._unreachable_since_ms = now_ms
            # The server that comes back may be another version.
            self._absent.clear()
            return Figures(
                at_ms=now_ms,
                url=self._client.url,
                reachable=False,
                unreachable_since_ms=self._unreachable_since_ms,
                error=" ".join(error.message.split()),
            )
        self._unreachable_since_ms = None
        return figures

    async def _next(self) -> Figures:
        # In sequence, over one connection: three connections would show up in the figures.
        page = await self._client.request("GET", "/metrics")
        at_s, at_ms = self._clock.monotonic_s(), self._clock.now_ms()
        metrics = parse_exposition(page.body)
        status = await self._optional("/cluster/status", ServerStatus)
        storage = await self._optional("/cluster/hot-cold-stats", StorageStats)
        sample = Sample(at_ms, at_s, metrics, status, storage)
        before, self._last = self._last, sample
        return measure(self._client.url, before, sample)

    async def _optional(self, path: str, kind: type[T]) -> T | None:
        """Request a path that a server may not have, or may not allow us to see."""
        if path in self._absent:
            return None
        try:
            response = await self._client.request("GET", path)
        except OutboundError:
            raise
        except HoldfastError as error:
            if is_missing(error) or (error.status < 500 and not error.retryable):
                self._absent.add(path)
            return None
        decoded = decode_lenient(response.body, kind)
        if decoded is None:
            self._absent.add(path)
        return decoded


class Ticks:
    """One tick every `interval_s`; missed ticks are skipped."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._due_s = clock.monotonic_s()

    async def next(self) -> None:
        now_s = self._clock.monotonic_s()
        self._due_s = max(now_s, self._due_s + self._interval_s)
        await pause(self._clock, self._due_s - now_s)


class Stopper:
    """Ends work early with an exit code; only the first one counts."""

    def __init__(self) -> None:
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)

    async def run(self, work: Coroutine[Any, Any, int]) -> int:
        """Return the exit code of the work, or of what ended it, after it has cleaned up."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._code}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return self._code.result()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.contextmanager
def handling(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Handle signals in the event loop, and restore the handlers afterwards."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number, handled in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handled)
