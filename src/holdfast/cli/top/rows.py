"""Figures as rows of text, for the screen and for plain output."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.cli.terminal import (
    NOTHING,
    as_bytes,
    as_clock_time,
    as_count,
    as_duration,
    as_latency,
    as_rate,
    as_share,
    printable,
)
from holdfast.cli.top.measure import Figures
from holdfast.protocol.names import DEFAULT_BUCKET

__all__ = [
    "Mood",
    "Row",
    "headline",
    "notices",
    "plain",
    "storage_rows",
    "stream_name",
    "traffic_rows",
]

NAME_COLUMNS = 16
FIGURE_COLUMNS = 12


class Mood(enum.Enum):
    USUAL = "usual"
    WARNING = "warning"
    ALARM = "alarm"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure with its name; sparklines are drawn from `value`."""

    name: str
    text: str
    value: float | None = None
    mood: Mood = Mood.USUAL
    is_drawn: bool = True


def traffic_rows(figures: Figures) -> list[Row]:
    appends, requests = figures.appends, figures.requests
    readers, commits = figures.readers, figures.commits
    refused, failed = requests.refused_per_s, requests.failed_per_s
    return [
        Row("appends", as_rate(appends.per_s), appends.per_s),
        Row("bytes in", _per_second(as_bytes(appends.bytes_per_s)), appends.bytes_per_s),
        Row("commit p50", as_latency(commits.p50_s), commits.p50_s),
        Row("commit p99", as_latency(commits.p99_s), commits.p99_s),
        Row("requests", as_rate(requests.per_s), requests.per_s),
        Row("refused 4xx", as_rate(refused), refused, Mood.WARNING if refused else Mood.USUAL),
        Row("failed 5xx", as_rate(failed), failed, Mood.ALARM if failed else Mood.USUAL),
        Row("live readers", as_count(readers.live), readers.live),
        Row("connections", as_count(readers.connections), readers.connections),
    ]


def storage_rows(figures: Figures) -> list[Row]:
    hot, cold, flush, cache = figures.hot, figures.cold, figures.flush, figures.cache
    return [
        Row("streams", _streams(figures), is_drawn=False),
        Row("hot", as_bytes(hot.bytes), hot.bytes, _hot_mood(figures)),
        Row("hot limit", _hot_limit(figures), is_drawn=False),
        Row("cold", as_bytes(cold.bytes), cold.bytes),
        Row("packs", _packs(figures), is_drawn=False),
        Row("backlog", as_bytes(flush.backlog_bytes), flush.backlog_bytes),
        Row("flush", *_flush(figures), is_drawn=False),
        Row("back-pressure", *_backpressure(figures), is_drawn=False),
        Row("cache hits", _cache(figures), cache.hit_rate),
    ]


def headline(figures: Figures) -> list[str]:
    """Return facts about the server, the most important first."""
    server = figures.server
    facts = [
        f"holdfast {server.version}" if server.version else None,
        figures.url,
        server.durability,
        server.mode,
        server.state if server.state != "ready" else None,
        f"up {as_duration(server.uptime_s)}" if server.uptime_s is not None else None,
    ]
    return [printable(fact) for fact in facts if fact]


def notices(figures: Figures) -> list[tuple[str, Mood]]:
    """Return warnings, the worst first."""
    found = []
    if figures.commits.stalled:
        found.append(("the log does not respond: writes are refused", Mood.ALARM))
    if figures.backpressure.active:
        why = printable(figures.backpressure.reason or "not enough memory")
        found.append((f"back-pressure, appends are refused: {why}", Mood.ALARM))
    if figures.commits.failures_per_s:
        found.append(("the log refuses batches", Mood.ALARM))
    if figures.flush.trouble:
        found.append((f"flush fails: {printable(figures.flush.trouble)}", Mood.ALARM))
    if figures.missing:
        found.append((f"not available here: {', '.join(figures.missing)}", Mood.WARNING))
    return found


def stream_name(name: str) -> str:
    """Return a stream's name as commands take it: without the default bucket."""
    return printable(name.removeprefix(f"{DEFAULT_BUCKET}/"))


def _per_second(text: str) -> str:
    return text if text == NOTHING else f"{text}/s"


def _streams(figures: Figures) -> str:
    streams = figures.streams
    if streams.in_memory is None or streams.in_memory == streams.total:
        return as_count(streams.total)
    return f"{as_count(streams.total)}, {as_count(streams.in_memory)} in memory"


def _hot_mood(figures: Figures) -> Mood:
    if figures.backpressure.active:
        return Mood.ALARM
    hot = figures.hot
    if hot.cost_bytes is None or hot.soft_limit_bytes is None:
        return Mood.USUAL
    return Mood.WARNING if hot.cost_bytes > hot.soft_limit_bytes else Mood.USUAL


def _hot_limit(figures: Figures) -> str:
    hot = figures.hot
    if hot.cost_bytes is None or not hot.hard_limit_bytes:
        return NOTHING
    used = as_share(hot.cost_bytes / hot.hard_limit_bytes)
    return f"{used} of {as_bytes(hot.hard_limit_bytes)}"


def _packs(figures: Figures) -> str:
    cold = figures.cold
    if cold.packs is None:
        return NOTHING
    return f"{as_count(cold.packs)}, {as_bytes(cold.pack_bytes)}"


def _flush(figures: Figures) -> tuple[str, None, Mood]:
    flush = figures.flush
    if flush.trouble:
        return "fails", None, Mood.ALARM
    if flush.in_progress is None:
        return NOTHING, None, Mood.USUAL
    if flush.in_progress or flush.bytes_per_s:
        return f"running, {_per_second(as_bytes(flush.bytes_per_s))}", None, Mood.USUAL
    return "idle", None, Mood.USUAL


def _backpressure(figures: Figures) -> tuple[str, None, Mood]:
    pressure = figures.backpressure
    if pressure.active is None:
        return NOTHING, None, Mood.USUAL
    if pressure.active or pressure.refused_per_s:
        return f"ON, refuses {as_rate(pressure.refused_per_s)}", None, Mood.ALARM
    return "off", None, Mood.USUAL


def _cache(figures: Figures) -> str:
    cache = figures.cache
    if cache.hit_rate is not None or cache.hit_rate_since_start is None:
        return as_share(cache.hit_rate)
    return f"{NOTHING} ({as_share(cache.hit_rate_since_start)} so far)"


def plain(figures: Figures) -> str:
    """Return one line for each figure, for pipes and files."""
    return "\n".join(_lines(figures))


def _lines(figures: Figures) -> Iterator[str]:
    if not figures.reachable:
        since = as_clock_time(figures.unreachable_since_ms or figures.at_ms)
        yield f"{figures.url} unreachable since {since}: {printable(figures.error or '')}"
        return
    yield ", ".join(headline(figures))
    if figures.restarted:
        yield "! the server was restarted: its counters started again"
    for notice, _ in notices(figures):
        yield f"! {notice}"
    yield ""
    for row in (*traffic_rows(figures), *storage_rows(figures)):
        yield f"{row.name:<{NAME_COLUMNS}}{row.text}"
    if figures.hottest:
        yield ""
        yield f"{'hot':>{FIGURE_COLUMNS}}{'in/s':>{FIGURE_COLUMNS}}  hottest streams"
    for each in figures.hottest:
        cells = (as_bytes(each.hot_bytes), as_bytes(each.bytes_per_s))
        yield "".join(f"{cell:>{FIGURE_COLUMNS}}" for cell in cells) + (
            f"  {stream_name(each.stream)}"
        )
