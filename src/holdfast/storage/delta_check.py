"""Checking the deltas of the packs in use against the catalog: rows, documents, companions.

The deltas are taken in the order of the log. A stream's row in the catalog must be the one of the
last delta that has it; what is remembered meanwhile are only streams whose last row was another.
Of documents, which are few, every key is remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.format.records import INDEX_BITS
from holdfast.format.rows import BUCKET_PREFIX, decode_bucket
from holdfast.storage.catalog_check import CATALOG, fact

if TYPE_CHECKING:
    import sqlite3

    from holdfast.format.packs import Delta
    from holdfast.storage.catalog_writer import PackRow
    from holdfast.storage.findings import Findings


class DeltaCheck:
    """Takes the delta of each pack in use, in order; `finish` comes last."""

    def __init__(self, connection: sqlite3.Connection, findings: Findings) -> None:
        self._connection = connection
        self._findings = findings
        # Streams whose row, as of the last delta that has one, is not the catalog's.
        self._stale: set[int] = set()
        self._alive = 0
        self._at = 0
        self._named: set[str] = set()
        # Packs in use that have no delta, and what each supersedes.
        self._companions: dict[str, set[str]] = {}
        # Whether the catalog has of a document what the last delta has that tells of it.
        self._documents: dict[str, bool] = {}
        self._last_ms = 0

    def take(self, pack: PackRow, delta: Delta) -> None:
        """Take the next pack's delta."""
        meta = delta.meta
        if not meta.has_delta:
            self._companions[pack.name] = set(meta.supersedes)
            return
        self._named.update(meta.companions)
        if pack.after == self._at:
            self._at = pack.through
        for number, row in delta.items():
            if number >> INDEX_BITS > pack.after:
                self._alive += 1
            if self._known(number) == row:
                self._stale.discard(number)
            else:
                self._stale.add(number)
        self._last_ms = max(self._last_ms, meta.last_ms)
        for key, value in meta.documents.items():
            self._documents[key] = self._document(key) == value
        self._alive -= len(meta.removed)
        for number in meta.removed:
            self._stale.discard(number)
            if self._known(number) is not None:
                self._findings.damage(CATALOG, f"it has stream {number:x}, which {pack.name} ended")

    def finish(self, flushed: int) -> None:
        """Say what does not fit, once all deltas are taken."""
        for name, supersedes in sorted(self._companions.items()):
            if name not in self._named and not supersedes & self._named:
                self._findings.damage(
                    name, "it is in use, and no other pack names it: a rebuild would not find it"
                )
        if self._at != flushed:
            # A delta is missing, which was said already: there is nothing to compare with.
            return
        for number in sorted(self._stale):
            self._findings.damage(CATALOG, f"the row of stream {number:x} is not the packs'")
        (streams,) = self._connection.execute("SELECT count(*) FROM streams").fetchone()
        if streams != self._alive and not self._stale:
            self._findings.damage(
                CATALOG, f"it has {streams} streams, and the packs have {self._alive}"
            )
        if fact(self._connection, "flushed_ms") != self._last_ms:
            self._findings.damage(
                CATALOG,
                f"its 'flushed_ms' is {fact(self._connection, 'flushed_ms')}, "
                f"and the packs have {self._last_ms}",
            )
        self._check_documents()

    def _check_documents(self) -> None:
        for key in sorted(key for key, is_same in self._documents.items() if not is_same):
            self._findings.damage(CATALOG, f"the document {key!r} is not the packs'")
        for key, value in self._connection.execute("SELECT key, value FROM documents ORDER BY key"):
            if key not in self._documents and not _may_be_counted(key, value):
                self._findings.damage(CATALOG, f"it has a document {key!r}, which no pack has")

    def _document(self, key: str) -> bytes | None:
        found = self._connection.execute("SELECT value FROM documents WHERE key = ?", (key,))
        return next((value for (value,) in found), None)

    def _known(self, number: int) -> bytes | None:
        found = self._connection.execute("SELECT row FROM streams WHERE number = ?", (number,))
        return next((row for (row,) in found), None)


def _may_be_counted(key: str, value: bytes) -> bool:
    """Whether it is the row of a bucket that packs of an older version do not tell of."""
    try:
        return key.startswith(BUCKET_PREFIX) and not decode_bucket(value).explicit
    except msgspec.DecodeError:
        return False
