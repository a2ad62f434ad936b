"""Checking what streams have to do with one another: forks with sources, buckets with streams."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from holdfast.format.rows import BUCKET_PREFIX, BucketRow, StreamRow, decode_bucket, decode_row
from holdfast.storage.bucket_sums import add_up
from holdfast.storage.catalog_check import CATALOG

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from holdfast.storage.findings import Findings


class LineageCheck:
    """One look at all rows, and one at those that other rows refer to."""

    def __init__(self, connection: sqlite3.Connection, findings: Findings) -> None:
        self._connection = connection
        self._findings = findings
        # By number: how many forks a stream says it has, and how many there are.
        self._said: dict[int, int] = {}
        self._found: Counter[int] = Counter()

    def run(self) -> None:
        """Say what does not fit."""
        sums = add_up(self._checked_rows())
        for number in sorted(self._said.keys() | self._found.keys()):
            said, found = self._said.get(number, 0), self._found[number]
            if said != found:
                self._damage(
                    f"stream {number:x} says that it has {said} forks, and {found} name it"
                )
        self._check_buckets(sums)

    def _damage(self, what: str) -> None:
        self._findings.damage(CATALOG, what)

    def _checked_rows(self) -> Iterator[StreamRow]:
        rows = self._connection.execute("SELECT row FROM streams ORDER BY number")
        for (encoded,) in rows:
            try:
                row = decode_row(encoded)
            except msgspec.DecodeError:
                # That is said where the rows are held against their columns.
                continue
            self._check_row(row)
            yield row

    def _check_row(self, row: StreamRow) -> None:
        who = f"stream {row.number:x} ({row.meta.name})"
        if row.forks:
            self._said[row.number] = row.forks
        elif row.deleted:
            self._damage(f"{who} is deleted and has no forks that it could be there for")
        at = 0 if row.snapshot is None else row.snapshot.offset
        if row.earliest != at:
            self._damage(f"{who} can be read from {row.earliest} on, and its snapshot is at {at}")
        if row.meta.fork is not None:
            self._found[row.meta.fork.source] += 1
            fault = self._what_is_missing(row)
            if fault:
                self._damage(f"{who} is a fork, and {fault}")

    def _what_is_missing(self, fork: StreamRow) -> str:
        """Follow a fork to where its bytes are; what is wrong there, if anything is."""
        end = fork.tail
        row = fork
        while row.meta.fork is not None and (row is fork or fork.earliest < end):
            number, end = row.meta.fork.source, min(end, row.meta.fork.offset)
            source = self._find(number)
            if source is None:
                return f"its source {number:x} is missing"
            if end > source.tail:
                return f"its source {number:x} ends at {source.tail}, before {end}"
            own = max(fork.earliest, source.meta.fork.offset if source.meta.fork else 0)
            if own < end and source.start > own:
                return f"its source {number:x} starts at {source.start}, behind {own}"
            row = source
        return ""

    def _find(self, number: int) -> StreamRow | None:
        found = self._connection.execute("SELECT row FROM streams WHERE number = ?", (number,))
        try:
            return next((decode_row(row) for (row,) in found), None)
        except msgspec.DecodeError:
            return None

    def _check_buckets(self, sums: dict[str, BucketRow]) -> None:
        for key, value in self._connection.execute(
            "SELECT key, value FROM documents WHERE key >= ? AND key < ? ORDER BY key",
            (BUCKET_PREFIX, BUCKET_PREFIX[:-1] + chr(ord(BUCKET_PREFIX[-1]) + 1)),
        ):
            name = key.removeprefix(BUCKET_PREFIX)
            try:
                bucket = decode_bucket(value)
            except msgspec.DecodeError as error:
                self._damage(f"the row of the bucket {name!r} cannot be decoded: {error}")
                sums.pop(name, None)
                continue
            self._check_bucket(name, bucket, sums.pop(name, BucketRow(bucket.created_ms)))
        for name, counted in sums.items():
            self._damage(f"there is no bucket {name!r}, and {counted.streams} streams are in it")

    def _check_bucket(self, name: str, bucket: BucketRow, counted: BucketRow) -> None:
        said = bucket.streams, bucket.size_bytes
        found = counted.streams, counted.size_bytes
        if said != found:
            self._damage(
                f"the bucket {name!r} says that it holds {said[0]} streams with {said[1]} bytes, "
                f"and it holds {found[0]} with {found[1]}"
            )
        elif not bucket.explicit and not bucket.streams:
            self._damage(f"the bucket {name!r} is there though nobody created or uses it")
