"""The result of a run as a table for people."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.cli.bench.latency import Summary
from holdfast.cli.bench.result import FanoutResult, Result

__all__ = ["UNITS", "print_report"]

# What an operation of each scenario is.
UNITS = {"append": "appends", "fanout": "deliveries", "bootstrap": "bootstraps"}


def print_report(result: Result, console: Console) -> None:
    """Print the table, and below it what else is to be known."""
    table = Table(
        title=f"{result.scenario} · {escape(result.url)}", title_justify="left", show_header=False
    )
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in _rows(result):
        table.add_row(name, value)
    console.print(table)
    for notice in _notices(result):
        console.print(notice, highlight=False, soft_wrap=True)


def _rows(result: Result) -> Iterator[tuple[str, str]]:
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


def _latency(name: str, summary: Summary) -> Iterator[tuple[str, str]]:
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


def _notices(result: Result) -> Iterator[str]:
    for kind, count in result.errors.items():
        example = escape(result.error_examples.get(kind, ""))
        yield f"[red]{count:,} × {kind}[/]{f': {example}' if example else ''}"
    if result.unsent_operations:
        yield (
            f"[yellow]Behind the schedule: {result.unsent_operations:,} {_scheduled(result)} were "
            "due and found no free connection before the end.[/]"
        )
    if result.interrupted:
        yield "[yellow]Interrupted: this is what was measured until then.[/]"
    if result.cleanup.streams_left:
        count = result.cleanup.streams_left
        yield f"[yellow]{count:,} stream{'' if count == 1 else 's'} could not be deleted.[/]"


def _scheduled(result: Result) -> str:
    return "appends" if result.scenario == "fanout" else UNITS[result.scenario]
