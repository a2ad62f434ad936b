"""Tables that jobs read: messages of `archive`, responses of `transcripts`, or anything to load.

A directory is a Delta table if it has `_delta_log`, an Iceberg table if it has `metadata`, and
Parquet otherwise. Spark has no reader of its own for Delta and Iceberg, so the driver lists the
live files, and Spark reads those as Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = ("bucket", "stream_id", "offset", "next_offset", "timestamp")
# The folder of the table of `transcripts`, and columns that only this table has.
_RESPONSES: Final = "responses"
_RESPONSE_COLUMNS: Final = frozenset({"response_id", "outcome", "started_at"})
# Features of Delta tables that change what the files alone say.
_DELTA_REFUSED: Final = frozenset({"deletionVectors", "columnMapping"})


@dataclass(frozen=True)
class ReportTables:
    """The content of the tables of a report; None for a kind without a table."""

    # bucket, stream_id, bytes, at
    messages: DataFrame | None
    # stream_id, started_at, seconds, outcome, model, prompt_tokens, completion_tokens
    responses: DataFrame | None


def open_all(spark: SparkSession, paths: Sequence[str]) -> ReportTables:
    """Open the tables of a report; empty ones add nothing."""
    messages: list[DataFrame] = []
    responses: list[DataFrame] = []
    for path in paths:
        frame = _frame(spark, _table_in(path))
        if frame is None:
            continue
        if set(frame.columns) >= _RESPONSE_COLUMNS:
            responses.append(_responses(frame))
        else:
            messages.append(_messages(frame, path))
    if not messages and not responses:
        none = "bucket string, stream_id string, bytes bigint, at timestamp"
        messages.append(spark.createDataFrame([], none))
    return ReportTables(_union(messages), _union(responses))


def _union(frames: Sequence[DataFrame]) -> DataFrame | None:
    return reduce(lambda one, other: one.unionAll(other), frames) if frames else None


def _table_in(path: str) -> str:
    """The path, or the table of responses below it."""
    if "://" in path or not (Path(path) / _RESPONSES / "_holdfast").is_dir():
        return path
    return str(Path(path) / _RESPONSES)


def _frame(spark: SparkSession, path: str) -> DataFrame | None:
    if "://" not in path and not Path(path).exists():
        raise SettingsError(f"There is no table at {path}.")
    frame = delta_frame(spark, path)
    if frame is not None:
        return frame
    files = iceberg_files(path)
    if files is not None:
        return spark.read.parquet(*files) if files else None
    return None if _is_empty(path) else spark.read.parquet(path)


def delta_frame(spark: SparkSession, path: str) -> DataFrame | None:
    """A Delta table; None if the path is not one."""
    if "://" not in path and not (Path(path) / "_delta_log").is_dir():
        return None
    from deltalake import DeltaTable  # noqa: PLC0415 (only for such tables)
    from pyspark.sql.types import StructType  # noqa: PLC0415

    if not DeltaTable.is_deltatable(path):
        return None
    table = DeltaTable(path)
    features = set(table.protocol().reader_features or ()) & _DELTA_REFUSED
    if features:
        raise SettingsError(
            f"The Delta table at {path} uses {', '.join(sorted(features))}, "
            "which cannot be read from its files alone: rewrite the table without."
        )
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    files = [_local(each) for each in table.file_uris()]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", path).parquet(*files)


def iceberg_files(path: str) -> list[str] | None:
    """The files of an Iceberg table; None if the path is not one."""
    metadata = _iceberg_metadata(path)
    if metadata is None:
        return None
    from pyiceberg.table import StaticTable  # noqa: PLC0415 (only for such tables)

    tasks = list(StaticTable.from_metadata(metadata).scan().plan_files())
    if any(each.delete_files for each in tasks):
        raise SettingsError(
            f"The Iceberg table at {path} has rows that were deleted without rewriting their "
            "files: rewrite them first."
        )
    return [_local(each.file.file_path) for each in tasks]


def _responses(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(
        "stream_id",
        "started_at",
        "(unix_micros(ended_at) - unix_micros(started_at)) / 1e6D as seconds",
        "outcome",
        "model",
        "prompt_tokens",
        "completion_tokens",
    )


def _messages(frame: DataFrame, path: str) -> DataFrame:
    missing = [each for each in _COLUMNS if each not in frame.columns]
    if missing:
        names = ", ".join(map(repr, missing))
        raise SettingsError(
            f"{path} is not a table of `archive` or `transcripts`: it has no {names}."
        )
    return frame.selectExpr(
        "cast(bucket as string) as bucket",
        "cast(stream_id as string) as stream_id",
        # Offsets of other servers may not be numbers: then sizes are unknown.
        "try_cast(next_offset as bigint) - try_cast(offset as bigint) as bytes",
        "cast(`timestamp` as timestamp) as at",
    )


def _iceberg_metadata(path: str) -> str | None:
    """The newest metadata file of an Iceberg table in a directory."""
    if path.endswith(".metadata.json"):
        return path
    if "://" in path:
        return None
    found = list((Path(path) / "metadata").glob("*.metadata.json"))
    return str(max(found, key=_version)) if found else None


def _version(path: Path) -> tuple[int, str]:
    """Catalogs write `00003-….metadata.json`, Hadoop tables `v3.metadata.json`."""
    number = path.name.partition("-")[0].partition(".")[0].removeprefix("v")
    return (int(number) if number.isdigit() else -1, path.name)


def _is_empty(path: str) -> bool:
    if "://" in path:
        return False
    place = Path(path)
    return place.is_dir() and not any(
        not any(part.startswith(("_", ".")) for part in each.relative_to(place).parts)
        for each in place.rglob("*.parquet")
    )


def _local(uri: str) -> str:
    return uri.removeprefix("file://")
