"""Verifying a store: every byte of packs and snapshots, and that the catalog says what they say.

With a catalog, what it uses must be there and sound, and whatever else is in the store is only
noted. Without one, a catalog is rebuilt from the packs in a temporary place and verified like any
other, so what is found is what a repair would leave.

A pack is looked at whole and then let go of, so memory does not grow with the catalog.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import CatalogError, ObjectMissingError, PackCorruptError, SettingsError
from holdfast.objects.pack_check import fault_of
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import store_owner
from holdfast.storage.catalog_check import (
    CATALOG,
    check_file,
    check_streams,
    check_tiling,
    fact,
    pack_rows,
)
from holdfast.storage.catalog_schema import damaged, open_for_reading
from holdfast.storage.garbage import PACKS_PREFIX
from holdfast.storage.lineage_check import LineageCheck
from holdfast.storage.live_packs import resolve, survey
from holdfast.storage.rebuild import build
from holdfast.storage.snapshot_check import Published, SnapshotCheck
from holdfast.storage.used_pack_check import UsedPackCheck

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.objects.store import ObjectStore
    from holdfast.storage.findings import Findings, Progress

PACKS: Final = "packs"


class Verified(NamedTuple):
    """What was looked at. `flushed` is the position up to which packs have the log."""

    flushed: int
    packs: int
    size_bytes: int
    streams: int
    # Packs in use, and those of them that are missing or damaged.
    in_use: frozenset[str]
    spoilt: frozenset[str]
    # How far sound packs go that the catalog does not know.
    unused_through: int = 0
    snapshots: int = 0


def verify_catalog(
    store: ObjectStore,
    path: Path,
    findings: Findings,
    progress: Progress,
    published: Sequence[Published] = (),
) -> Verified:
    """Verify a catalog and every object; raises a CatalogError if the catalog cannot be read.

    `published` are the snapshots that the log tells of.
    """
    try:
        with closing(open_for_reading(path)) as connection:
            return _Verification(store, connection, findings, progress, published).run()
    except (sqlite3.Error, TypeError, ValueError) as error:
        # SQLite keeps any type in any column, so a damaged value may be one that makes no sense.
        raise damaged(path, error) from error


def verify_store(
    store: ObjectStore,
    findings: Findings,
    progress: Progress,
    published: Sequence[Published] = (),
) -> Verified:
    """Verify every object, and that the packs which are live make up a whole catalog."""
    live = resolve(survey(store).sound)
    if live.missing is not None:
        findings.damage(
            PACKS,
            f"positions {live.missing[0]} to {live.missing[1]} of the log are in no sound pack, "
            "although later ones are: what follows them cannot be used",
        )
    with TemporaryDirectory(prefix="holdfast-check-") as directory:
        path = Path(directory) / CATALOG
        try:
            build(store, live, path, now_ms=0)
        except CatalogError as error:
            findings.damage(PACKS, error.message)
            return Verified(live.through, 0, 0, 0, frozenset(live.names), frozenset())
        return verify_catalog(store, path, findings, progress, published)


class _Verification:
    """One run over a catalog and its store."""

    def __init__(
        self,
        store: ObjectStore,
        connection: sqlite3.Connection,
        findings: Findings,
        progress: Progress,
        published: Sequence[Published],
    ) -> None:
        self._store = store
        self._connection = connection
        self._findings = findings
        self._progress = progress
        self._published = published
        self._used = UsedPackCheck(store, connection, findings, self._advance)
        self._sizes: dict[str, int] = {}
        self._done = 0
        self._total = 0
        self._unused_through = 0

    def run(self) -> Verified:
        """Look at everything."""
        connection, findings = self._connection, self._findings
        check_file(connection)
        self._check_identity()
        self._sizes = {info.name: info.size_bytes for info in self._store.list(PACKS_PREFIX)}
        snapshots = SnapshotCheck(self._store, connection, findings, self._published)
        self._total = sum(self._sizes.values()) + snapshots.size_bytes
        packs = pack_rows(connection)
        in_use = [row for row in packs if row.retired_ms is None]
        flushed = int(fact(connection, "flushed"))
        check_tiling(in_use, flushed, findings)
        self._check_owners()
        for row in in_use:
            with self._looking_at(row.name):
                self._used.check(row, self._sizes.get(row.name))
        names = frozenset(row.name for row in in_use)
        self._check_unused(names, {row.name for row in packs if row.retired_ms is not None})
        snapshots.run(self._advance)
        self._done = self._total
        self._progress(self._done, self._total)
        check_streams(connection, findings)
        LineageCheck(connection, findings).run()
        self._used.deltas.finish(flushed)
        (streams,) = connection.execute("SELECT count(*) FROM streams").fetchone()
        return Verified(
            flushed,
            len(self._sizes),
            self._total,
            streams,
            names,
            frozenset(self._used.spoilt),
            self._unused_through,
            snapshots.count,
        )

    def _check_identity(self) -> None:
        known, found = str(fact(self._connection, "store")), store_owner(self._store)
        if known and found and known != found:
            raise SettingsError(
                f"The object store {self._store.url} belongs to another data directory. "
                "Set 'store' to the one that this data was flushed to."
            )

    def _check_owners(self) -> None:
        """Every extent lies in a pack that is in use."""
        (stray,) = self._connection.execute(
            "SELECT count(*) FROM extents WHERE pack NOT IN "
            "(SELECT id FROM packs WHERE retired_ms IS NULL)"
        ).fetchone()
        if stray:
            self._findings.damage(CATALOG, f"{stray} extents are in packs that are not in use")

    @contextmanager
    def _looking_at(self, name: str) -> Iterator[None]:
        """Account for a pack's bytes, however much of them could be read."""
        done = self._done + self._sizes.get(name, 0)
        try:
            yield
        finally:
            self._done = done
            self._progress(self._done, self._total)

    def _advance(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._progress(self._done, self._total)

    def _check_unused(self, in_use: frozenset[str], retired: set[str]) -> None:
        waiting: list[int] = []
        for name, size in self._sizes.items():
            if name in in_use:
                continue
            with self._looking_at(name):
                fault = self._fault(name, size)
            if name in retired and not fault:
                waiting.append(size)
                continue
            what = "out of use" if name in retired else "an orphan, which nothing refers to"
            rest = f", and unfinished: {fault}" if fault else ""
            self._findings.note(name, f"{what}{rest}; {size} bytes")
        if waiting:
            self._findings.note(
                PACKS,
                f"{len(waiting)} packs are out of use and wait to be removed; {sum(waiting)} bytes",
            )

    def _fault(self, name: str, size: int) -> str:
        """What is wrong with a pack that is not in use."""
        try:
            pack = Pack(self._store, name, size)
            for read in pack.verify():
                self._advance(read)
        except (ObjectMissingError, PackCorruptError) as error:
            return fault_of(error)
        if pack.delta().meta.has_delta:
            self._unused_through = max(self._unused_through, pack.footer.through)
        return ""
