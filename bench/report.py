"""Keeps results by scenario in results.json, and renders them: tables, ratios, RESULTS.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import tools
from bench.groups import GROUPS, Group
from bench.scenario import OTHERS_SHOWN, Metrics, Outcome, Scenario
from bench.servers import ALL, HOLDFAST, NGINX, NODE_FILE, NODE_MEMORY, RUST, Server
from bench.storage.figures import Figure

RESULTS_JSON = tools.BENCH_DIR / "results.json"
RESULTS_MD = tools.BENCH_DIR / "RESULTS.md"
PROFILE_MD = tools.BENCH_DIR / "profile.md"

METHOD = """\
Server on one core, load on the other, every server alike; a fresh data directory on disk for each
run; servers interleaved, medians over the rounds. Latencies are as the load saw them, with one
outstanding request per connection. CPU is the server's, all its processes and threads, per request
or delivery. *×* is Holdfast's rate over that server's."""

Results = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio to reach: Holdfast's metric over a peer's, or the inverse where less is better."""

    text: str
    scenario: str
    case: str
    metric: str
    peer: Server
    at_least: float | None
    less_is_better: bool = False


APPENDS = "appends at 256 connections"
ONE, EIGHT = "1 writer, unpaced", "8 writers, unpaced"

TARGETS = (
    Target(f"{APPENDS} / Node in memory", "append", "256", "per_s", NODE_MEMORY, 2),
    Target(f"{APPENDS} / Node file-backed", "append", "256", "per_s", NODE_FILE, 15),
    Target(f"{APPENDS} / nginx floor", "append", "256", "per_s", NGINX, 0.35),
    Target("appends per CPU second / Rust", "append", "256", "cpu_us", RUST, None, True),
    Target("SSE deliveries, 1 writer / Node in memory", "sse", ONE, "per_s", NODE_MEMORY, 3),
    Target("SSE deliveries, 8 writers / Node in memory", "sse", EIGHT, "per_s", NODE_MEMORY, 3),
    Target("SSE deliveries per CPU second / Rust", "sse", EIGHT, "cpu_us", RUST, None, True),
    Target("1 MiB catch-up / Node in memory", "read", "1 MiB", "per_s", NODE_MEMORY, 2),
    Target("1 MiB catch-up per CPU second / Rust", "read", "1 MiB", "cpu_us", RUST, None, True),
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a scenario's table: its heading, the metric, and how a value is printed."""

    heading: str
    metric: str
    form: str


COLUMNS = {
    "append": (
        Column("appends/s", "per_s", "{:,.0f}"),
        Column("p50 ms", "p50_ms", "{:.2f}"),
        Column("p99 ms", "p99_ms", "{:.2f}"),
        Column("CPU µs", "cpu_us", "{:.1f}"),
        Column("of it kernel", "system_us", "{:.1f}"),
        Column("failed", "failed", "{:,.0f}"),
    ),
    "read": (
        Column("reads/s", "per_s", "{:,.0f}"),
        Column("MiB/s", "mib_per_s", "{:,.0f}"),
        Column("p50 ms", "p50_ms", "{:.2f}"),
        Column("p99 ms", "p99_ms", "{:.2f}"),
        Column("CPU µs", "cpu_us", "{:,.1f}"),
        Column("failed", "failed", "{:,.0f}"),
    ),
    "sse": (
        Column("deliveries/s", "per_s", "{:,.0f}"),
        Column("appends/s", "appends_per_s", "{:,.0f}"),
        Column("p50 ms", "p50_ms", "{:.1f}"),
        Column("p99 ms", "p99_ms", "{:.1f}"),
        Column("CPU µs", "cpu_us", "{:.2f}"),
        Column("generator busy", "generator_busy", "{:.0%}"),
        Column("missing", "failed", "{:,.0f}"),
    ),
}


def load() -> Results:
    """Read what earlier runs left, so that a run of one scenario keeps the others."""
    if not RESULTS_JSON.exists():
        return {}
    results: Results = json.loads(RESULTS_JSON.read_text())
    return results


def store(
    results: Results, scenario: Scenario, outcome: Outcome, about: dict[str, Any], save: bool
) -> None:
    """Put one scenario's outcome in place of its earlier one and, if told to, write both files."""
    described = {"title": scenario.title, "note": scenario.note, "cases": list(scenario.cases)}
    results[scenario.key] = {**described, "about": about, **asdict(outcome)}
    if save:
        write(results)


def store_step(
    results: Results,
    group: Group,
    step: str,
    found: dict[str, Any],
    about: dict[str, Any],
    save: bool,
) -> None:
    """The same with one step of a group; the other steps stay."""
    steps = results.get(group.key, {}).get("steps", {})
    results[group.key] = {"about": about, "steps": {**steps, step: found}}
    if save:
        write(results)


def write(results: Results) -> None:
    """Write both files."""
    RESULTS_JSON.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    RESULTS_MD.write_text(render(results))


def show(console: Console, results: Results, key: str) -> None:
    """Print one scenario's tables."""
    for case in results[key]["cases"]:
        heading, *rows = _rows(results[key], key, case)
        table = Table(*heading, title=f"{results[key]['title']}: {_case_title(key, case)}")
        for column in table.columns[2:]:
            column.justify = "right"
        for row in rows:
            table.add_row(*row)
        console.print(table)


def show_targets(console: Console, results: Results) -> None:
    """Print the ratios that are to be reached."""
    table = Table("ratio", "measured", "to reach", "", title="Ratios")
    for row in _target_rows(results):
        table.add_row(*row)
    console.print(table)


def render(results: Results) -> str:
    """Render RESULTS.md from everything known."""
    parts = [
        "# Holdfast beside its peers",
        "Written by `make bench`; do not edit. One scenario: `make bench ONLY=append`.",
        METHOD,
        _listed(_common(results)),
        "## Ratios",
        _markdown(("ratio", "measured", "to reach", ""), _target_rows(results)),
    ]
    common = _common(results)
    for key in COLUMNS:
        if key in results:
            parts += _section(results[key], key, common)
    for group in GROUPS:
        if group.key in results:
            parts += _group_section(group, results[group.key], common)
    if PROFILE_MD.exists():
        parts += ["## Where the time goes", PROFILE_MD.read_text().strip()]
    return "\n\n".join(parts) + "\n"


def _common(results: Results) -> dict[str, str]:
    """Return the facts that hold for every scenario: said once, at the top."""
    facts = [set(result["about"].items()) for result in results.values()]
    shared = set.intersection(*facts) if facts else set()
    return dict(sorted(shared))


def _listed(facts: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _section(result: dict[str, Any], key: str, common: dict[str, str]) -> list[str]:
    parts = [f"## {result['title']}", result["note"]]
    for case in result["cases"]:
        heading, *rows = _rows(result, key, case)
        parts += [f"### {_case_title(key, case)}", _markdown(heading, rows)]
    titles = {server.key: server.title for server in ALL}
    parts += [
        f"{titles[key]} not measured: {why}" for key, why in sorted(result["missing"].items())
    ]
    about = {name: value for name, value in result["about"].items() if name not in common}
    cases = [case for server in result["servers"].values() for case in server.values()]
    others = max((case.get("others", 0.0) for case in cases), default=0.0)
    about["other work meanwhile"] = f"at most {others:.0%} of a core (the kernel's own included)"
    return [*parts, _listed(about)]


def _group_section(group: Group, result: dict[str, Any], common: dict[str, str]) -> list[str]:
    table = _markdown(HEADING, _group_rows(group, result))
    # The steps say themselves when they ran, how often and at which commit.
    said = {*common, "date", "commit", "runs"}
    about = {name: value for name, value in result["about"].items() if name not in said}
    return [
        f"## {group.title}",
        group.note,
        table,
        _notes(group, result),
        _listed(about),
    ]


def _rows(result: dict[str, Any], key: str, case: str) -> list[tuple[str, ...]]:
    columns = COLUMNS[key]
    rows: list[tuple[str, ...]] = [("server", "kept by", *(c.heading for c in columns), "×")]
    own = _metrics(result, HOLDFAST, case)
    for server in ALL:
        metrics = _metrics(result, server, case)
        if metrics is None:
            continue
        # A result kept from an older bench may lack a newer metric.
        known = ((c, metrics.get(c.metric)) for c in columns)
        cells = ("" if value is None else c.form.format(value) for c, value in known)
        ratio = f"{own['per_s'] / metrics['per_s']:.2f}" if own and metrics["per_s"] else ""
        rows.append((server.title, server.kept, *cells, ratio))
    return rows


def _target_rows(results: Results) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for target in TARGETS:
        to_reach = "reported" if target.at_least is None else f"≥ {target.at_least:g}"
        ratio = _ratio(results, target)
        if ratio is None:
            rows.append((target.text, "not measured", to_reach, ""))
            continue
        reached = "" if target.at_least is None else "yes" if ratio >= target.at_least else "no"
        noted = " ".join(filter(None, (reached, _disturbed(results[target.scenario], target))))
        rows.append((target.text, f"{ratio:.2f}", to_reach, noted))
    return rows


def _disturbed(result: dict[str, Any], target: Target) -> str:
    """Mark a ratio in which either side was measured beside other work: it shows little."""
    both = (_metrics(result, server, target.case) for server in (HOLDFAST, target.peer))
    others = max(metrics.get("others", 0.0) for metrics in both if metrics)
    return f"(disturbed: {others:.0%} of a core)" if others > OTHERS_SHOWN else ""


def _ratio(results: Results, target: Target) -> float | None:
    result = results.get(target.scenario)
    own = result and _metrics(result, HOLDFAST, target.case)
    peer = result and _metrics(result, target.peer, target.case)
    if not own or not peer or not own[target.metric] or not peer[target.metric]:
        return None
    ratio = own[target.metric] / peer[target.metric]
    return 1 / ratio if target.less_is_better else ratio


def _metrics(result: dict[str, Any], server: Server, case: str) -> Metrics | None:
    metrics: Metrics | None = result["servers"].get(server.key, {}).get(case)
    return metrics


def _case_title(key: str, case: str) -> str:
    return f"{case} connections" if key == "append" else case


def _markdown(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heading, tuple("---" for _ in heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


HEADING = ("what", "measured", "target", "reached")

Rows = list[tuple[str, ...]]


def _group_rows(group: Group, result: dict[str, Any]) -> Rows:
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


def _notes(group: Group, result: dict[str, Any]) -> str:
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
    for row in _group_rows(group, result):
        table.add_row(*row)
    console.print(table)
