"""How a run goes, live on stderr, for whoever watches; where nobody does there is nothing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.cli.bench.result import Measurement
from holdfast.cli.bench.run import Watcher
from holdfast.clock import SystemClock

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["watching"]

REFRESH_PER_S = 4


class _Unseen:
    """The display where stderr is no terminal."""

    def phase(self, what: str) -> None:
        """Nobody looks."""

    def measured(self, measurement: Measurement) -> None:
        """Nobody looks."""


class _Shown:
    """The display on a terminal; drawn anew several times a second."""

    def __init__(self, title: str, unit: str, planned_s: float) -> None:
        self._title = title
        self._unit = unit
        self._planned_s = planned_s
        self._clock = SystemClock()
        self._phase = ""
        self._since_s = self._clock.monotonic_s()
        self._measurement = Measurement()

    def phase(self, what: str) -> None:
        """Something else is being done now."""
        self._phase = what
        self._since_s = self._clock.monotonic_s()

    def measured(self, measurement: Measurement) -> None:
        """There is more than before."""
        self._phase = "measuring"
        self._measurement = measurement

    def __rich__(self) -> "Table":
        from rich.table import Table  # noqa: PLC0415

        table = Table.grid(padding=(0, 2))
        elapsed_s = self._clock.monotonic_s() - self._since_s
        table.add_row(f"[bold]{self._title}[/]", f"[cyan]{self._phase}[/] {elapsed_s:.0f} s")
        for name, value in self._figures().items():
            table.add_row(f"[dim]{name}[/]", value)
        return table

    def _figures(self) -> dict[str, str]:
        measurement = self._measurement
        series = measurement.series()
        if not series:
            return {}
        last = series[-1]
        now_per_s = last.operations / last.length_s if last.length_s else 0.0
        latencies = measurement.latencies
        errors = measurement.error_count
        return {
            "measured": f"{measurement.elapsed_s:.0f} of {self._planned_s:g} s",
            f"{self._unit}/s": f"[bold green]{now_per_s:,.0f}[/]",
            self._unit: f"{measurement.operations:,}",
            "p50, p99": f"{latencies.at_ms(50):,.2f} ms, {latencies.at_ms(99):,.2f} ms",
            "errors": f"[bold red]{errors:,}[/]" if errors else "0",
        }


@contextmanager
def watching(title: str, unit: str, planned_s: float) -> Iterator[Watcher]:
    """Show a run for as long as it lasts."""
    if not sys.stderr.isatty():
        yield _Unseen()
        return
    # Takes a tenth of a second to load, so only where it is needed.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    shown = _Shown(title, unit, planned_s)
    console = Console(stderr=True)
    # What remains on the screen is the report.
    with Live(shown, console=console, refresh_per_second=REFRESH_PER_S, transient=True):
        yield shown
