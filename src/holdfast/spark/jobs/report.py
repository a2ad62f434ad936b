"""The job `report`: one HTML page with plots, from tables of `archive` and `transcripts`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, SettingsError
from holdfast.spark.jobs.options import option
from holdfast.spark.jobs.progress import Progress, watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Report", "Reported", "run"]

_TOP_MAX: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Report:
    """Make one HTML page with plots from tables that `archive` and `transcripts` wrote."""

    tables: list[str] = option(
        "Table to read: a directory of Parquet, Delta or Iceberg, or where transcripts are. "
        "Can be given several times.",
        path=True,
        flag="table",
    )
    to: str = option("File to write the page to. (default report.html)", "report.html", path=True)
    title: str = option("Title of the page. (default Streams)", "Streams")
    top: int = option("Streams in each ranking, 1 to 1000. (default 10)", 10)
    sections: list[str] = option(
        "Function that adds a section, MODULE:NAME. Can be given several times.", [], flag="section"
    )

    def __post_init__(self) -> None:
        if not self.tables:
            raise SettingsError("'tables' must name at least one table.")
        if not 1 <= self.top <= _TOP_MAX:
            raise SettingsError(f"'top' is a number from 1 to {_TOP_MAX}, not {self.top}.")
        for name in self.sections:
            if not all(name.partition(":")[::2]):
                raise SettingsError(f"'sections' has functions as MODULE:NAME, not {name!r}.")


@dataclass(frozen=True)
class Reported:
    """What the page shows, in short."""

    page: str
    messages: int
    bytes: int
    streams: int
    buckets: int
    # Of upstreams, in tables of `transcripts`.
    responses: int = 0


def run(
    spark: SparkSession, job: Report, progress: Progress, clock: Clock | None = None
) -> Reported:
    """Count what is in the tables, and write the page."""
    from holdfast.spark.jobs.report_figures import figures_of  # noqa: PLC0415 (only where jobs run)
    from holdfast.spark.jobs.report_page import page  # noqa: PLC0415
    from holdfast.spark.jobs.report_responses import (  # noqa: PLC0415
        response_figures,
        response_sections,
        response_tiles,
    )
    from holdfast.spark.jobs.report_sections import (  # noqa: PLC0415
        moment_text,
        sections_of,
        tiles_of,
    )
    from holdfast.spark.jobs.report_tables import open_all  # noqa: PLC0415

    adding = [_function(name) for name in job.sections]
    with watching(spark, progress, "counting messages"):
        opened = open_all(spark, job.tables)
        of_messages = [figures_of(x, job.top) for x in [opened.messages] if x is not None]
        of_responses = [response_figures(x, job.top) for x in [opened.responses] if x is not None]
        more = [add(spark, job.tables) for add in adding]
    totals = [each.totals for each in of_messages]
    spans = [(each.first_s, each.last_s) for each in totals]
    spans += [(each.first_s, each.last_s) for each in of_responses]
    now_s = (clock or SystemClock()).now_ms() // 1000
    text = page(
        job.title,
        _period(spans, moment_text),
        [
            *(tile for each in of_messages for tile in tiles_of(each)),
            *(tile for each in of_responses for tile in response_tiles(each)),
        ],
        [
            *(section for each in of_messages for section in sections_of(each)),
            *(section for each in of_responses for section in response_sections(each)),
            *more,
        ],
        f"Made {moment_text(now_s)} UTC by holdfast from {', '.join(job.tables)}.",
    )
    _write(Path(job.to), text)
    return Reported(
        job.to,
        sum(each.messages for each in totals),
        sum(each.bytes for each in totals),
        sum(each.streams for each in totals),
        sum(each.buckets for each in totals),
        sum(each.responses for each in of_responses),
    )


def _period(
    spans: Sequence[tuple[int | None, int | None]], written: Callable[[int | None], str]
) -> str:
    firsts = [first for first, _ in spans if first is not None]
    lasts = [last for _, last in spans if last is not None]
    if not firsts or not lasts:
        return "No message has a time."
    return f"{written(min(firsts))} to {written(max(lasts))} UTC"


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"'sections': {name} cannot be loaded: {error}.") from None
    return found


def _write(path: Path, text: str) -> None:
    """The whole page or none: a reader never sees a half of it."""
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be written: {error.strerror}.") from None
