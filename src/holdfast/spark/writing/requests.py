"""Rows become requests of `write_to_streams`, by a rule that depends only on each stream's rows.

Rules:

- A request takes rows of its stream, in order, while they fit into `request_bytes`; a larger row
  goes alone. On a byte stream without framing every row is a request, unless requests list the
  lengths of their messages: then they also have to fit into the header.
- A request is complete when a row of its stream does not fit, or none will follow: never because of
  other streams, the time, or how the rows were handed over. So rows that are written again make the
  same requests, whichever other rows they come with.
- Rows come sorted by stream, so that a stream is complete as soon as the next one begins.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from holdfast.client.messages import request_body
from holdfast.errors import SettingsError
from holdfast.protocol.content import JSON
from holdfast.protocol.headers import LENGTHS_BYTES_MAX
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.rows import EncodedRun, Starts

# The server accepts 200,000 in one append. Never change it: a repeated batch must be cut into the
# same requests.
MESSAGES_MAX: Final = 100_000
_POWERS: Final = 10 ** np.arange(1, 12)


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


ALONE: Final = Placement(1, 0)


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
    # Of its messages, if the request lists them.
    lengths: tuple[int, ...] = ()


class RequestBuilder:
    """Takes runs of rows and gives back requests."""

    def __init__(self, options: WriteOptions, placement: Placement = ALONE) -> None:
        self._media = options.media
        can_join = self._media == JSON or options.framing is not None
        self._lists_lengths = options.list_lengths and not can_join
        self._messages_max = MESSAGES_MAX if can_join or self._lists_lengths else 1
        self._request_bytes = options.request_bytes
        self._placement = placement
        self._name: str | None = None
        # The request that is not complete yet.
        self._seq = self._rows = self._size_bytes = self._listed_bytes = 0
        self._pieces: list[bytes] = []
        self._lengths: list[int] = []

    def take(self, runs: Iterable[EncodedRun]) -> list[WriteRequest]:
        """The requests that are complete now that these rows have come."""
        made: list[WriteRequest] = []
        for run in runs:
            if run.name != self._name:
                self._placement.check(run.name, self._name)
                made += self.finish()
                self._name, self._seq = run.name, 0
            self._add(run, made)
        return made

    def finish(self) -> list[WriteRequest]:
        """The last request of the last stream, now that all rows have come."""
        return [self._complete(last=True)] if self._rows else []

    def _add(self, run: EncodedRun, made: list[WriteRequest]) -> None:
        # A message takes one byte more than it has, as in a JSON array.
        ends = run.starts[1:] - run.starts[0]
        if not run.is_json:
            ends = ends + np.arange(1, len(run) + 1)
        listed = _listed_bytes(run) if self._lists_lengths else ends
        at = 0
        while at < len(run):
            before = int(ends[at - 1]) if at else 0
            room = before + self._request_bytes - self._size_bytes
            end = int(np.searchsorted(ends, room, side="right"))
            end = min(end, at + self._messages_max - self._rows)
            if self._lists_lengths:
                listed_before = int(listed[at - 1]) if at else 0
                # The last length has no comma behind it.
                room = listed_before + LENGTHS_BYTES_MAX + 1 - self._listed_bytes
                end = min(end, int(np.searchsorted(listed, room, side="right")))
            if end <= at:
                if self._rows:
                    made.append(self._complete(last=False))
                    continue
                end = at + 1
            if self._lists_lengths:
                self._lengths += run.lengths(at, end)
                self._listed_bytes += int(listed[end - 1]) - listed_before
            self._pieces.append(run.cut(at, end))
            self._rows += end - at
            self._size_bytes += int(ends[end - 1]) - before
            at = end

    def _complete(self, *, last: bool) -> WriteRequest:
        assert self._name is not None, "rows have a stream"
        body = request_body(self._pieces, self._media)
        made = WriteRequest(self._name, self._seq, body, self._rows, last, tuple(self._lengths))
        self._pieces, self._lengths = [], []
        self._rows = self._size_bytes = self._listed_bytes = 0
        self._seq += 1
        return made


def _listed_bytes(run: EncodedRun) -> Starts:
    """What the lengths of the messages up to each take in a header, with a comma behind each."""
    digits = np.searchsorted(_POWERS, np.diff(run.starts), side="right") + 1
    return np.cumsum(digits + 1)
