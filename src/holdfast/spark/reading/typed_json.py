"""Reads with `jsonSchema` or `jsonSample`: fields of JSON messages as columns of Spark's types.

The columns follow those of the messages. Whole texts of messages that do not fit the schema are in
`_corrupt_record`, which the mode PERMISSIVE adds if the schema does not name it. The types follow
Spark's own JSON source: a string takes any value, as its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Final, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holdfast.errors import BadAnswerError, SettingsError
from holdfast.spark.connection import Options
from holdfast.spark.reading.arrow import COLUMN_TYPES, Chunk, json_messages
from holdfast.spark.reading.json_fields import (
    JsonFields,
    JsonType,
    ParsedMessages,
    both,
    integer_type,
    kinds_in,
)

CORRUPT: Final = "_corrupt_record"
MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_NAMES_CORRUPT: Final = re.compile(rf"(^|,)\s*`?{CORRUPT}`?[\s:]")
# What samples show, in SQL.
_TYPES_OF_KINDS: Final = {"long": "bigint", "double": "double", "boolean": "boolean"}
_SIMPLE: Final[dict[type[DataType], JsonType]] = {
    BooleanType: JsonType(bool | None, pa.bool_()),
    ByteType: integer_type(8, pa.int8()),
    ShortType: integer_type(16, pa.int16()),
    IntegerType: integer_type(32, pa.int32()),
    LongType: integer_type(64, pa.int64()),
    FloatType: JsonType(float | None, pa.float32()),
    DoubleType: JsonType(float | None, pa.float64()),
    StringType: JsonType(str | None, pa.string(), takes_any=True),
    BinaryType: JsonType(bytes | None, pa.binary()),
    DateType: JsonType(date | None, pa.date32()),
    TimestampType: JsonType(datetime | None, pa.timestamp("us", tz="UTC")),
    TimestampNTZType: JsonType(
        Annotated[datetime, msgspec.Meta(tz=False)] | None, pa.timestamp("us")
    ),
}


@dataclass(frozen=True)
class JsonSchema:
    """The fields of a typed read, in the order of its columns, and what is done with misfits."""

    fields: tuple[StructField, ...]
    mode: str

    def __post_init__(self) -> None:
        for each in self.fields:
            _json_type(each.name, each.dataType)


def typed_schema(columns: Sequence[str], ddl: str, mode: str) -> str:
    """The whole schema of a typed read, as SQL: the message's own columns, then the fields."""
    own = [f"`{name}` {COLUMN_TYPES[name].simpleString()}" for name in columns]
    corrupt = mode == "PERMISSIVE" and not _NAMES_CORRUPT.search(ddl)
    return ", ".join([*own, ddl, *([f"{CORRUPT} string"] if corrupt else [])])


def json_schema(options: Options, columns: Sequence[str], schema: StructType) -> JsonSchema:
    """What follows the message's own columns in a schema that `typed_schema` made."""
    own, fields = schema.fields[: len(columns)], schema.fields[len(columns) :]
    if [each.name for each in own] != list(columns):
        raise SettingsError("Give either 'jsonSchema' or a schema of your own, not both.")
    seen = set(columns)
    for each in fields:
        if each.name in seen:
            raise SettingsError(
                f"There are two columns {each.name!r}; leave out the message's own with the option "
                "'columns'."
            )
        if not each.nullable:
            raise SettingsError(f"'jsonSchema': {each.name!r} may be missing; leave out NOT NULL.")
        if each.name == CORRUPT and not isinstance(each.dataType, StringType):
            raise SettingsError(f"'jsonSchema': {CORRUPT} is a string.")
        seen.add(each.name)
    return JsonSchema(tuple(fields), json_mode(options))


def json_mode(options: Options) -> str:
    return options.one_of("mode", MODES, MODES[0])


def sampled_ddl(messages: Iterable[bytes]) -> str:
    """A schema that fits these messages, as SQL; values of several types are strings."""
    kinds: dict[str, str] = {}
    for message in messages:
        for name, kind in kinds_in(message).items():
            kinds[name] = both(kinds.get(name, ""), kind)
    if not kinds:
        raise SettingsError(
            "The option 'jsonSample' is a JSON object with fields, or a number of messages to look "
            "at, some of which are such objects."
        )
    return ", ".join(
        f"`{name.replace('`', '``')}` {_TYPES_OF_KINDS.get(kind, 'string')}"
        for name, kind in kinds.items()
    )


def _json_type(name: str, kind: DataType) -> JsonType:
    """How a field is checked; nested values fit if all their parts do."""
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    if isinstance(kind, ArrayType):
        of_items = _json_type(name, kind.elementType)
        item = pa.field("element", of_items.arrow, nullable=kind.containsNull)
        return JsonType(list[of_items.checked] | None, pa.list_(item))  # type: ignore[name-defined]
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        of_values = _json_type(name, kind.valueType)
        value = pa.field("value", of_values.arrow, nullable=kind.valueContainsNull)
        checked = dict[str, of_values.checked] | None  # type: ignore[name-defined]
        return JsonType(checked, pa.map_(pa.string(), value))
    if isinstance(kind, StructType):
        parts = {each.name: _json_type(name, each.dataType) for each in kind.fields}
        fields = {part: each.checked for part, each in parts.items()}
        arrow = [
            pa.field(each.name, parts[each.name].arrow, nullable=each.nullable)
            for each in kind.fields
        ]
        checked = TypedDict("Parts", fields, total=False)  # type: ignore[misc]
        return JsonType(checked | None, pa.struct(arrow))
    raise SettingsError(
        f"'jsonSchema': the type of {name!r} cannot be {kind.simpleString()}; a string keeps any "
        "value as text."
    )


class TypedRows:
    """Adds the columns of a typed read to batches."""

    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        types = {
            each.name: _json_type(each.name, each.dataType)
            for each in schema.fields
            if each.name != CORRUPT
        }
        self._arrow = [
            pa.field(each.name, pa.string() if each.name == CORRUPT else types[each.name].arrow)
            for each in schema.fields
        ]
        self._names = list(types)
        self._fields = JsonFields(types, keeps_others=False)

    def batch(self, batch: Any, chunk: Chunk) -> Any:
        """A batch with the fields of its messages."""
        messages = json_messages(chunk)
        parsed = self._fields.parse(messages)
        wrong = sorted({*parsed.misfits, *parsed.malformed})
        if wrong and self._schema.mode == "FAILFAST":
            raise _misfit(chunk, wrong[0], parsed)
        columns = dict(zip(self._names, parsed.columns, strict=True))
        texts = {at: (messages[at] or b"").decode(errors="replace") for at in wrong}
        columns[CORRUPT] = pa.array([texts.get(at) for at in range(len(messages))], pa.string())
        found = pa.record_batch(
            [*batch.columns, *(columns[each.name] for each in self._arrow)],
            schema=pa.schema([*batch.schema, *self._arrow]),
        )
        if wrong and self._schema.mode == "DROPMALFORMED":
            fits = np.ones(len(messages), dtype=bool)
            fits[wrong] = False
            return found.filter(pa.array(fits))
        return found


def _misfit(chunk: Chunk, at: int, parsed: ParsedMessages) -> BadAnswerError:
    stream = chunk.streams[chunk.stream_indexes[at]].stream_id
    names = ", ".join(repr(name) for name in parsed.misfits.get(at, ()))
    reason = f"does not fit the schema in {names}" if names else "is not a JSON object"
    return BadAnswerError(
        f"The message of {stream!r} at offset {chunk.offsets[at]} {reason}; the mode PERMISSIVE "
        f"reads it into {CORRUPT}, and DROPMALFORMED leaves it out."
    )
