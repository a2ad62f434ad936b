"""JSON messages as columns: those that fit their columns at once, the others with care.

A message fits if it is an object whose fields are of their kinds, or null, or not there. Fields
without a column are kept in `_rest`, as an object; a message that does not fit is kept in `_raw`,
as it is, and has no columns. So nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from holdfast.spark.archiving.names import RAW, REST, column_of
from holdfast.spark.archiving.schema import JSON_KIND, add_kinds, kind_of

_INT: Final = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_LONG: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# By kind: what msgspec checks, and what Arrow makes of it.
_TYPES: Final[dict[str, tuple[Any, Any]]] = {
    "string": (str | None, pa.string()),
    "int": (_INT | None, pa.int32()),
    "long": (_LONG | None, pa.int64()),
    "double": (float | None, pa.float64()),
    "boolean": (bool | None, pa.bool_()),
    "timestamp": (datetime | None, pa.timestamp("us", tz="UTC")),
    "date": (date | None, pa.date32()),
    JSON_KIND: (msgspec.Raw, pa.string()),
}
_NOTHING: Final = msgspec.Raw(b"")


def fields_of(columns: Mapping[str, str]) -> list[Any]:
    """The Arrow fields of columns for JSON fields, with those for what has none."""
    return [
        *(pa.field(column_of(field), _TYPES[kind][1]) for field, kind in columns.items()),
        pa.field(REST, pa.string()),
        pa.field(RAW, pa.string()),
    ]


class JsonColumns:
    """Takes messages apart, and remembers what did not fit."""

    def __init__(self, columns: Mapping[str, str], *, noticing: bool = False) -> None:
        self._columns = dict(columns)
        self._noticing = noticing
        self._struct = _struct(self._columns)
        self._decode = msgspec.json.Decoder(self._struct).decode
        self._decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
        self._decoders = {
            field: msgspec.json.Decoder(_TYPES[kind][0]).decode
            for field, kind in self._columns.items()
        }
        self._empty = self._struct()
        # What has come by: fields without a column, if that is wanted, and how many messages had
        # such, or did not fit.
        self.unknown: dict[str, str] = {}
        self.rest_rows = 0
        self.raw_rows = 0

    def arrays(self, messages: Sequence[bytes | None]) -> list[Any]:
        """The columns of these messages; None stands for one that is not JSON."""
        rows: list[Any] = []
        rest: dict[int, str] = {}
        raw: dict[int, str] = {}
        decode, add = self._decode, rows.append
        for message in messages:
            try:
                add(self._empty if message is None else decode(message))
            except msgspec.DecodeError:
                assert message is not None
                add(self._with_care(message, len(rows), rest, raw))
        self.rest_rows += len(rest)
        self.raw_rows += len(raw)
        columns = zip(*map(msgspec.structs.astuple, rows), strict=True) if self._columns else ()
        found = [
            _array(column, kind)
            for column, kind in zip(columns, self._columns.values(), strict=True)
        ]
        return [*found, *(_sparse(each, len(rows)) for each in (rest, raw))]

    def _with_care(self, message: bytes, at: int, rest: dict[int, str], raw: dict[int, str]) -> Any:
        """A message that has other fields than the columns, or others than they can hold."""
        try:
            fields = self._decode_fields(message)
            known = [
                self._decoders[field](value)
                if (value := fields.get(field)) is not None
                else getattr(self._empty, f"f{index}")
                for index, field in enumerate(self._columns)
            ]
        except msgspec.DecodeError:
            raw[at] = message.decode(errors="replace")
            return self._empty
        others = {field: value for field, value in fields.items() if field not in self._columns}
        rest[at] = msgspec.json.encode(others).decode()
        if self._noticing:
            add_kinds(self.unknown, {name: _kind_of(value) for name, value in others.items()})
        return self._struct(*known)


def _struct(columns: Mapping[str, str]) -> type[msgspec.Struct]:
    """A class with a field for each column, and no others."""
    fields = [
        (f"f{index}", _TYPES[kind][0], _NOTHING if kind == JSON_KIND else None)
        for index, kind in enumerate(columns.values())
    ]
    return msgspec.defstruct(
        "Fields",
        fields,
        rename={f"f{index}": field for index, field in enumerate(columns)},
        forbid_unknown_fields=True,
        gc=False,
    )


def _array(values: Sequence[Any], kind: str) -> Any:
    if kind == JSON_KIND:
        texts = (bytes(value).decode() for value in values)
        return pa.array((None if text in {"", "null"} else text for text in texts), pa.string())
    return pa.array(values, _TYPES[kind][1])


def _sparse(texts: Mapping[int, str], count: int) -> Any:
    if not texts:
        return pa.nulls(count, pa.string())
    return pa.array((texts.get(at) for at in range(count)), pa.string())


def _kind_of(value: msgspec.Raw) -> str:
    try:
        return kind_of(msgspec.json.decode(value))
    except msgspec.DecodeError:
        return JSON_KIND
