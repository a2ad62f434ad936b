"""Tables as DataFrames: messages of `archive`, and responses of `transcripts`.

A table is what lies at a path: Delta if there is `_delta_log`, Iceberg if there is `metadata`, else
Parquet. Of Delta and Iceberg the driver lists the live files, and Spark reads those as Parquet: it
has no reader for either by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Opened", "live_files", "open_all", "open_tables"]

_COLUMNS: Final = ("bucket", "stream_id", "offset", "next_offset", "timestamp")
# Below the place of `transcripts`; and what tells its table from others.
_RESPONSES: Final = "responses"
_OF_RESPONSES: Final = ("response_id", "outcome", "started_at")


@dataclass(frozen=True)
class Opened:
    """What is in the tables; None for a kind of which there is no table."""

    # bucket, stream_id, bytes, at
    messages: DataFrame | None
    # stream_id, started_at, seconds, outcome, model, prompt_tokens, completion_tokens
    responses: DataFrame | None


def open_all(spark: SparkSession, paths: Sequence[str]) -> Opened:
    """All that the tables hold; one that holds nothing yet adds nothing."""
    messages: list[DataFrame] = []
    responses: list[DataFrame] = []
    for path in paths:
        frame = _frame(spark, _table_in(path))
        if frame is None:
            continue
        if set(_OF_RESPONSES) <= set(frame.columns):
            responses.append(_responses(frame))
        else:
            messages.append(_messages(frame, path))
    if not messages and not responses:
        none = "bucket string, stream_id string, bytes bigint, at timestamp"
        messages.append(spark.createDataFrame([], none))
    return Opened(_together(messages), _together(responses))


def open_tables(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """All messages of archived tables."""
    found = open_all(spark, paths).messages
    assert found is not None
    return found


def _together(frames: Sequence[DataFrame]) -> DataFrame | None:
    return reduce(lambda one, other: one.unionAll(other), frames) if frames else None


def _table_in(path: str) -> str:
    """The table at a path, or the one of responses below it."""
    if "://" in path or not (Path(path) / _RESPONSES / "_holdfast").is_dir():
        return path
    return str(Path(path) / _RESPONSES)


def live_files(path: str) -> list[str] | None:
    """The files of a Delta or Iceberg table; None if it is neither."""
    if "://" not in path and not Path(path).exists():
        raise SettingsError(f"There is no table at {path}.")
    if _is_delta(path):
        from deltalake import DeltaTable  # noqa: PLC0415 (only for such tables)

        return [_local(each) for each in DeltaTable(path).file_uris()]
    metadata = iceberg_metadata(path)
    if metadata is not None:
        from pyiceberg.table import StaticTable  # noqa: PLC0415 (only for such tables)

        table = StaticTable.from_metadata(metadata)
        return [_local(each.file.file_path) for each in table.scan().plan_files()]
    return None


def _frame(spark: SparkSession, path: str) -> DataFrame | None:
    files = live_files(path)
    if files is None:
        return None if _is_empty(path) else spark.read.parquet(path)
    return spark.read.option("basePath", path).parquet(*files) if files else None


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
        said = ", ".join(map(repr, missing))
        raise SettingsError(f"{path} is no table of `archive` or `transcripts`: it has no {said}.")
    return frame.selectExpr(
        "cast(bucket as string) as bucket",
        "cast(stream_id as string) as stream_id",
        # Offsets of other servers may be no numbers: their sizes are not known.
        "try_cast(next_offset as bigint) - try_cast(offset as bigint) as bytes",
        "cast(`timestamp` as timestamp) as at",
    )


def _is_delta(path: str) -> bool:
    if "://" not in path:
        return (Path(path) / "_delta_log").is_dir()
    from deltalake import DeltaTable  # noqa: PLC0415 (only for such tables)

    return DeltaTable.is_deltatable(path)


def iceberg_metadata(path: str) -> str | None:
    """The newest description of an Iceberg table in a directory."""
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
