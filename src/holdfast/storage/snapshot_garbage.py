"""Snapshot bodies that nobody needs any more.

A body that a stream had, and no stream has since a flush, is entered in the catalog by that flush
and goes like a pack that is out of use: after the grace period, and unless somebody has pinned
what was in use before. No later record can name it: whoever forks a stream gets the snapshot that
the stream has then.

A body that no stream ever had may be an upload that failed, or one that a record has published
which is not flushed yet. Such a record is younger than the last one flushed, and an upload is
published within the grace period, or in a while if there is none. So what is older than the last
record flushed by more than that is an orphan. The time of the flush would be wrong here: it may be
repeated for hours with the same end, while records are written that it does not cover.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.failpoints import failpoint
from holdfast.storage.snapshot_store import SNAPSHOTS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.objects.store import ObjectInfo, ObjectStore
    from holdfast.storage.catalog_writer import CatalogWriter

_log = logging.getLogger(__name__)
# Bodies looked at and removed in one collection, so that a flush does not wait for long.
SWEEP_OBJECTS_MAX: Final = 10_000
REMOVED_MAX: Final = 500
# From the end of an upload to its record is a moment, unless the machine stands still.
PUBLISHED_MS_MAX: Final = 600_000


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
