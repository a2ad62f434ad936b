"""How far queries are behind the streams they follow.

Spark has no place for metrics of a Python source. The latest offset in the progress of a query,
which Spark only shows, has the lag as well: `progress.sources[0].latestOffset`.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from holdfast.spark.reading.stream_reader import LAG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class StreamLag:
    """What a query has not read yet: bytes, messages, and the age of the oldest."""

    bytes: int = 0
    messages: int = 0
    ms: int = 0

    def __str__(self) -> str:
        if not self.messages:
            return "up to date"
        size = f"{self.messages:,} messages ({self.bytes / 1e6:,.1f} MB)"
        return f"behind by {size} and {self.ms / 1000:,.1f} s"


def lag_of(progress: Any) -> StreamLag | None:
    """The lag of all Holdfast sources of a query; None if there is none that tells it.

    `progress` is a StreamingQueryProgress, or its JSON as a dict: `query.lastProgress`.
    """
    found: list[StreamLag] = []
    document = progress if isinstance(progress, dict) else json.loads(progress.json)
    for source in document.get("sources", ()):
        latest = source.get("latestOffset")
        with suppress(ValueError):
            latest = json.loads(latest) if isinstance(latest, str) else latest
        if isinstance(latest, dict) and LAG in latest:
            found.append(StreamLag(**latest[LAG]))
    if not found:
        return None
    return StreamLag(
        sum(each.bytes for each in found),
        sum(each.messages for each in found),
        max(each.ms for each in found),
    )


class ProgressPrinter(StreamingQueryListener):
    """Prints a line for each micro-batch of each query that reads from Holdfast."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        progress = event.progress
        lag = lag_of(progress)
        if lag is not None:
            name = progress.name or str(progress.id)[:8]
            line = f"{name}: batch {progress.batchId}, {progress.numInputRows:,} rows; {lag}"
            print(line, file=self._output or sys.stderr, flush=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 (Spark's name)
        pass

    def onQueryTerminated(  # noqa: N802 (Spark's name)
        self, event: QueryTerminatedEvent
    ) -> None:
        pass


def print_progress(spark: SparkSession, output: TextIO | None = None) -> ProgressPrinter:
    """Print the progress of a session's queries to stderr, until `removeListener` is called."""
    printer = ProgressPrinter(output)
    spark.streams.addListener(printer)
    return printer
