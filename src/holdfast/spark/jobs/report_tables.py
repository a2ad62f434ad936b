"""The archived tables as one DataFrame: bucket, stream_id, bytes, at.

A table is what lies at a path: Delta if there is `_delta_log`, Iceberg if there is `metadata`, else
Parquet. Of Delta and Iceberg the driver lists the live files, and Spark reads those as Parquet: it
has no reader for either by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["live_files", "open_tables"]

_COLUMNS: Final = ("bucket", "stream_id", "offset", "next_offset", "timestamp")


def open_tables(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """All messages of the tables; a table that holds nothing yet adds nothing."""
    frames = [frame for path in paths if (frame := _open(spark, path)) is not None]
    if not frames:
        return spark.createDataFrame(
            [], "bucket string, stream_id string, bytes bigint, at timestamp"
        )
    return reduce(lambda one, other: one.unionAll(other), frames)


def live_files(path: str) -> list[str] | None:
    """The files of a Delta or Iceberg table; None if it is neither."""
    if "://" not in path and not Path(path).exists():
        raise SettingsError(f"There is no table at {path}.")
    if _is_delta(path):
        from deltalake import DeltaTable  # noqa: PLC0415 (only for such tables)

        return [_local(each) for each in DeltaTable(path).file_uris()]
    metadata = _iceberg_metadata(path)
    if metadata is not None:
        from pyiceberg.table import StaticTable  # noqa: PLC0415 (only for such tables)

        table = StaticTable.from_metadata(metadata)
        return [_local(each.file.file_path) for each in table.scan().plan_files()]
    return None


def _open(spark: SparkSession, path: str) -> DataFrame | None:
    files = live_files(path)
    if files is None:
        if _is_empty(path):
            return None
        frame = spark.read.parquet(path)
    elif not files:
        return None
    else:
        frame = spark.read.option("basePath", path).parquet(*files)
    missing = [each for each in _COLUMNS if each not in frame.columns]
    if missing:
        raise SettingsError(
            f"{path} is no table of `archive`: it has no {', '.join(map(repr, missing))}."
        )
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


def _iceberg_metadata(path: str) -> str | None:
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
