"""Gathering: what a range of the log did to each stream it touched.

The records are applied to the streams' rows in order, exactly as the engine applies them to its
streams, and their bytes are kept by stream. The result is the state as of the range's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import LogCorruptError
from holdfast.format.pack_builder import Messages
from holdfast.format.records import INDEX_BITS, Kind, Record, decode
from holdfast.format.rows import StreamRow, renewed_deadline_ms, take_over
from holdfast.protocol.content import JSON, media_type
from holdfast.protocol.json_mode import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Callable


class Share:
    """One stream's share of the range: its row as of now, and the bytes it gained."""

    __slots__ = ("is_json", "messages", "parts", "row", "size_bytes", "start")

    def __init__(self, row: StreamRow) -> None:
        self.row = row
        self.start = row.tail
        self.is_json = media_type(row.meta.content_type) == JSON
        self.parts: list[bytes] = []
        self.messages = Messages()
        self.size_bytes = 0

    def write(self, record: Record, position: int) -> None:
        """Take over what an append, or a creation with content, adds."""
        row, payload, at_ms = self.row, record.payload, record.at_ms
        if payload:
            self.parts.append(payload)
            self.size_bytes += len(payload)
            row.tail += len(payload)
            if self.is_json and payload.count(SEPARATOR) > 1:
                for message in payload[:-1].split(SEPARATOR):
                    self.messages.add(len(message) + 1, at_ms, position)
            else:
                self.messages.add(len(payload), at_ms, position)
        row.last_write_ms = at_ms
        if record.producer is not None or record.seq is not None or record.closes:
            take_over(row, record)
        if row.meta.ttl_s is not None:
            row.deadline_ms = renewed_deadline_ms(row.meta, at_ms) or row.deadline_ms

    def take_data(self) -> bytes:
        """All bytes it gained; they are not kept any longer."""
        data = b"".join(self.parts)
        self.parts.clear()
        return data


class Gather:
    """Applies batches in order to rows that start as the catalog has them."""

    def __init__(self, after: int, find_row: Callable[[int], StreamRow | None]) -> None:
        self.after = after
        self.through = after
        self.shares: dict[int, Share] = {}
        # Streams that are gone and were there before this range.
        self.removed: list[int] = []
        self._find_row = find_row

    def apply(self, position: int, body: bytes) -> None:
        """Apply the next batch."""
        if position != self.through + 1:
            raise LogCorruptError(
                f"The log goes on at position {position} where {self.through + 1} is needed."
            )
        shares = self.shares
        for record in decode(body):
            kind = record.kind
            if kind == Kind.APPEND:
                share = shares.get(record.stream) or self._share(record.stream)
                share.write(record, position)
            elif kind == Kind.CREATE:
                self._create(record, position)
            elif kind == Kind.TOUCH:
                self._share(record.stream).row.deadline_ms = record.at_ms
            else:
                assert kind in {Kind.DELETE, Kind.EXPIRE}, f"unknown kind of record: {kind}"
                self._remove(record.stream)
        self.through = position

    def _share(self, number: int) -> Share:
        share = self.shares.get(number)
        if share is None:
            row = self._find_row(number)
            if row is None:
                raise LogCorruptError(
                    f"The log writes to stream {number:x}, which the catalog does not know."
                )
            share = self.shares[number] = Share(row)
        return share

    def _create(self, record: Record, position: int) -> None:
        meta = record.meta
        assert meta is not None, "a creation carries its metadata"
        row = StreamRow(record.stream, meta, record.at_ms, record.at_ms)
        row.deadline_ms = meta.expires_at_ms
        share = self.shares[record.stream] = Share(row)
        share.write(record, position)

    def _remove(self, number: int) -> None:
        self.shares.pop(number, None)
        if not self.is_new(number):
            self.removed.append(number)

    def is_new(self, number: int) -> bool:
        """Whether a stream was created in this range."""
        return number >> INDEX_BITS > self.after
