"""The table function `holdfast_changes(bucket, from, to)` of Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from holdfast.spark.connection import CONNECTION_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "holdfast_changes"
# Options of the connection are taken from the session's settings with this prefix.
_SETTINGS: Final = "spark.holdfast."
_COLUMNS: Final = (
    "bucket",
    "stream_id",
    "offset",
    "next_offset",
    "position",
    "timestamp",
    "content_type",
    "payload",
)


def register_functions(session: SparkSession, **options: str) -> None:
    """Register `holdfast_changes` in a session.

    `options` are those of the connection (`url`, `token`, …). The session's settings, such as
    `spark.holdfast.url`, take the place of those that are not given.
    """
    given = dict(options)
    for name in CONNECTION_OPTIONS:
        value = session.conf.get(_SETTINGS + name, None)
        if value is not None:
            given.setdefault(name, value)
    session.udtf.register(NAME, _changes(given))


def _changes(options: dict[str, str]) -> Any:
    from pyspark.sql.functions import udtf  # noqa: PLC0415 (only where sessions are)

    from holdfast.spark.reading.arrow import spark_schema  # noqa: PLC0415

    schema = spark_schema(_COLUMNS)

    class Changes:
        """Messages that were appended after one cursor and up to another."""

        def eval(
            self,
            bucket: str,
            from_cursor: str | None = None,
            to_cursor: str | None = None,
            url: str | None = None,
            token: str | None = None,
        ) -> Iterator[tuple[Any, ...]]:
            from holdfast.spark.reading.readers import batch_reader  # noqa: PLC0415

            bounds = {"startingOffsets": from_cursor, "endingOffsets": to_cursor}
            given = {**bounds, "url": url, "token": token}
            chosen = {name: value for name, value in given.items() if value is not None}
            reader = batch_reader({**options, **chosen, "bucket": bucket}, schema)
            for part in reader.partitions():
                for batch in reader.read(part):
                    yield from zip(*(column.to_pylist() for column in batch), strict=True)

    return udtf(Changes, returnType=schema)
