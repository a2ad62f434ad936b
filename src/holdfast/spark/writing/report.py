"""Under which producer a task writes, and what it reports when it has written."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from holdfast.errors import SettingsError


@dataclass(frozen=True)
class BatchProducer:
    """The producer of one batch: its requests are numbered under this id and epoch."""

    producer_id: str
    epoch: int


@dataclass(frozen=True)
class WriteReport(WriterCommitMessage):
    """What was written by a task, or by all of them."""

    rows: int = 0
    bytes: int = 0
    requests: int = 0
    # Of the requests, those that the streams had already: from another attempt, or another run.
    duplicates: int = 0
    streams: int = 0


@dataclass(frozen=True)
class TaskReport(WriteReport):
    """What one task has written, and to which streams."""

    partition: int = 0
    packed_names: bytes = b""

    def names(self) -> list[str]:
        """The streams, as `bucket/id`."""
        return zlib.decompress(self.packed_names).decode().split("\0") if self.streams else []


def packed(names: Iterable[str]) -> bytes:
    """Names for a report; none of them has NUL in it, which no path may hold."""
    return zlib.compress("\0".join(names).encode(), 1)


def total(reports: Iterable[WriteReport]) -> WriteReport:
    """What all tasks have written together."""
    found = list(reports)
    return WriteReport(
        rows=sum(each.rows for each in found),
        bytes=sum(each.bytes for each in found),
        requests=sum(each.requests for each in found),
        duplicates=sum(each.duplicates for each in found),
        streams=sum(each.streams for each in found),
    )


def check_streams_apart(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    """The reports of all tasks; refused if two have written to the same stream."""
    reports = [each for each in messages if isinstance(each, TaskReport)]
    owners: dict[str, int] = {}
    for report in reports:
        for name in report.names():
            owner = owners.setdefault(name, report.partition)
            if owner != report.partition:
                raise SettingsError(
                    f"Rows of the stream {name!r} were in the tasks {owner} and "
                    f"{report.partition}, so that not all of them are stored, and the batch is not "
                    "committed: write with holdfast.spark.write_to_streams, which puts a stream's "
                    "rows into one task, under another producerId (and, in a streaming query, with "
                    "a new checkpoint)."
                )
    return reports
