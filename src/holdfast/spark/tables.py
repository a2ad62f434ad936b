"""Tables of Spark SQL: `CREATE TABLE … USING holdfast OPTIONS (…)`.

Spark hands the options of a table to a Python data source when it asks for the schema, and not when
the table is read or written. So the schema carries them: in the metadata of its first column or, if
the schema is written as SQL, in the comment. Spark keeps both in its catalog, with the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pyspark.sql.types import StructField, StructType

from holdfast.errors import SettingsError
from holdfast.spark.connection import Options
from holdfast.spark.reading.source import READ_OPTIONS
from holdfast.spark.writing.options import WRITE_OPTIONS

_METADATA: Final = "holdfast.options"
_COMMENT: Final = "holdfast options: "
# Of a table, every option comes with this prefix, besides what Spark adds and the properties.
_PREFIX: Final = "option."
_PROVIDER: Final = "provider"


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options for a schema, without what Spark adds to those of a table."""
    if not _is_creation(options):
        return dict(options)
    return readable(_declared(options))


def _declared(options: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(_PREFIX): value
        for name, value in options.items()
        if name.startswith(_PREFIX)
    }


def _is_creation(options: Mapping[str, str]) -> bool:
    return _PROVIDER in options


def with_options(schema: StructType | str, options: Mapping[str, str]) -> StructType | str:
    """The schema of a table that is being created, with its options; any other is unchanged."""
    if not _is_creation(options):
        return schema
    text = msgspec.json.encode(_declared(options)).decode()
    if isinstance(schema, str):
        first, comma, rest = schema.partition(",")
        comment = f"{_COMMENT}{text}".replace("\\", "\\\\").replace("'", "\\'")
        return f"{first} COMMENT '{comment}'{comma}{rest}"
    first_field, *others = schema.fields
    metadata = {**first_field.metadata, _METADATA: text}
    first_field = StructField(
        first_field.name, first_field.dataType, first_field.nullable, metadata
    )
    return StructType([first_field, *others])


def table_options(schema: StructType) -> dict[str, str] | None:
    """The options that the schema of a table carries; None if it is no table's."""
    for field in schema.fields:
        metadata: dict[str, Any] = field.metadata or {}
        comment = str(metadata.get("comment", ""))
        text = metadata.get(_METADATA) or (
            comment.removeprefix(_COMMENT) if comment.startswith(_COMMENT) else ""
        )
        if text:
            return msgspec.json.decode(text, type=dict[str, str])
    return None


def read_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read, and of its table, without those that are for writing."""
    table = table_options(schema)
    if table is None:
        if not options:
            raise _options_are_missing()
        return dict(options)
    return {**readable(table), **options}


def readable(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a table that are for reading; those for writing are checked."""
    return _only(options, READ_OPTIONS)


def insert_options(options: Mapping[str, str], schema: StructType) -> dict[str, str] | None:
    """The options of the table that rows are inserted into; None for a write with its own.

    A frame that was read from a table carries the options of that table, which do not matter then.
    """
    names = {name.lower() for name in WRITE_OPTIONS}
    if any(name.lower() in names for name in options):
        return None
    table = table_options(schema)
    if table is None:
        if not options:
            raise _options_are_missing()
        return None
    return _only(table, WRITE_OPTIONS)


def _only(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    # A name that is neither for reading nor for writing is an error.
    Options(options, {*READ_OPTIONS, *WRITE_OPTIONS})
    names = {name.lower() for name in known}
    return {name: value for name, value in options.items() if name.lower() in names}


def _options_are_missing() -> SettingsError:
    return SettingsError(
        "There are no options. If a table was created with a list of columns, or AS SELECT, Spark "
        "does not pass them on: create it without, and give the option 'columns' instead."
    )
