"""The job `report`: one HTML page with plots, from tables of `archive` and `transcripts`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, SettingsError
from holdfast.settings.options import option
from holdfast.spark.jobs.progress import Progress, watching
from holdfast.spark.jobs.result import JobResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Report", "Reported", "run"]

_TOP_MAX: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Report:
    """Make one HTML page with plots from tables that `archive` and `transcripts` wrote."""

    tables: list[str] = option(
        "Table to read: a directory of Parquet, Delta or Iceberg, or the directory of transcripts. "
        "Can be given several times.",
        path=True,
        flag="table",
    )
    to: str = option("File to write the page to.", "report.html", path=True)
    title: str = option("Title of the page.", "Streams")
    top: int = option("Streams in each ranking, 1 to 1000.", 10)
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
class Reported(JobResult):
    """Totals of the page; `responses` are those of upstreams, from tables of `transcripts`."""

    page: str
    messages: int
    bytes: int
    streams: int
    buckets: int
    responses: int = 0


def run(
    spark: SparkSession, job: Report, progress: Progress, clock: Clock | None = None
) -> Reported:
    """Count the tables' content, and write the page."""
    from holdfast.spark.jobs import report_page as html  # noqa: PLC0415 (only where jobs run)
    from holdfast.spark.jobs.report_figures import (  # noqa: PLC0415
        message_figures,
        response_figures,
    )
    from holdfast.spark.jobs.report_tables import open_all  # noqa: PLC0415

    added = [_function(name) for name in job.sections]
    summary = Reported(job.to, 0, 0, 0, 0)
    spans: list[tuple[int | None, int | None]] = []
    tiles: list[html.Tile] = []
    sections: list[html.Section] = []
    with watching(spark, progress, "counting messages"):
        opened = open_all(spark, job.tables)
        if opened.messages is not None:
            messages = message_figures(opened.messages, job.top)
            total = messages.totals
            summary = Reported(job.to, total.messages, total.bytes, total.streams, total.buckets)
            spans.append((total.first_s, total.last_s))
            tiles += html.message_tiles(messages)
            sections += html.message_sections(messages)
        if opened.responses is not None:
            responses = response_figures(opened.responses, job.top)
            summary = replace(summary, responses=responses.responses)
            spans.append((responses.first_s, responses.last_s))
            tiles += html.response_tiles(responses)
            sections += html.response_sections(responses)
        sections += [add(spark, job.tables) for add in added]
    moments = [each for span in spans for each in span if each is not None]
    period = "No message has a time."
    if moments:
        period = f"{html.moment_text(min(moments))} to {html.moment_text(max(moments))} UTC"
    now = html.moment_text((clock or SystemClock()).now_ms() // 1000)
    made = f"Made {now} UTC by holdfast from {', '.join(job.tables)}."
    _write(Path(job.to), html.page(job.title, period, tiles, sections, made))
    return summary


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"'sections': {name} cannot be loaded: {error}.") from None
    return found


def _write(path: Path, text: str) -> None:
    """Replace the page as a whole: a reader never sees half of it."""
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be written: {error.strerror}.") from None
