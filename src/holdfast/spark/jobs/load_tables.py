"""The table of a load as a DataFrame."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from holdfast.errors import HoldfastError, SettingsError
from holdfast.spark.jobs.report_tables import _iceberg_metadata, live_files
from holdfast.spark.session import root_cause

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark.jobs.load import Load

# What the files alone do not tell.
_DELTA_REFUSED: Final = frozenset({"deletionVectors", "columnMapping"})


def open_table(spark: SparkSession, job: Load) -> DataFrame:
    """The rows to be loaded."""
    try:
        table = _open(spark, job)
        return table.where(job.where) if job.where else table
    except HoldfastError:
        raise
    except Exception as error:  # noqa: BLE001 (whatever a reader makes of what it is given)
        raise SettingsError(f"The table cannot be read: {root_cause(error)}") from None


def _open(spark: SparkSession, job: Load) -> DataFrame:
    if job.table:
        return spark.read.options(**job.source_options).table(job.table)
    match job.format.lower():
        case "delta":
            return _delta(spark, job)
        case "iceberg":
            return _iceberg(spark, job)
    reader = spark.read.format(job.format).options(**job.source_options)
    frame = reader.load(job.source)
    # Some sources say only here that there is nothing.
    _ = frame.schema
    return frame


def _delta(spark: SparkSession, job: Load) -> DataFrame:
    """Spark reads the live files as Parquet: it has no reader for Delta by itself."""
    from deltalake import DeltaTable  # noqa: PLC0415 (only for such tables)

    files = live_files(job.source)
    if files is None or not DeltaTable.is_deltatable(job.source):
        raise SettingsError(f"There is no Delta table at {job.source}.")
    table = DeltaTable(job.source)
    features = set(table.protocol().reader_features or ()) & _DELTA_REFUSED
    if features:
        raise SettingsError(
            f"The Delta table at {job.source} uses {', '.join(sorted(features))}, "
            "which its files alone do not tell: rewrite it without."
        )
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", job.source).parquet(*files)


def _iceberg(spark: SparkSession, job: Load) -> DataFrame:
    from pyiceberg.table import StaticTable  # noqa: PLC0415 (only for such tables)

    metadata = _iceberg_metadata(job.source)
    if metadata is None:
        raise SettingsError(f"There is no Iceberg table at {job.source}.")
    tasks = list(StaticTable.from_metadata(metadata).scan().plan_files())
    if any(each.delete_files for each in tasks):
        raise SettingsError(
            f"The Iceberg table at {job.source} has rows that were deleted without rewriting their "
            "files: rewrite them first."
        )
    if not tasks:
        raise SettingsError(f"The Iceberg table at {job.source} is empty.")
    return spark.read.parquet(*(each.file.file_path.removeprefix("file://") for each in tasks))
