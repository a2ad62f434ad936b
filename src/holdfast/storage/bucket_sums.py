"""Buckets as the streams in them add up to: for checks, and where nothing else tells of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.format.rows import BUCKET_PREFIX, BucketRow, decode_row, encode_bucket

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from holdfast.format.rows import StreamRow


def add_up(rows: Iterable[StreamRow]) -> dict[str, BucketRow]:
    """A row for each bucket that holds a stream; those that are only there for forks count not.

    When a bucket was created, and written to last, is known only as far as its streams tell.
    """
    buckets: dict[str, BucketRow] = {}
    for row in rows:
        if not row.deleted:
            _add(buckets, row)
    return buckets


def _add(buckets: dict[str, BucketRow], row: StreamRow) -> None:
    name = row.meta.name.partition("/")[0]
    bucket = buckets.get(name)
    if bucket is None:
        bucket = buckets[name] = BucketRow(row.created_ms)
    bucket.created_ms = min(bucket.created_ms, row.created_ms)
    bucket.streams += 1
    bucket.size_bytes += row.tail - row.start
    bucket.last_write_ms = max(bucket.last_write_ms or row.last_write_ms, row.last_write_ms)


def complete(connection: sqlite3.Connection) -> None:
    """Enter the buckets that a catalog does not have, though it has streams in them."""
    rows = (decode_row(row) for (row,) in connection.execute("SELECT row FROM streams"))
    connection.executemany(
        "INSERT OR IGNORE INTO documents VALUES (?, ?)",
        [(BUCKET_PREFIX + name, encode_bucket(row)) for name, row in add_up(rows).items()],
    )
