"""Rows as messages: checked, encoded and joined a batch at a time, and cut into runs of one stream.

Rows that follow each other and name the same stream are a run. Arrow joins the messages of a whole
batch, whose JSON is checked together: only a batch with a row that is not plain JSON, or with
framing, is gone through row by row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.client.messages import message_bytes
from holdfast.errors import HoldfastError, InvalidJsonError, SettingsError
from holdfast.protocol.content import JSON
from holdfast.spark.writing.options import BUCKET, STREAM, WriteColumns, WriteOptions, check_bucket

_SHOWN_BYTES: Final = 60
_decode_values: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


Starts = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class EncodedRun:
    """Messages of one stream, given as `bucket/id`."""

    name: str
    # The messages of a whole batch: JSON values with a comma between two of them, or messages with
    # nothing in between.
    data: bytes
    # Where in the data each message of this run begins, and where one more would.
    starts: Starts
    is_json: bool

    def __len__(self) -> int:
        return len(self.starts) - 1

    def cut(self, first: int, last: int) -> bytes:
        """The messages from `first` up to and without `last`."""
        return self.data[self.starts[first] : self.starts[last] - self.is_json]

    def lengths(self, first: int, last: int) -> list[int]:
        """Their lengths, for byte streams."""
        lengths: list[int] = np.diff(self.starts[first : last + 1]).tolist()
        return lengths

    def digest(self) -> int:
        """A number that depends on the stream and the messages, but not on their order.

        Those of several runs add up to that of all of them together.
        """
        seed = zlib.crc32(self.name.encode())
        ends = self.starts - self.is_json
        view = memoryview(self.data)
        bounds = zip(self.starts[:-1].tolist(), ends[1:].tolist(), strict=True)
        return sum([zlib.crc32(view[start:end], seed) for start, end in bounds])


class RowEncoder:
    """Turns batches of rows into runs."""

    def __init__(self, options: WriteOptions, columns: WriteColumns) -> None:
        self._options = options
        self._columns = columns
        self._is_json = options.media == JSON

    def runs(self, batch: pa.RecordBatch) -> Iterator[EncodedRun]:
        """The rows of a batch, in order."""
        if batch.num_rows:
            yield from self._runs(batch, self._names(batch))

    def by_stream(self, batch: pa.RecordBatch) -> Iterator[EncodedRun]:
        """The same with one run for each stream, in which its rows keep their order."""
        if batch.num_rows:
            names = self._names(batch)
            order = pa.array(np.argsort(names.dictionary_encode().indices, kind="stable"))
            yield from self._runs(batch.take(order), names.take(order))

    def _runs(self, batch: pa.RecordBatch, names: Any) -> Iterator[EncodedRun]:
        changed = pc.not_equal(names.slice(1), names.slice(0, len(names) - 1))
        firsts = [0, *(np.flatnonzero(changed.to_numpy(zero_copy_only=False)) + 1).tolist()]
        data, starts = self._encoded(self._content(batch, names), names)
        own = names.take(pa.array(firsts)).to_pylist()
        for name, first, end in zip(own, firsts, [*firsts[1:], len(names)], strict=True):
            yield EncodedRun(name, data, starts[first : end + 1], self._is_json)

    def _names(self, batch: pa.RecordBatch) -> Any:
        """For every row its stream, as `bucket/id`."""
        options, columns = self._options, self._columns
        bucket: Any = pa.scalar(options.bucket)
        if columns.has_bucket:
            given = batch.column(BUCKET).cast(pa.string())
            is_given = pc.fill_null(pc.not_equal(given, ""), fill_value=False)
            bucket = pc.if_else(is_given, given, bucket)
            for each in bucket.unique().to_pylist():
                check_bucket(each)
        stream: Any = pa.scalar(options.stream)
        if columns.has_stream:
            stream = batch.column(STREAM).cast(pa.string())
            if stream.null_count or pc.any(pc.equal(stream, "")).as_py():
                raise SettingsError(
                    "A row has no stream_id: filter such rows out, or name a stream."
                )
        names = pc.binary_join_element_wise(bucket, stream, "/")
        if isinstance(names, pa.Scalar):
            return pa.repeat(names, batch.num_rows)
        return names

    def _content(self, batch: pa.RecordBatch, names: Any) -> Any:
        for name in self._columns.empty:
            if batch.column(name).null_count < batch.num_rows:
                raise SettingsError(
                    f"The column {name!r} cannot be written: leave it out of the INSERT."
                )
        column = batch.column(self._columns.content)
        if column.null_count:
            first = pc.index(column.is_null(), value=True).as_py()
            raise SettingsError(
                f"A row of the stream {names[first].as_py()!r} has null as its "
                f"{self._columns.content}: filter such rows out."
            )
        return column.cast(pa.large_binary())

    def _encoded(self, content: Any, names: Any) -> tuple[bytes, Starts]:
        """All messages joined, and where each of them begins."""
        if self._options.framing is not None:
            return self._row_by_row(content, names)
        lengths = pc.binary_length(content).to_numpy()
        if not self._is_json:
            if not lengths.min():
                raise _empty(names[int(lengths.argmin())].as_py())
            return _joined(content, b""), _starts(lengths)
        data = _joined(content, b",")
        if not _are_values(data, lengths):
            return self._row_by_row(content, names)
        return data, _starts(lengths + 1)

    def _row_by_row(self, content: Any, names: Any) -> tuple[bytes, Starts]:
        media, framing = self._options.media, self._options.framing
        messages = []
        for at, row in enumerate(content.to_pylist()):
            try:
                messages.append(message_bytes(row, media, framing))
            except InvalidJsonError:
                text = row[:_SHOWN_BYTES].decode(errors="replace")
                shown = text if len(row) <= _SHOWN_BYTES else f"{text}…"
                raise InvalidJsonError(
                    f"A row of the stream {names[at].as_py()!r} is not JSON: it begins with "
                    f"{shown!r}."
                ) from None
            except HoldfastError as error:
                raise SettingsError(
                    f"A row of the stream {names[at].as_py()!r}: {error.message}"
                ) from None
        separator = b"," if self._is_json else b""
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        return separator.join(messages), _starts(lengths + len(separator))


def _empty(name: str) -> SettingsError:
    return SettingsError(
        f"A row of the stream {name!r} is empty, and an empty message cannot be appended: "
        "filter such rows out, or give the option 'framing'."
    )


def _joined(content: Any, separator: bytes) -> bytes:
    ends = pa.array([0, len(content)], pa.int32())
    between = pa.scalar(separator, content.type)
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, content), between)
    data: bytes = joined[0].as_py()
    return data


def _starts(lengths: np.ndarray[Any, Any]) -> Starts:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _are_values(data: bytes, lengths: Sequence[int] | np.ndarray[Any, Any]) -> bool:
    """Whether rows joined by commas are the values of an array, each row one of them."""
    try:
        values = _decode_values(b"[%b]" % data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    # A comma inside of a row, or a row that ends inside of a value, changes the lengths.
    found = np.fromiter(map(len, values), np.int64, len(values))
    return np.array_equal(found, lengths)
