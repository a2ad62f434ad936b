"""The columns of an archived table, and how messages fill them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.spark.archiving.json_columns import JsonColumns, fields_of
from holdfast.spark.archiving.names import DATE, MESSAGE_COLUMNS, RAW, REST, VALUE
from holdfast.spark.reading.arrow import Chunk, arrow_schema, to_batch

_PAYLOAD: Final = MESSAGE_COLUMNS.index("payload")
# Nobody looks for one of these by its order.
LARGE: Final = ("payload", VALUE, REST, RAW)


@dataclass(frozen=True)
class Layout:
    """What the rows of a table look like.

    `json` says what becomes of the messages of JSON streams: `binary` leaves them in `payload`,
    `text` puts them into `value`, and `columns` gives their fields columns. `payload` is null for
    what is elsewhere.
    """

    # Whose UTC day a row belongs to, and columns that nobody looks for by their order.
    time_column: ClassVar[str] = "timestamp"
    large_columns: ClassVar[tuple[str, ...]] = LARGE

    json: str = "binary"
    # The kinds of fields, if they have columns.
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> Any:
        """The Arrow schema of the files."""
        schema = arrow_schema(MESSAGE_COLUMNS)
        if self.json == "text":
            schema = schema.append(pa.field(VALUE, pa.string()))
        elif self.json == "columns":
            for each in fields_of(self.columns):
                schema = schema.append(each)
        return schema

    def schema_with_date(self) -> Any:
        """The same with the column that the names of directories hold."""
        return self.schema.append(pa.field(DATE, pa.date32()))

    @property
    def dictionary_columns(self) -> list[str]:
        """Columns of few values, which a dictionary makes small."""
        of_fields = self.schema.names[len(MESSAGE_COLUMNS) :]
        return [
            *("bucket", "stream_id", "content_type"),
            *(name for name in of_fields if name not in self.large_columns),
        ]

    @property
    def statistics_columns(self) -> list[str]:
        """Columns whose least and greatest values are kept."""
        return [name for name in self.schema.names if name not in self.large_columns]


class Rows:
    """Makes batches of one layout out of chunks."""

    def __init__(self, layout: Layout, bucket: str, *, noticing: bool = False) -> None:
        self._layout = layout
        self._bucket = bucket
        self._schema = layout.schema
        self.parsed = JsonColumns(layout.columns, noticing=noticing)

    def batch(self, chunk: Chunk) -> Any:
        """The rows of a chunk."""
        if self._layout.json == "binary":
            return to_batch(chunk, self._bucket, MESSAGE_COLUMNS)
        arrays = to_batch(chunk, self._bucket, (*MESSAGE_COLUMNS, VALUE)).columns
        values = arrays.pop()
        arrays[_PAYLOAD] = _without_json(chunk)
        if self._layout.json == "text":
            arrays.append(values)
        else:
            arrays += self.parsed.arrays(_messages(chunk))
        return pa.record_batch(arrays, schema=self._schema)


def json_rows(chunk: Chunk) -> Any:
    """Which of a chunk's messages are of JSON streams."""
    return np.array([each.is_json for each in chunk.streams], dtype=bool)[chunk.stream_indexes]


def _without_json(chunk: Chunk) -> Any:
    is_json = json_rows(chunk)
    if is_json.all():
        return pa.nulls(len(chunk), pa.binary())
    if not is_json.any():
        return chunk.payloads
    return pc.if_else(pa.array(is_json), pa.scalar(None, pa.binary()), chunk.payloads)


def _messages(chunk: Chunk) -> list[bytes | None]:
    payloads: list[bytes | None] = chunk.payloads.to_pylist()
    is_json = json_rows(chunk)
    if is_json.all():
        return payloads
    return [each if wanted else None for each, wanted in zip(payloads, is_json, strict=True)]
