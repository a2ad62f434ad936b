"""A run as a picture: how latencies are distributed, and how the throughput went."""

from pathlib import Path
from typing import Any

from holdfast.cli.bench.extras import extra
from holdfast.cli.bench.latency import Latencies
from holdfast.cli.bench.report import UNITS
from holdfast.cli.bench.result import Result
from holdfast.errors import HoldfastError, SettingsError

__all__ = ["check_plot", "draw"]

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


def check_plot(path: Path) -> None:
    """Say before the run what would fail after it."""
    if path.suffix.lower() not in SUFFIXES:
        raise SettingsError(f"--plot: expected a file that ends with .png or .svg, got {path}")
    if not path.absolute().parent.is_dir():
        raise SettingsError(f"--plot: there is no directory {path.absolute().parent}")
    extra("matplotlib.figure")


def draw(result: Result, path: Path) -> None:
    """Write the picture to a file."""
    # A figure of its own, without the global state of pyplot, needs no display.
    figure = extra("matplotlib.figure").Figure(figsize=SIZE_INCHES, layout="constrained")
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


def _draw_latency(axes: Any, result: Result) -> None:
    latencies = Latencies()
    latencies.add(result.latency_histogram)
    axes.set_title("Latency by percentile", loc="left")
    axes.set_ylabel("ms")
    axes.set_xlabel("percentile")
    axes.grid(visible=True, color=GRID_COLOUR)
    axes.set_axisbelow(True)
    if not latencies.count:
        return
    # As far to the right as there are measurements to speak of.
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


def _draw_throughput(axes: Any, result: Result, unit: str) -> None:
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


def _caption(result: Result) -> str:
    shown = ("processes", "connections", "streams", "readers", "clients", "payload", "rate")
    values = [f"{name} {result.parameters[name]}" for name in shown if result.parameters.get(name)]
    errors = sum(result.errors.values())
    return "   ·   ".join([result.url, *values, f"errors {errors}"])
