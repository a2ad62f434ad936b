"""A group's figures as a table on the terminal and as a section of RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.groups import Group
from bench.scenario import OTHERS_SHOWN
from bench.storage.figures import Figure

HEADING = ("what", "measured", "target", "reached")

Rows = list[tuple[str, ...]]


def group_rows(group: Group, result: dict[str, Any]) -> Rows:
    """One row for each figure, in the order of the steps."""
    return [row for key, step in _in_order(group, result) for row in _step_rows(key, step)]


def _in_order(group: Group, result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    steps = result["steps"]
    return [(key, steps[key]) for key in group.steps if key in steps]


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


def notes(group: Group, result: dict[str, Any]) -> str:
    """How each step measures, and when it last did."""
    return "\n".join(
        f"- *{key}* ({_circumstances(step)}): {step['note']}"
        for key, step in _in_order(group, result)
    )


def _circumstances(step: dict[str, Any]) -> str:
    when = f"{step['date']}, commit {step['commit']}"
    if step["failure"]:
        return when
    return f"{when}, {step['seconds']:.0f} s, other work {step['others']:.0%} of a core"


def show_group(console: Console, group: Group, result: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(*HEADING, title=group.title)
    table.columns[1].justify = "right"
    for row in group_rows(group, result):
        table.add_row(*row)
    console.print(table)
