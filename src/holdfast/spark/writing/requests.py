"""Rows become requests, by a rule that depends only on the rows of each stream.

Rules:

- A request takes rows of its stream, in order, while they fit into `request_bytes`; a larger row
  goes alone. On a byte stream without framing every row is a request.
- A request is complete when a row of its stream does not fit, or none will follow: never because of
  other streams, the time, or how the rows were handed over. So rows that are written again make the
  same requests, whichever other rows they come with.
- If rows are laid out by stream, a stream is complete as soon as the next one begins. If they are
  not, the last rows of each stream are held until all rows have come. Beyond a limit that is an
  error, since sending them earlier would break the rule above.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from holdfast.client.messages import message_bytes, request_body
from holdfast.errors import HoldfastError, InvalidJsonError, SettingsError
from holdfast.protocol.content import JSON
from holdfast.spark.writing.options import BUCKET, STREAM, WriteColumns, WriteOptions, check_bucket

# The server accepts 200,000 in one append. Never change it: a repeated batch must be cut into the
# same requests.
MESSAGES_MAX: Final = 100_000
HELD_BYTES_MAX: Final = 256 * 1024 * 1024
# Estimates of what a row and a stream cost besides the bytes to be sent.
_ROW_BYTES: Final = 64
_STREAM_BYTES: Final = 512
_SHOWN_BYTES: Final = 60


def read_rows(
    batch: pa.RecordBatch, columns: WriteColumns, bucket: str = "", stream: str = ""
) -> tuple[list[str], list[bytes]]:
    """For every row its stream, as `bucket/id`, and the content to be appended.

    `bucket` and `stream` are for rows that name none.
    """
    buckets, streams = [bucket] * batch.num_rows, [stream] * batch.num_rows
    if columns.has_bucket:
        buckets = [each or bucket for each in batch.column(BUCKET).to_pylist()]
        for each in set(buckets):
            check_bucket(each)
    if columns.has_stream:
        streams = batch.column(STREAM).to_pylist()
        if None in streams or "" in streams:
            raise SettingsError("A row has no stream_id: filter such rows out, or name a stream.")
    names = [f"{bucket}/{stream}" for bucket, stream in zip(buckets, streams, strict=True)]
    column = batch.column(columns.content)
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary())
    content: list[Any] = column.to_pylist()
    if None in content:
        raise SettingsError(
            f"A row of the stream {names[content.index(None)]!r} has null as its "
            f"{columns.content}: filter such rows out."
        )
    return names, content


@dataclass(frozen=True)
class Placement:
    """A task of `write_to_streams`: it gets the streams of its partition, sorted by name."""

    partitions: int
    partition: int

    def check(self, name: str, before: str | None) -> None:
        """Raise unless rows of this stream may follow those of the stream `before`."""
        own = partition_of(name, self.partitions)
        if own != self.partition or (before is not None and name <= before):
            raise SettingsError(
                f"Rows of the stream {name!r} came to the task {self.partition} out of order, or "
                f"belong to the task {own} of {self.partitions}: nothing of it was written. "
                "Spark has moved the rows after write_to_streams laid them out."
            )


def partition_of(name: str, partitions: int) -> int:
    """The partition of a stream, given as `bucket/id`; Spark computes the same CRC-32."""
    return zlib.crc32(name.encode()) % partitions


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """One append: number `seq` of its stream in this batch."""

    name: str
    seq: int
    body: bytes
    rows: int
    # Whether no row of this stream follows.
    last: bool


class _OpenRequest:
    """The rows of a stream that are not in a request yet."""

    __slots__ = ("messages", "seq", "size_bytes")

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.seq = 0
        self.size_bytes = 0


class RequestBuilder:
    """Takes rows and gives back requests."""

    def __init__(
        self,
        options: WriteOptions,
        placement: Placement | None = None,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._media = options.media
        self._framing = options.framing
        can_join = self._media == JSON or options.framing is not None
        self._messages_max = MESSAGES_MAX if can_join else 1
        self._request_bytes = options.request_bytes
        self._placement = placement
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._open: dict[str, _OpenRequest] = {}
        self._name: str | None = None

    def take(self, names: Sequence[str], rows: Sequence[bytes]) -> list[WriteRequest]:
        """The requests that are complete now that these rows have come."""
        made: list[WriteRequest] = []
        current = None if self._name is None else self._open.get(self._name)
        for name, row in zip(names, rows, strict=True):
            if name != self._name or current is None:
                current = self._switch_to(name, made)
            self._add(name, current, self._encoded(name, row), made)
        return made

    def finish(self) -> list[WriteRequest]:
        """The last request of every stream, now that all rows have come."""
        made = [self._close(name, request, last=True) for name, request in self._open.items()]
        self._open.clear()
        return made

    def _switch_to(self, name: str, made: list[WriteRequest]) -> _OpenRequest:
        before, self._name = self._name, name
        if self._placement is not None:
            self._placement.check(name, before)
            made += self.finish()
        request = self._open.get(name)
        if request is None:
            request = self._open[name] = _OpenRequest()
            self._held_bytes += 0 if self._placement else _STREAM_BYTES
        return request

    def _add(
        self, name: str, request: _OpenRequest, message: bytes, made: list[WriteRequest]
    ) -> None:
        size = len(message) + 1
        is_full = len(request.messages) == self._messages_max
        if request.messages and (is_full or request.size_bytes + size > self._request_bytes):
            made.append(self._close(name, request, last=False))
        request.messages.append(message)
        request.size_bytes += size
        self._held_bytes += size + _ROW_BYTES
        if self._held_bytes > self._held_bytes_max and self._placement is None:
            raise SettingsError(
                f"The rows of {len(self._open)} streams are mixed, and more than "
                f"{self._held_bytes_max} bytes of them would have to be held in memory: write them "
                "with holdfast.spark.write_to_streams, which sorts them by stream."
            )

    def _close(self, name: str, request: _OpenRequest, *, last: bool) -> WriteRequest:
        rows = len(request.messages)
        body = request_body(request.messages, self._media)
        made = WriteRequest(name, request.seq, body, rows, last)
        self._held_bytes -= request.size_bytes + rows * _ROW_BYTES
        request.messages, request.size_bytes = [], 0
        request.seq += 1
        return made

    def _encoded(self, name: str, row: bytes) -> bytes:
        try:
            encoded = message_bytes(row, self._media, self._framing)
        except InvalidJsonError:
            text = row[:_SHOWN_BYTES].decode(errors="replace")
            shown = text if len(row) <= _SHOWN_BYTES else f"{text}…"
            raise InvalidJsonError(
                f"A row of the stream {name!r} is not JSON: it begins with {shown!r}."
            ) from None
        except HoldfastError as error:
            raise SettingsError(f"A row of the stream {name!r}: {error.message}") from None
        if not encoded:
            raise SettingsError(
                f"A row of the stream {name!r} is empty, and an empty message cannot be appended: "
                "filter such rows out, or give the option 'framing'."
            )
        return encoded
