"""The figures as plain text, for pipes, files and people without a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.terminal import as_bytes, as_clock_time, printable
from holdfast.cli.top.figures import Figures
from holdfast.cli.top.rows import headline, notices, storage_rows, stream_name, traffic_rows

__all__ = ["plain"]

NAME_COLUMNS = 16
FIGURE_COLUMNS = 12


def plain(figures: Figures) -> str:
    """One line for each figure."""
    return "\n".join(_lines(figures))


def _lines(figures: Figures) -> Iterator[str]:
    if not figures.reachable:
        since = as_clock_time(figures.unreachable_since_ms or figures.at_ms)
        yield f"{figures.url} unreachable since {since}: {printable(figures.error or '')}"
        return
    yield ", ".join(headline(figures))
    if figures.restarted:
        yield "! the server was restarted: its counters began anew"
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
