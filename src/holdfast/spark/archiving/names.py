"""The columns that every archived table can have, and how fields of messages are named beside."""

from __future__ import annotations

from typing import Final

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
# The UTC day of `timestamp`; in the names of directories.
DATE: Final = "date"
# Of a JSON message: fields that have no column, and the whole of one that does not fit.
REST: Final = "_rest"
RAW: Final = "_raw"
RESERVED: Final = frozenset({*MESSAGE_COLUMNS, VALUE, DATE, REST, RAW})
# What readers of directories pass over: everything that starts with an underscore.
CONTROL: Final = "_holdfast"


def column_of(field: str) -> str:
    """The column of a field of JSON messages: its name, unless that is taken."""
    return f"{field}_" if field.lower() in RESERVED - {REST, RAW} else field
