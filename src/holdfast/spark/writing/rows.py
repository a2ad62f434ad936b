"""The columns that can be written, and the rows of an Arrow batch as names and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, CharType, DataType, StringType, StructType, VarcharType

from holdfast.errors import SettingsError

STREAM: Final = "stream_id"
BUCKET: Final = "bucket"
PAYLOAD: Final = "payload"
VALUE: Final = "value"
_TEXT: Final = (StringType, CharType, VarcharType)
_TYPES: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    STREAM: (_TEXT, "a string"),
    BUCKET: (_TEXT, "a string"),
    PAYLOAD: ((BinaryType,), "binary"),
    VALUE: (_TEXT, "a string"),
}
COLUMNS: Final = tuple(_TYPES)


@dataclass(frozen=True)
class Columns:
    """Which of the columns a DataFrame has."""

    content: str
    has_stream: bool
    has_bucket: bool

    @classmethod
    def of(cls, schema: StructType, *, dropped: Sequence[str] = ()) -> Columns:
        """The columns of a schema, checked; those that are `dropped` before may be anything."""
        for field in schema.fields:
            if field.name in _TYPES:
                types, expected = _TYPES[field.name]
                if not isinstance(field.dataType, types):
                    found = field.dataType.simpleString()
                    raise SettingsError(f"The column {field.name!r} is {expected}, not {found}.")
            elif field.name not in dropped:
                raise SettingsError(
                    f"The column {field.name!r} cannot be written: drop it, or name it one of "
                    f"{', '.join(COLUMNS)}."
                )
        names = set(schema.fieldNames())
        if len(names) < len(schema.fields):
            raise SettingsError("There are two columns of the same name: drop one of them.")
        if (PAYLOAD in names) == (VALUE in names):
            raise SettingsError(
                f"What is written is either a column {PAYLOAD!r} (binary) or a column {VALUE!r} "
                "(string): there must be one of them, and only one."
            )
        content = PAYLOAD if PAYLOAD in names else VALUE
        return cls(content, STREAM in names, BUCKET in names)

    @property
    def names(self) -> list[str]:
        """The columns that are written."""
        there = {BUCKET: self.has_bucket, STREAM: self.has_stream, self.content: True}
        return [name for name in there if there[name]]


@dataclass(frozen=True)
class RowReader:
    """Takes rows out of Arrow batches; `bucket` and `stream` are for rows that name none."""

    columns: Columns
    bucket: str = ""
    stream: str = ""

    def read(self, batch: pa.RecordBatch) -> tuple[list[str], list[bytes]]:
        """For every row its stream, as `bucket/id`, and what is to be appended."""
        content = self._content(batch)
        if self.columns.has_stream or self.columns.has_bucket:
            pairs = zip(self._buckets(batch), self._streams(batch), strict=True)
            names = [f"{bucket}/{stream}" for bucket, stream in pairs]
        else:
            names = [f"{self.bucket}/{self.stream}"] * len(content)
        if None in content:
            name = names[content.index(None)]
            raise SettingsError(
                f"A row of the stream {name!r} has null as its {self.columns.content}: "
                "filter such rows out."
            )
        return names, content

    def _content(self, batch: pa.RecordBatch) -> list[Any]:
        column = batch.column(self.columns.content)
        if pa.types.is_string(column.type):
            column = column.cast(pa.binary())
        elif pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary())
        found: list[Any] = column.to_pylist()
        return found

    def _buckets(self, batch: pa.RecordBatch) -> list[str]:
        if not self.columns.has_bucket:
            return [self.bucket] * batch.num_rows
        found = [bucket or self.bucket for bucket in batch.column(BUCKET).to_pylist()]
        for bucket in set(found):
            check_bucket(bucket)
        return found

    def _streams(self, batch: pa.RecordBatch) -> list[str]:
        if not self.columns.has_stream:
            return [self.stream] * batch.num_rows
        found: list[str] = batch.column(STREAM).to_pylist()
        if None in found or "" in found:
            raise SettingsError("A row has no stream_id: filter such rows out, or name a stream.")
        return found


def check_bucket(bucket: str) -> None:
    """Raise unless this can be the bucket of a stream."""
    if not bucket:
        raise SettingsError("A row has no bucket: fill the column, or give the option 'bucket'.")
    if "/" in bucket:
        raise SettingsError(f"The bucket {bucket!r} has a slash in it: a bucket's id has none.")
