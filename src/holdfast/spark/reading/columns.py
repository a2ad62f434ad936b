"""The columns of a read, which of them are asked for, and their types in Spark and in Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.errors import SettingsError

# In the order in which they come, with whether they can be null.
_COLUMNS: Final[dict[str, tuple[DataType, Any, bool]]] = {
    "bucket": (StringType(), pa.string(), False),
    "stream_id": (StringType(), pa.string(), False),
    "offset": (StringType(), pa.string(), False),
    "next_offset": (StringType(), pa.string(), False),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC"), True),
    "content_type": (StringType(), pa.string(), False),
    "payload": (BinaryType(), pa.binary(), False),
    "value": (StringType(), pa.string(), True),
}
NAMES: Final = tuple(_COLUMNS)
# `value` is the payload of JSON streams as text: one of the two is enough.
DEFAULT: Final = tuple(name for name in NAMES if name != "value")


def check_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns that an option names."""
    for name in names:
        if name not in _COLUMNS:
            raise SettingsError(f"There is no column {name!r}; there are {', '.join(NAMES)}.")
    if len(set(names)) != len(names):
        raise SettingsError("The option 'columns' names a column twice.")
    return tuple(names)


def spark_schema(names: Sequence[str]) -> StructType:
    """The schema of a read, as Spark takes it."""
    # Nullable all of them: that is what Spark makes of a source's schema in any case.
    return StructType([StructField(name, _COLUMNS[name][0], True) for name in names])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema given by the user names; their types must be ours."""
    names = check_columns([field.name for field in schema.fields])
    for field in schema.fields:
        if field.dataType != _COLUMNS[field.name][0]:
            ours = _COLUMNS[field.name][0].simpleString()
            theirs = field.dataType.simpleString()
            raise SettingsError(f"The column {field.name!r} is of type {ours}, not {theirs}.")
    return names


def arrow_schema(names: Sequence[str]) -> Any:
    """The schema of a read, as Arrow takes it."""
    return pa.schema([pa.field(name, _COLUMNS[name][1], nullable=True) for name in names])
