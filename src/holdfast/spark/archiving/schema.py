"""Types of the fields of JSON messages: as users give them, and as messages show them.

A field has a *kind*, a short word that is kept with the table. `json` holds any value as its text,
so it is what fields of several kinds become.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from holdfast.errors import SettingsError
from holdfast.spark.archiving.names import RESERVED, REST, column_of

JSON_KIND: Final = "json"
# What users write, and what it is called here: Spark's words, and those of Python and Arrow.
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
# Beyond this, fields are no columns; they stay together in `_rest`.
COLUMNS_MAX: Final = 500
_USABLE: Final = re.compile(r"[^\W\d][\w-]{0,127}")
_LONG_MAX: Final = 2**63 - 1


def given_columns(schema: Mapping[str, str]) -> dict[str, str]:
    """The kinds of the fields that a user names, each with one of the words for types."""
    columns: dict[str, str] = {}
    for field, word in schema.items():
        kind = _NAMES.get(word.strip().lower())
        if kind is None:
            raise SettingsError(
                f"'schema': the type of {field!r} is one of {', '.join(KINDS)}, not {word!r}; "
                "what is nested can be kept as json."
            )
        if not is_usable(field, columns):
            raise SettingsError(
                f"'schema': {field!r} cannot be a column; a name has letters, digits, _ and -, and "
                f"differs from others by more than capitals ({REST!r} keeps all other fields)."
            )
        columns[field] = kind
    return columns


def is_usable(field: str, columns: Iterable[str]) -> bool:
    """Whether a field can be a column beside these: all formats take its name."""
    if not _USABLE.fullmatch(field):
        return False
    name = column_of(field).lower()
    return name not in RESERVED and name not in {column_of(each).lower() for each in columns}


def kind_of(value: Any) -> str:
    """The kind of a decoded value; empty for null, which tells nothing."""
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


def both(one: str, other: str) -> str:
    """The kind that holds values of two kinds."""
    if one == other or not other:
        return one
    if not one:
        return other
    return "double" if {one, other} == {"long", "double"} else JSON_KIND


def add_kinds(found: dict[str, str], fields: Mapping[str, str]) -> None:
    """Add to the kinds that were found those of more fields, as far as there is room."""
    for field, kind in fields.items():
        if field in found:
            found[field] = both(found[field], kind)
        elif len(found) < COLUMNS_MAX:
            found[field] = kind


def inferred_columns(messages: Iterable[bytes]) -> dict[str, str]:
    """The columns that the fields of these messages make, in the order of their first appearance.

    Strings stay strings, even if they look like times.
    """
    found: dict[str, str] = {}
    decode = msgspec.json.decode
    for message in messages:
        try:
            value = decode(message)
        except msgspec.DecodeError:
            continue
        if isinstance(value, dict):
            add_kinds(found, {field: kind_of(each) for field, each in value.items()})
    return new_columns({}, found)


def new_columns(columns: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """The columns that fields which were found add to those that there are."""
    added: dict[str, str] = {}
    for field, kind in found.items():
        if len(columns) + len(added) >= COLUMNS_MAX:
            break
        if field not in columns and is_usable(field, [*columns, *added]):
            # What was always null may become anything.
            added[field] = kind or JSON_KIND
    return added
