"""Fields of JSON messages as Arrow columns: of typed reads, and of archived tables.

A field has a type, which checks its values. Null and missing fields are null. A value that does not
fit its type is null as well, and is returned beside the columns, so that it does not cost the other
fields of its message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

JSON_KIND: Final = "json"
_LONG_MAX: Final = 2**63 - 1
# Valid JSON may have numbers beyond all floats, or be nested deeper than a worker's stack allows.
UNDECODABLE: Final = (msgspec.DecodeError, RecursionError)


def kind_of(value: Any) -> str:
    """The kind of a decoded value; empty for null."""
    match value:
        case None:
            return ""
        case bool():
            return "boolean"
        case int():
            return "long" if -_LONG_MAX <= value <= _LONG_MAX else JSON_KIND
        case float():
            return "double"
        case str():
            return "string"
        case _:
            return JSON_KIND


def kinds_in(message: bytes) -> dict[str, str]:
    """The kinds of the fields of a message; none if it is not an object."""
    try:
        value = msgspec.json.decode(message)
    except UNDECODABLE:
        return {}
    if not isinstance(value, dict):
        return {}
    return {field: kind_of(each) for field, each in value.items()}


def both(one: str, other: str) -> str:
    """The kind that holds values of both kinds."""
    if one == other or not other:
        return one
    if not one:
        return other
    return "double" if {one, other} == {"long", "double"} else JSON_KIND


@dataclass(frozen=True)
class JsonType:
    """The type that msgspec checks values of a field against, and Arrow's type of its column."""

    checked: Any
    arrow: Any
    # Whether a value that does not fit is kept as its JSON text. The column must be one of texts.
    takes_any: bool = False

    @property
    def is_raw(self) -> bool:
        """Whether the column holds every value as JSON text."""
        return self.checked is msgspec.Raw


def integer_type(bits: int, arrow: Any) -> JsonType:
    limit = 2 ** (bits - 1)
    return JsonType(Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)] | None, arrow)


KIND_TYPES: Final[dict[str, JsonType]] = {
    "string": JsonType(str | None, pa.string()),
    "int": integer_type(32, pa.int32()),
    "long": integer_type(64, pa.int64()),
    "double": JsonType(float | None, pa.float64()),
    "boolean": JsonType(bool | None, pa.bool_()),
    "timestamp": JsonType(datetime | None, pa.timestamp("us", tz="UTC")),
    "date": JsonType(date | None, pa.date32()),
    JSON_KIND: JsonType(msgspec.Raw, pa.string()),
}
_NOTHING: Final = msgspec.Raw(b"")


class ParsedMessages(NamedTuple):
    """The columns of messages, and by index what they do not hold."""

    columns: list[Any]
    # Fields without a type, if they are kept.
    others: dict[int, dict[str, msgspec.Raw]]
    # Fields whose values do not fit their types.
    misfits: dict[int, dict[str, msgspec.Raw]]
    # Messages that are not objects.
    malformed: dict[int, bytes]


class JsonFields:
    """Splits messages into columns, one for each field that has a type."""

    def __init__(self, types: Mapping[str, JsonType], *, keeps_others: bool) -> None:
        self._types = dict(types)
        self._keeps_others = keeps_others
        self._struct = _struct(self._types, is_closed=keeps_others)
        self._decode = msgspec.json.Decoder(self._struct).decode
        self._decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
        self._decoders = {
            field: msgspec.json.Decoder(each.checked).decode for field, each in self._types.items()
        }
        self._empty = self._struct()

    def parse(self, messages: Sequence[bytes | None]) -> ParsedMessages:
        """Parse messages; None stands for one of a stream that is not JSON."""
        rows: list[Any] = []
        parsed = ParsedMessages([], {}, {}, {})
        decode, add = self._decode, rows.append
        for message in messages:
            try:
                add(self._empty if message is None else decode(message))
            except UNDECODABLE:
                assert message is not None
                add(self._parse_partly(message, len(rows), parsed))
        if self._types:
            values = zip(*map(msgspec.structs.astuple, rows), strict=True) if rows else ()
            found = list(values) or [()] * len(self._types)
            parsed.columns.extend(
                _array(column, each)
                for column, each in zip(found, self._types.values(), strict=True)
            )
        return parsed

    def _parse_partly(self, message: bytes, at: int, parsed: ParsedMessages) -> Any:
        """Parse a message that has fields without types, or values that do not fit theirs."""
        try:
            fields = self._decode_fields(message)
        except UNDECODABLE:
            parsed.malformed[at] = message
            return self._empty
        values, misfits = [], {}
        for index, (field, kind) in enumerate(self._types.items()):
            found = fields.pop(field, None)
            value = getattr(self._empty, f"f{index}")
            if found is not None:
                try:
                    value = self._decoders[field](found)
                except UNDECODABLE:
                    if kind.takes_any:
                        value = bytes(found).decode()
                    else:
                        misfits[field] = found
            values.append(value)
        if misfits:
            parsed.misfits[at] = misfits
        if fields and self._keeps_others:
            parsed.others[at] = fields
        return self._struct(*values)


def _struct(types: Mapping[str, JsonType], *, is_closed: bool) -> type[msgspec.Struct]:
    """A class with exactly one field for each column."""
    fields = [
        (f"f{index}", each.checked, _NOTHING if each.is_raw else None)
        for index, each in enumerate(types.values())
    ]
    return msgspec.defstruct(
        "Fields",
        fields,
        rename={f"f{index}": field for index, field in enumerate(types)},
        forbid_unknown_fields=is_closed,
        gc=False,
    )


def _array(values: Sequence[Any], kind: JsonType) -> Any:
    if kind.is_raw:
        texts = (bytes(value).decode() for value in values)
        return pa.array((None if text in {"", "null"} else text for text in texts), pa.string())
    return pa.array(values, kind.arrow)
