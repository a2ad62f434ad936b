"""Checking snapshots: every body that a stream has is in the store, and is what was stored.

What the streams have and what the store has are gone through side by side, both by name, so memory
does not grow with their number.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import ObjectMissingError, PackCorruptError
from holdfast.format.rows import decode_row
from holdfast.objects.pack_check import fault_of
from holdfast.storage.catalog_check import CATALOG
from holdfast.storage.snapshot_bodies import verified_body
from holdfast.storage.snapshot_store import SNAPSHOTS_PREFIX

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.format.records import Snapshot
    from holdfast.objects.store import ObjectInfo, ObjectStore
    from holdfast.storage.findings import Findings

SNAPSHOTS: Final = SNAPSHOTS_PREFIX.rstrip("/")


class Published(NamedTuple):
    """A snapshot that a record of the log publishes."""

    position: int
    stream: int
    snapshot: Snapshot


class _Named(NamedTuple):
    """A body that is needed, and by whom."""

    snapshot: Snapshot
    who: str


class SnapshotCheck:
    """Checks the snapshots of a catalog, and of the log behind it."""

    def __init__(
        self,
        store: ObjectStore,
        connection: sqlite3.Connection,
        findings: Findings,
        published: Sequence[Published],
    ) -> None:
        self._store = store
        self._connection = connection
        self._findings = findings
        (flushed,) = connection.execute("SELECT value FROM facts WHERE name = 'flushed'").fetchone()
        self._in_log = sorted(
            (each for each in published if each.position > flushed),
            key=lambda each: each.snapshot.object,
        )
        # Bytes of bodies that no stream has any more.
        self._waiting: list[int] = []
        self.count = self.size_bytes = 0
        for info in store.list(SNAPSHOTS_PREFIX):
            self.count += 1
            self.size_bytes += info.size_bytes

    def run(self, advance: Callable[[int], None]) -> None:
        """Look at every body; `advance` is told of the bytes, of those not needed as well."""
        listed = self._store.list(SNAPSHOTS_PREFIX)
        info = next(listed, None)
        for name, needed in groupby(self._named(), key=lambda each: each.snapshot.object):
            while info is not None and info.name < name:
                self._not_needed(info, advance)
                info = next(listed, None)
            if info is not None and info.name == name:
                self._check(list(needed), advance)
                info = next(listed, None)
            else:
                self._missing(next(needed))
        while info is not None:
            self._not_needed(info, advance)
            info = next(listed, None)
        if self._waiting:
            self._findings.note(
                SNAPSHOTS,
                f"{len(self._waiting)} snapshots are out of use and wait to be removed; "
                f"{sum(self._waiting)} bytes",
            )

    def _named(self) -> Iterator[_Named]:
        """What streams have and what the log publishes, by the name of the body."""
        in_log = iter(self._in_log)
        waiting = next(in_log, None)
        for each in self._in_rows():
            while waiting is not None and waiting.snapshot.object <= each.snapshot.object:
                yield _of_record(waiting)
                waiting = next(in_log, None)
            yield each
        while waiting is not None:
            yield _of_record(waiting)
            waiting = next(in_log, None)

    def _in_rows(self) -> Iterator[_Named]:
        for name, encoded in self._connection.execute(
            "SELECT snapshot, row FROM streams WHERE snapshot IS NOT NULL ORDER BY snapshot, number"
        ):
            try:
                row = decode_row(encoded)
            except msgspec.DecodeError:
                # That is said where all rows are looked at, as is a column that says otherwise.
                continue
            if row.snapshot is not None and row.snapshot.object == name:
                yield _Named(row.snapshot, f"stream {row.number:x} ({row.meta.name})")

    def _check(self, needed: list[_Named], advance: Callable[[int], None]) -> None:
        """Read a body that is there."""
        snapshot, who = needed[0]
        name = snapshot.object
        for other in needed[1:]:
            if other.snapshot != snapshot:
                self._findings.damage(
                    CATALOG, f"{who} and {other.who} do not say the same of {name}"
                )
        try:
            for piece in verified_body(self._store, name, snapshot.size_bytes, snapshot.checksum):
                advance(len(piece))
        except (ObjectMissingError, PackCorruptError) as error:
            self._findings.damage(name, f"the snapshot of {who}: {fault_of(error)}")

    def _missing(self, named: _Named) -> None:
        self._findings.damage(
            named.snapshot.object,
            f"it is the snapshot of {named.who}, and {self._store.url} does not have it",
        )

    def _not_needed(self, info: ObjectInfo, advance: Callable[[int], None]) -> None:
        advance(info.size_bytes)
        found = self._connection.execute(
            "SELECT 1 FROM dropped_snapshots WHERE name = ?", (info.name,)
        ).fetchone()
        if found:
            self._waiting.append(info.size_bytes)
        else:
            self._findings.note(
                SNAPSHOTS,
                f"{info.name} is an orphan, which nothing refers to; {info.size_bytes} bytes",
            )


def _of_record(published: Published) -> _Named:
    who = f"stream {published.stream:x} at position {published.position} of the log"
    return _Named(published.snapshot, who)
