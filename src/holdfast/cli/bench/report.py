"""The output of a run: live on stderr, a table, and a plot."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.bench.result import (
    BenchResult,
    FanoutResult,
    Latencies,
    LatencySummary,
    Measurement,
    bench_package,
)
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["UNITS", "RunDisplay", "check_plot", "draw", "print_report", "watching"]

# What an operation of each scenario is.
UNITS = {"append": "appends", "fanout": "deliveries", "bootstrap": "bootstraps"}
REFRESH_PER_S = 4
SUFFIXES = {".png", ".svg"}
SIZE_INCHES = (10.0, 7.5)
DOTS_PER_INCH = 150
LATENCY_COLOUR = "#1f5fa8"
RATE_COLOUR = "#8fcfb4"
P99_COLOUR = "#d1495b"
GRID_COLOUR = "#d9dde3"
# Where the curve is labelled: each is ten times rarer than the one before.
NINES = (0.0, 90.0, 99.0, 99.9, 99.99, 99.999)
POINTS_PER_NINE = 40


class RunDisplay:
    """The state of a run, which rich redraws several times a second."""

    def __init__(self, title: str, unit: str, planned_s: float) -> None:
        self._title = title
        self._unit = unit
        self._planned_s = planned_s
        self._clock = SystemClock()
        self._phase = ""
        self._since_s = self._clock.monotonic_s()
        self._measurement: Measurement | None = None

    def phase(self, name: str, measurement: Measurement | None = None) -> None:
        if name != self._phase:
            self._phase = name
            self._since_s = self._clock.monotonic_s()
        self._measurement = measurement or self._measurement

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
        if measurement is None:
            return {}
        series = measurement.series()
        last = series[-1]
        now_per_s = last.operations / last.length_s if last.length_s else 0.0
        latencies = measurement.latencies
        errors = sum(measurement.errors.values())
        return {
            "measured": f"{measurement.elapsed_s:.0f} of {self._planned_s:g} s",
            f"{self._unit}/s": f"[bold green]{now_per_s:,.0f}[/]",
            self._unit: f"{measurement.operations:,}",
            "p50, p99": f"{latencies.at_ms(50):,.2f} ms, {latencies.at_ms(99):,.2f} ms",
            "errors": f"[bold red]{errors:,}[/]" if errors else "0",
        }


@contextmanager
def watching(title: str, unit: str, planned_s: float) -> Iterator[RunDisplay]:
    """Show a run while it lasts, if stderr is a terminal."""
    display = RunDisplay(title, unit, planned_s)
    if not sys.stderr.isatty():
        yield display
        return
    # Takes a tenth of a second to import.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    console = Console(stderr=True)
    with Live(display, console=console, refresh_per_second=REFRESH_PER_S, transient=True):
        yield display


def print_report(result: BenchResult) -> None:
    """Print a table, and below it errors and warnings."""
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    table = Table(
        title=f"{result.scenario} · {escape(result.url)}", title_justify="left", show_header=False
    )
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in _rows(result):
        table.add_row(name, value)
    console.print(table)
    for notice in _notices(result, escape):
        console.print(notice, highlight=False, soft_wrap=True)


def _rows(result: BenchResult) -> Iterator[tuple[str, str]]:
    unit = UNITS[result.scenario]
    yield f"{unit}/s", f"[bold]{result.operations_per_s:,.0f}[/]"
    yield unit, f"{result.operations:,} in {result.elapsed_s:,.2f} s"
    yield "MB/s", f"{result.megabytes_per_s:,.2f}"
    yield from _latency("latency", result.latency_ms)
    if result.fanout is not None:
        yield from _fanout(result.fanout)
    if result.warmup_operations:
        yield "in the warm-up", f"{result.warmup_operations:,}"
    errors = sum(result.errors.values())
    yield "errors", f"[bold red]{errors:,}[/]" if errors else "[green]0[/]"


def _latency(name: str, summary: LatencySummary) -> Iterator[tuple[str, str]]:
    for key in ("p50", "p90", "p99", "p99_9", "max"):
        value = summary[key]
        yield (
            f"{name} {key.replace('_', '.')}",
            "–" if value is None else f"{value:,.3f} ms",
        )


def _fanout(fanout: FanoutResult) -> Iterator[tuple[str, str]]:
    yield "appends", f"{fanout.appends:,}"
    yield from _latency("append", fanout.append_latency_ms)
    for name in ("lost", "duplicated", "reordered"):
        count = getattr(fanout, name)
        yield name, f"[bold red]{count:,}[/]" if count else "[green]0[/]"


def _notices(result: BenchResult, escape: Callable[[str], str]) -> Iterator[str]:
    for kind, count in result.errors.items():
        example = escape(result.error_examples.get(kind, ""))
        yield f"[red]{count:,} × {kind}[/]{f': {example}' if example else ''}"
    if result.unsent_operations:
        yield (
            f"[yellow]Behind the schedule: {result.unsent_operations:,} {_scheduled(result)} were "
            "due but found no free connection before the end.[/]"
        )
    if result.interrupted:
        yield "[yellow]Interrupted: the result covers the time until then.[/]"
    if result.cleanup.streams_left:
        count = result.cleanup.streams_left
        yield f"[yellow]{count:,} stream{'' if count == 1 else 's'} could not be deleted.[/]"


def _scheduled(result: BenchResult) -> str:
    return "appends" if result.scenario == "fanout" else UNITS[result.scenario]


def check_plot(path: Path) -> None:
    """Report before the run what would fail after it."""
    if path.suffix.lower() not in SUFFIXES:
        raise SettingsError(f"--plot: expected a file that ends with .png or .svg, got {path}")
    if not path.absolute().parent.is_dir():
        raise SettingsError(f"--plot: there is no directory {path.absolute().parent}")
    bench_package("matplotlib.figure")


def draw(result: BenchResult, path: Path) -> None:
    # Without pyplot and its global state no display is needed.
    figure = bench_package("matplotlib.figure").Figure(figsize=SIZE_INCHES, layout="constrained")
    above, below = figure.subplots(2, 1)
    unit = UNITS[result.scenario]
    figure.suptitle(
        f"{result.scenario}: {result.operations_per_s:,.0f} {unit}/s",
        fontsize=15,
        fontweight="bold",
    )
    _draw_latency(above, result)
    _draw_throughput(below, result, unit)
    figure.supxlabel(_caption(result), fontsize=8, color="#555555")
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be written: {error.strerror}.") from None


def _draw_latency(axes: Any, result: BenchResult) -> None:
    latencies = Latencies()
    latencies.add(result.latency_histogram)
    axes.set_title("Latency by percentile", loc="left")
    axes.set_ylabel("ms")
    axes.set_xlabel("percentile")
    axes.grid(visible=True, color=GRID_COLOUR)
    axes.set_axisbelow(True)
    if not latencies.count:
        return
    # Only percentiles for which there are enough measurements.
    nines = [nine for nine in NINES if latencies.count >= 1 / (1 - nine / 100) or nine <= 90]
    steps = range(POINTS_PER_NINE * (len(nines) - 1) + 1)
    rarities = [10 ** (step / POINTS_PER_NINE) for step in steps]
    values = [latencies.at_ms(100 * (1 - 1 / rarity)) for rarity in rarities]
    axes.plot(rarities, values, color=LATENCY_COLOUR, linewidth=2)
    axes.fill_between(rarities, values, color=LATENCY_COLOUR, alpha=0.12)
    axes.set_xscale("log")
    axes.set_xticks([1 / (1 - nine / 100) for nine in nines], [f"{nine:g} %" for nine in nines])
    axes.minorticks_off()
    axes.set_xlim(1, rarities[-1])
    axes.set_ylim(bottom=0)
    for name, percentile in (("p50", 50.0), ("p99", 99.0)):
        if rarities[-1] >= 1 / (1 - percentile / 100):
            _mark(axes, latencies, name, percentile)


def _mark(axes: Any, latencies: Latencies, name: str, percentile: float) -> None:
    at = (1 / (1 - percentile / 100), latencies.at_ms(percentile))
    axes.plot(*at, "o", color=LATENCY_COLOUR)
    axes.annotate(
        f"{name}  {at[1]:,.2f} ms", at, xytext=(0, 9), textcoords="offset points", ha="center"
    )


def _draw_throughput(axes: Any, result: BenchResult, unit: str) -> None:
    seconds = [each for each in result.series if each.length_s > 0]
    starts = [sum(each.length_s for each in seconds[:number]) for number in range(len(seconds))]
    axes.bar(
        starts,
        [each.operations / each.length_s for each in seconds],
        width=[each.length_s for each in seconds],
        align="edge",
        color=RATE_COLOUR,
        edgecolor="white",
        label=f"{unit}/s",
    )
    axes.set_title("Throughput over time", loc="left")
    axes.set_ylabel(f"{unit}/s")
    axes.set_xlabel("seconds")
    axes.grid(visible=True, axis="y", color=GRID_COLOUR)
    axes.set_axisbelow(True)
    axes.set_xlim(0, max(sum(each.length_s for each in seconds), 0.001))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    beside = axes.twinx()
    middles = [start + each.length_s / 2 for start, each in zip(starts, seconds, strict=True)]
    measured = [
        (x, each.p99_ms)
        for x, each in zip(middles, seconds, strict=True)
        if each.p99_ms is not None
    ]
    if measured:
        beside.plot(*zip(*measured, strict=True), "o-", color=P99_COLOUR, label="p99, ms")
    beside.set_ylim(bottom=0)
    beside.margins(x=0)
    beside.set_ylabel("p99, ms", color=P99_COLOUR)
    if seconds:
        axes.figure.legend(loc="outside upper right", ncols=2, frameon=False)


def _caption(result: BenchResult) -> str:
    shown = ("processes", "connections", "streams", "readers", "clients", "payload", "rate")
    values = [f"{name} {result.parameters[name]}" for name in shown if result.parameters.get(name)]
    errors = sum(result.errors.values())
    return "   ·   ".join([result.url, *values, f"errors {errors}"])
