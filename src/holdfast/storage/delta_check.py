"""Checking the deltas of the packs in use against the catalog: the rows, and who belongs to whom.

The deltas are taken in the order of the log. A stream's row in the catalog must be the one of the
last delta that has it; what is remembered meanwhile are only streams whose last row was another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.format.records import INDEX_BITS
from holdfast.storage.catalog_check import CATALOG

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

    def _known(self, number: int) -> bytes | None:
        found = self._connection.execute("SELECT row FROM streams WHERE number = ?", (number,))
        return next((row for (row,) in found), None)
