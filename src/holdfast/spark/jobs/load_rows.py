"""The table of a load, and its rows in the form that is written: stream, message, order."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, VariantType

from holdfast.errors import HoldfastError, SettingsError
from holdfast.spark.jobs.report_tables import delta_frame, iceberg_files
from holdfast.spark.session import root_cause
from holdfast.spark.writing.options import PAYLOAD, STREAM, VALUE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from holdfast.spark.jobs.load import Load

_NESTED: Final = (StructType, ArrayType, MapType, VariantType)
# Options that do not change what is loaded.
_NOT_OF_THE_LOAD: Final = frozenset({"server", "concurrency", "producer_id"})


def open_table(spark: SparkSession, job: Load) -> DataFrame:
    """The rows to load."""
    try:
        table = _open(spark, job)
        return table.where(job.where) if job.where else table
    except HoldfastError:
        raise
    except Exception as error:  # noqa: BLE001 (Spark's readers raise anything)
        raise SettingsError(f"The table cannot be read: {root_cause(error)}") from None


def _open(spark: SparkSession, job: Load) -> DataFrame:
    if job.table:
        return spark.read.options(**job.source_options).table(job.table)
    match job.format.lower():
        case "delta":
            frame = delta_frame(spark, job.source)
            if frame is None:
                raise SettingsError(f"There is no Delta table at {job.source}.")
            return frame
        case "iceberg":
            return _iceberg(spark, job)
    reader = spark.read.format(job.format).options(**job.source_options)
    frame = reader.load(job.source)
    # Some sources notice only here that there is nothing.
    _ = frame.schema
    return frame


def _iceberg(spark: SparkSession, job: Load) -> DataFrame:
    files = iceberg_files(job.source)
    if files is None:
        raise SettingsError(f"There is no Iceberg table at {job.source}.")
    if not files:
        raise SettingsError(f"The Iceberg table at {job.source} is empty.")
    return spark.read.parquet(*files)


def rows_of(table: DataFrame, job: Load) -> tuple[DataFrame, list[str]]:
    """The rows to write, and the columns to order them by."""
    columns = {field.name: field.dataType for field in table.schema.fields}
    for option, names in (("order_by", job.order_by), ("columns", job.columns)):
        for name in names:
            _check(name, option, columns)
    order_by = [f"order_{index}" for index in range(len(job.order_by))]
    ordered = [_column(name).alias(as_) for name, as_ in zip(job.order_by, order_by, strict=True)]
    stream = _stream(job.stream_id, columns).alias(STREAM)
    return table.select(stream, _message(job, columns), *ordered), order_by


def load_name(table: DataFrame, job: Load) -> str:
    """The producer id of this load; it changes with the options and the files."""
    options = {name: value for name, value in asdict(job).items() if name not in _NOT_OF_THE_LOAD}
    # The server does not matter: each one knows only what was written to it.
    state = [options, sorted(_state_of(file) for file in table.inputFiles())]
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    return f"holdfast-load-{digest[:32]}"


def _state_of(file: str) -> str:
    """A file's name, and its size and time if the driver can see them."""
    parts = urlsplit(file)
    if parts.scheme not in {"", "file"}:
        return file
    try:
        found = Path(unquote(parts.path)).stat()
    except OSError:
        return file
    return f"{file} {found.st_size} {found.st_mtime_ns}"


def _check(name: str, option: str, columns: dict[str, DataType]) -> None:
    if name not in columns:
        raise SettingsError(
            f"There is no column {name!r}, which {option!r} names; there are {', '.join(columns)}."
        )


def _column(name: str) -> Column:
    escaped = name.replace("`", "``")
    return sql.col(f"`{escaped}`")


def _stream(template: str, columns: dict[str, DataType]) -> Column:
    if template in columns:
        return _column(template).cast("string")
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise SettingsError(f"'stream_id' is not a valid template: {error}.") from None
    if all(name is None for _, name, _, _ in parts):
        _check(template, "stream_id", columns)
    made: list[Column] = []
    for text, name, form, conversion in parts:
        if text:
            made.append(sql.lit(text))
        if name is None:
            continue
        if form or conversion:
            raise SettingsError("'stream_id' takes {column} and nothing else in braces.")
        _check(name, "stream_id", columns)
        made.append(_column(name).cast("string"))
    return sql.concat(*made)


def _message(job: Load, columns: dict[str, DataType]) -> Column:
    if job.payload:
        _check(job.payload, "payload", columns)
        return _column(job.payload).cast("binary").alias(PAYLOAD)
    if job.value:
        _check(job.value, "value", columns)
        column, kind = _column(job.value), columns[job.value]
        if isinstance(kind, BinaryType):
            raise SettingsError(f"The column {job.value!r} holds bytes: name it with 'payload'.")
        text = sql.to_json(column) if isinstance(kind, _NESTED) else column.cast("string")
        return text.alias(VALUE)
    whole = sql.struct(*(_column(name) for name in job.columns or columns))
    return sql.to_json(whole, {"ignoreNullFields": "false"}).alias(VALUE)
