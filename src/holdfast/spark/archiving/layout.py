"""The columns of archived tables, and how messages fill them.

With `json_as=columns`, fields of JSON messages have columns of their own. A field has a *kind*, a
short word that is stored with the table: a type, or `json`, which holds any value as text. Fields
without a column, and values that are not of their column's kind, go to `_rest`, as an object. A
message that is not an object goes to `_raw` unchanged. So nothing is lost.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import SettingsError
from holdfast.spark.reading.arrow import (
    Chunk,
    arrow_schema,
    json_messages,
    json_rows,
    to_batch,
)
from holdfast.spark.reading.json_fields import (
    JSON_KIND,
    KIND_TYPES,
    UNDECODABLE,
    JsonFields,
    both,
    kind_of,
    kinds_in,
)

# In this order, in every table.
MESSAGE_COLUMNS: Final = (
    "bucket",
    "stream_id",
    "offset",
    "next_offset",
    "timestamp",
    "content_type",
    "payload",
)
# A message of a JSON stream as text.
VALUE: Final = "value"
# The UTC day of `timestamp`, in the names of directories.
DATE: Final = "date"
# Fields of a JSON message that do not fit a column, and messages that are not objects.
REST: Final = "_rest"
RAW: Final = "_raw"
RESERVED: Final = frozenset({*MESSAGE_COLUMNS, VALUE, DATE, REST, RAW})
# Readers ignore names that start with an underscore.
CONTROL: Final = "_holdfast"


def column_of(field: str) -> str:
    """The column of a JSON field: its name, unless that is reserved."""
    return f"{field}_" if field.lower() in RESERVED - {REST, RAW} else field


# The kinds by the words of Spark, Python and Arrow, which users may write.
_NAMES: Final = {
    "string": "string",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "int": "int",
    "integer": "int",
    "int32": "int",
    "long": "long",
    "bigint": "long",
    "int64": "long",
    "float": "double",
    "double": "double",
    "float64": "double",
    "boolean": "boolean",
    "bool": "boolean",
    "timestamp": "timestamp",
    "date": "date",
    "json": JSON_KIND,
}
KINDS: Final = tuple(dict.fromkeys(_NAMES.values()))
# Further fields stay together in `_rest`.
COLUMNS_MAX: Final = 500
_USABLE: Final = re.compile(r"[^\W\d][\w-]{0,127}")


def given_columns(schema: Mapping[str, str]) -> dict[str, str]:
    """The kinds of the fields of the option `schema`."""
    columns: dict[str, str] = {}
    for field, word in schema.items():
        kind = _NAMES.get(word.strip().lower())
        if kind is None:
            raise SettingsError(
                f"'schema': the type of {field!r} is one of {', '.join(KINDS)}, not {word!r}; "
                "nested values can be kept as json."
            )
        if not is_usable(field, columns):
            raise SettingsError(
                f"'schema': {field!r} cannot be a column; a name has letters, digits, _ and -, and "
                f"differs from others by more than capitals ({REST!r} keeps all other fields)."
            )
        columns[field] = kind
    return columns


def is_usable(field: str, columns: Iterable[str]) -> bool:
    """Whether all formats allow a field as a column next to these."""
    if not _USABLE.fullmatch(field):
        return False
    name = column_of(field).lower()
    return name not in RESERVED and name not in {column_of(each).lower() for each in columns}


def add_kinds(found: dict[str, str], fields: Mapping[str, str]) -> None:
    """Add the kinds of more fields, up to the limit of columns."""
    for field, kind in fields.items():
        if field in found:
            found[field] = both(found[field], kind)
        elif len(found) < COLUMNS_MAX:
            found[field] = kind


def inferred_columns(messages: Iterable[bytes]) -> dict[str, str]:
    """The columns for the fields of these messages, in the order of their first appearance.

    Strings stay strings, even if they look like times.
    """
    found: dict[str, str] = {}
    for message in messages:
        add_kinds(found, kinds_in(message))
    return new_columns({}, found)


def new_columns(columns: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """The columns to add for fields that were found."""
    added: dict[str, str] = {}
    for field, kind in found.items():
        if len(columns) + len(added) >= COLUMNS_MAX:
            break
        if field not in columns and is_usable(field, [*columns, *added]):
            # A field that was always null may become anything.
            added[field] = kind or JSON_KIND
    return added


def fields_of(columns: Mapping[str, str]) -> list[Any]:
    """The Arrow fields of the columns, with `_rest` and `_raw`."""
    return [
        *(pa.field(column_of(field), KIND_TYPES[kind].arrow) for field, kind in columns.items()),
        pa.field(REST, pa.string()),
        pa.field(RAW, pa.string()),
    ]


class JsonColumns:
    """Splits messages into the columns of a table, and counts those that do not fit."""

    def __init__(self, columns: Mapping[str, str], *, noticing: bool = False) -> None:
        self._columns = columns
        self._noticing = noticing
        types = {field: KIND_TYPES[kind] for field, kind in columns.items()}
        self._fields = JsonFields(types, keeps_others=True)
        # If `noticing`: the kinds of fields without a column, and the columns that are too narrow.
        self.unknown: dict[str, str] = {}
        self.wider: dict[str, str] = {}
        # Messages with something in `_rest`, and in `_raw`.
        self.rest_rows = 0
        self.raw_rows = 0

    def arrays(self, messages: Sequence[bytes | None]) -> list[Any]:
        """The columns of these messages; None stands for one of a stream that is not JSON."""
        found = self._fields.parse(messages)
        rest = {
            at: msgspec.json.encode(found.misfits.get(at, {}) | found.others.get(at, {})).decode()
            for at in found.misfits.keys() | found.others.keys()
        }
        raw = {at: message.decode(errors="replace") for at, message in found.malformed.items()}
        self.rest_rows += len(rest)
        self.raw_rows += len(raw)
        if self._noticing:
            for fields in found.others.values():
                add_kinds(self.unknown, {name: _kind_of(each) for name, each in fields.items()})
            for fields in found.misfits.values():
                self.wider |= widened(
                    self._columns, {name: _kind_of(each) for name, each in fields.items()}
                )
        return [*found.columns, *(_sparse(each, len(messages)) for each in (rest, raw))]


def widened(columns: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """The columns that have to become wider for values of the kinds that were found.

    Neither Delta nor Iceberg turns long into double, which cannot hold all its values.
    """
    return {
        field: kind
        for field, kind in found.items()
        if (columns.get(field), kind) == ("int", "long")
    }


def _sparse(texts: Mapping[int, str], count: int) -> Any:
    if not texts:
        return pa.nulls(count, pa.string())
    return pa.array((texts.get(at) for at in range(count)), pa.string())


def _kind_of(value: msgspec.Raw) -> str:
    try:
        return kind_of(msgspec.json.decode(value))
    except UNDECODABLE:
        return JSON_KIND


_PAYLOAD: Final = MESSAGE_COLUMNS.index("payload")
# Columns without statistics.
LARGE: Final = ("payload", VALUE, REST, RAW)


@dataclass(frozen=True)
class TableLayout:
    """The form of a table's rows.

    `json` says where messages of JSON streams go: `binary` leaves them in `payload`, `text` puts
    them into `value`, and `columns` gives their fields columns. In the latter cases their `payload`
    is null.
    """

    # The column whose UTC day a row belongs to, and the columns without statistics.
    time_column: ClassVar[str] = "timestamp"
    large_columns: ClassVar[tuple[str, ...]] = LARGE

    json: str = "binary"
    # The kinds of the fields that have columns.
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def schema(self) -> Any:
        schema = arrow_schema(MESSAGE_COLUMNS)
        if self.json == "text":
            schema = schema.append(pa.field(VALUE, pa.string()))
        elif self.json == "columns":
            for each in fields_of(self.columns):
                schema = schema.append(each)
        return schema

    def schema_with_date(self) -> Any:
        """The schema with the column that is in the names of directories."""
        return self.schema.append(pa.field(DATE, pa.date32()))

    @property
    def dictionary_columns(self) -> list[str]:
        """Columns with few different values."""
        of_fields = self.schema.names[len(MESSAGE_COLUMNS) :]
        return [
            *("bucket", "stream_id", "content_type"),
            *(name for name in of_fields if name not in self.large_columns),
        ]

    @property
    def statistics_columns(self) -> list[str]:
        return [name for name in self.schema.names if name not in self.large_columns]


class TableRows:
    """Converts chunks to record batches of a layout."""

    def __init__(self, layout: TableLayout, bucket: str, *, noticing: bool = False) -> None:
        self._layout = layout
        self._bucket = bucket
        self._schema = layout.schema
        self.parsed = JsonColumns(layout.columns, noticing=noticing)

    def batch(self, chunk: Chunk) -> Any:
        if self._layout.json == "binary":
            return to_batch(chunk, self._bucket, MESSAGE_COLUMNS)
        arrays = to_batch(chunk, self._bucket, (*MESSAGE_COLUMNS, VALUE)).columns
        values = arrays.pop()
        arrays[_PAYLOAD] = _without_json(chunk)
        if self._layout.json == "text":
            arrays.append(values)
        else:
            arrays += self.parsed.arrays(json_messages(chunk))
        return pa.record_batch(arrays, schema=self._schema)


def _without_json(chunk: Chunk) -> Any:
    is_json = json_rows(chunk)
    if is_json.all():
        return pa.nulls(len(chunk), pa.binary())
    if not is_json.any():
        return chunk.payloads
    return pc.if_else(pa.array(is_json), pa.scalar(None, pa.binary()), chunk.payloads)
