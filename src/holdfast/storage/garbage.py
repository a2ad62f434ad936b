"""Garbage: objects that nobody needs any more, removed late and carefully.

An object is removed only if the catalog does not use it, it has been so for the grace period, and
nobody who pinned the packs may still be reading it: a pin protects everything that was in use when
it was made, so whatever went out of use after the oldest pin stays. Snapshots go by the same rule;
see `snapshot_garbage`.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.failpoints import failpoint
from holdfast.storage.merge import swap
from holdfast.storage.snapshot_store import SNAPSHOTS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.objects.store import ObjectInfo, ObjectStore
    from holdfast.storage.catalog_writer import CatalogWriter


_log = logging.getLogger(__name__)
PACKS_PREFIX: Final = "packs/"
# Bodies looked at and removed in one collection, so that a flush does not wait for long.
SWEEP_OBJECTS_MAX: Final = 10_000
REMOVED_MAX: Final = 500
# From the end of an upload to its record is a moment, unless the machine stands still.
PUBLISHED_MS_MAX: Final = 600_000


def collect(
    catalog: CatalogWriter,
    store: ObjectStore,
    now_ms: int,
    grace_ms: int,
    *,
    merging: bool = False,
    sweep: OrphanSweep | None = None,
) -> Collected:
    """Remove what is due: packs and snapshots that are out of use, and objects no row names.

    While a merge is written its object has no row, and it may name packs that are dead by now; so
    only what was out of use before is removed then. `sweep` is where the search for snapshots that
    were never published stands.
    """
    if not merging:
        _retire_dead(catalog, now_ms)
    # An object that is due went out of use before this moment.
    before_ms = min(now_ms - grace_ms, _oldest_pin_ms(catalog, now_ms) - 1)
    objects = size_bytes = 0
    for pack in catalog.packs("retired_ms <= ?", (before_ms,)):
        store.remove(pack.name)
        failpoint("garbage.removed")
        with catalog.transaction() as connection:
            connection.execute("DELETE FROM packs WHERE id = ?", (pack.id,))
        objects, size_bytes = objects + 1, size_bytes + pack.size_bytes
    dropped = remove_dropped(catalog, store, before_ms)
    swept = (sweep or OrphanSweep(store)).remove(catalog, before_ms, grace_ms)
    objects += dropped.objects + swept.objects
    size_bytes += dropped.size_bytes + swept.size_bytes
    if merging:
        return Collected(objects, size_bytes, dropped.is_cut)
    orphans = _orphans(catalog, store, before_ms)
    if orphans:
        catalog.settle()
    for name, size in orphans:
        _log.info("removing %s, which no flush or merge finished", name)
        store.remove(name)
        objects, size_bytes = objects + 1, size_bytes + size
    # The server uploads snapshots meanwhile, whatever the grace period.
    objects += store.remove_unfinished(min(before_ms, now_ms - PUBLISHED_MS_MAX))
    return Collected(objects, size_bytes, dropped.is_cut)


def pin(catalog: CatalogWriter, name: str, now_ms: int, ttl_ms: int) -> None:
    """Protect everything that is in use now, until the time is over or the pin is lifted."""
    with catalog.transaction() as connection:
        connection.execute(
            "INSERT INTO pins VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE SET until_ms = ?3",
            (name, now_ms, now_ms + ttl_ms),
        )


def unpin(catalog: CatalogWriter, name: str) -> None:
    """Lift a pin; harmless if it is not there."""
    with catalog.transaction() as connection:
        connection.execute("DELETE FROM pins WHERE name = ?", (name,))


def _retire_dead(catalog: CatalogWriter, now_ms: int) -> None:
    """Take packs out of use of which nothing is."""
    for pack in catalog.packs("retired_ms IS NULL AND NOT has_delta AND dead_bytes = data_bytes"):
        swap(catalog, [], [pack.name], now_ms)


def _oldest_pin_ms(catalog: CatalogWriter, now_ms: int) -> int:
    with catalog.transaction() as connection:
        connection.execute("DELETE FROM pins WHERE until_ms <= ?", (now_ms,))
    oldest = catalog.read("SELECT min(created_ms) FROM pins")[0][0]
    # Without pins nothing is held back: the moment after now.
    return now_ms + 1 if oldest is None else int(oldest)


def _orphans(catalog: CatalogWriter, store: ObjectStore, before_ms: int) -> list[tuple[str, int]]:
    """Packs in the store that no row of the catalog names, from before this moment.

    Those of one range of the log go together: to a rebuild, one with a delta counts for something
    as long as it is there, and what it lacks of its companions is missing.
    """
    known = {row.name for row in catalog.packs("TRUE")}
    orphans = [info for info in store.list(PACKS_PREFIX) if info.name not in known]
    young = {_range(info.name) for info in orphans if info.modified_ms > before_ms}
    return [(info.name, info.size_bytes) for info in orphans if _range(info.name) not in young]


def _range(name: str) -> str:
    """The range of the log that a pack stands for, as its name has it."""
    return name.rpartition("-")[0]


class Collected(NamedTuple):
    """What a collection removed."""

    objects: int
    size_bytes: int
    # Whether there is more that is due.
    is_cut: bool = False


def remove_dropped(catalog: CatalogWriter, store: ObjectStore, before_ms: int) -> Collected:
    """Remove bodies that no stream has since this moment, or longer; the oldest first."""
    rows = catalog.read(
        "SELECT name, size_bytes FROM dropped_snapshots WHERE dropped_ms <= ? "
        "ORDER BY dropped_ms, name LIMIT ?",
        (before_ms, REMOVED_MAX),
    )
    for name, _ in rows:
        store.remove(name)
        failpoint("garbage.removed")
    with catalog.transaction() as connection:
        connection.executemany(
            "DELETE FROM dropped_snapshots WHERE name = ?", ((name,) for name, _ in rows)
        )
    size_bytes = sum(size_bytes for _, size_bytes in rows)
    return Collected(len(rows), size_bytes, is_cut=len(rows) == REMOVED_MAX)


class OrphanSweep:
    """Goes through all bodies in the store, some in each collection, and then again."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._walk: Iterator[ObjectInfo] | None = None

    def remove(self, catalog: CatalogWriter, before_ms: int, grace_ms: int) -> Collected:
        """Remove orphans from before this moment among those that come next."""
        while_ms = max(grace_ms, PUBLISHED_MS_MAX)
        before_ms = min(before_ms, int(catalog.fact("flushed_ms")) - while_ms - 1)
        orphans = [
            info
            for info in self._next()
            if info.modified_ms <= before_ms and not _is_known(catalog, info.name)
        ]
        for info in orphans:
            _log.info("removing %s, which was never published", info.name)
            self._store.remove(info.name)
            failpoint("garbage.removed")
        return Collected(len(orphans), sum(info.size_bytes for info in orphans))

    def _next(self) -> list[ObjectInfo]:
        walk, self._walk = self._walk or self._store.list(SNAPSHOTS_PREFIX), None
        found = list(islice(walk, SWEEP_OBJECTS_MAX))
        if len(found) == SWEEP_OBJECTS_MAX:
            self._walk = walk
        return found


def _is_known(catalog: CatalogWriter, name: str) -> bool:
    """Whether a stream has it, or had it lately."""
    return bool(
        catalog.read(
            "SELECT 1 FROM streams WHERE snapshot = ?1 "
            "UNION ALL SELECT 1 FROM dropped_snapshots WHERE name = ?1",
            (name,),
        )
    )
