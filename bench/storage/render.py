"""The storage benchmark's figures as a table on the terminal and as a section of RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.scenario import OTHERS_SHOWN
from bench.storage.figures import Figure
from bench.storage.run import STEPS

HEADING = ("what", "measured", "target", "reached")
TITLE = "Storage"
NOTE = """\
Holdfast alone, with packs in a local directory: what the tiered storage is to reach. The server and
its storage process share one core, the load has the other. Sizes in MB and GB are decimal."""

Rows = list[tuple[str, ...]]


def storage_rows(result: dict[str, Any]) -> Rows:
    """One row for each figure, in the order of the steps."""
    return [row for key, step in _in_order(result) for row in _step_rows(key, step)]


def _in_order(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    steps = result["steps"]
    return [(key, steps[key]) for key in STEPS if key in steps]


def _step_rows(key: str, step: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    if step["failure"]:
        yield (key, "not measured", "", step["failure"])
    for each in step["figures"]:
        figure = Figure(**each)
        # What bounds nothing needs no excuse.
        remark = _remark(step) if figure.reached else ""
        yield (
            figure.text,
            figure.measured,
            figure.to_reach,
            " ".join(filter(None, (figure.reached, remark))),
        )


def _remark(step: dict[str, Any]) -> str:
    """Say of a figure what takes from its worth."""
    remarks = [] if step["full_size"] else ["smaller trial"]
    if step["others"] > OTHERS_SHOWN:
        remarks.append(f"disturbed: {step['others']:.0%} of a core")
    return f"({', '.join(remarks)})" if remarks else ""


def notes(result: dict[str, Any]) -> str:
    """How each step measures, and when it last did."""
    return "\n".join(
        f"- *{key}* ({_circumstances(step)}): {step['note']}" for key, step in _in_order(result)
    )


def _circumstances(step: dict[str, Any]) -> str:
    when = f"{step['date']}, commit {step['commit']}"
    if step["failure"]:
        return when
    return f"{when}, {step['seconds']:.0f} s, other work {step['others']:.0%} of a core"


def show_storage(console: Console, result: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(*HEADING, title=TITLE)
    table.columns[1].justify = "right"
    for row in storage_rows(result):
        table.add_row(*row)
    console.print(table)
