"""Garbage: removing objects that are no longer needed.

An object is removed only if the catalog has not used it for the grace period and no pin protects
it. A pin protects everything that was in use when it was made, so whatever was retired after the
oldest pin stays.

Snapshots follow the same rule. A flush records snapshots that no stream has any more; no later
record can name them, since a fork gets the snapshot that its source has at that time. A snapshot
that the catalog does not know is a failed upload, one that is still under way, or one whose record
is not flushed yet. Only the server knows which, so it is asked: it holds a snapshot from the
beginning of the upload until the flush of its record is done. What neither of them knows is an
orphan, and no clock has a say in that.

Clocks decide only how long unneeded objects stay. The age of an orphan is measured by the clock of
the store, against the time that the store gives to an object written just now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
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
# Asks the server which of these snapshots are being uploaded, or published and not flushed.
HeldOf = Callable[[list[str]], Collection[str]]
PACKS_PREFIX: Final = "packs/"
# Snapshots examined and removed in one collection, so that a flush does not wait for long.
SWEEP_OBJECTS_MAX: Final = 10_000
REMOVED_MAX: Final = 500
# An upload adds to its file all the time, unless the machine is stopped meanwhile.
UNFINISHED_MS_MAX: Final = 600_000
_CLOCK_PREFIX: Final = "clock/"


def collect(
    catalog: CatalogWriter,
    store: ObjectStore,
    now_ms: int,
    grace_ms: int,
    sweep: OrphanSweep,
    *,
    merging: bool = False,
) -> Collected:
    """Remove retired packs, dropped snapshots, and objects that no row names.

    While a merge is written its object has no row, and it may name packs that are dead by now; so
    then only what was retired before is removed. `sweep` keeps the position of the search for
    orphaned snapshots.
    """
    if not merging:
        _retire_dead(catalog, now_ms)
    before_ms = min(now_ms - grace_ms, _oldest_pin_ms(catalog, now_ms) - 1)
    objects = size_bytes = 0
    for pack in catalog.packs("retired_ms <= ?", (before_ms,)):
        store.remove(pack.name)
        failpoint("garbage.removed")
        with catalog.transaction() as connection:
            connection.execute("DELETE FROM packs WHERE id = ?", (pack.id,))
        objects, size_bytes = objects + 1, size_bytes + pack.size_bytes
    dropped = remove_dropped(catalog, store, before_ms)
    # The same moment by the clock of the store.
    store_now_ms = _store_now_ms(store)
    before_ms += store_now_ms - now_ms
    swept = sweep.remove(catalog, before_ms)
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
    objects += store.remove_unfinished(min(before_ms, store_now_ms - UNFINISHED_MS_MAX))
    return Collected(objects, size_bytes, dropped.is_cut)


def _store_now_ms(store: ObjectStore) -> int:
    name = f"{_CLOCK_PREFIX}now"
    store.put(name, b"written to learn the time of the store")
    now_ms = max(info.modified_ms for info in store.list(_CLOCK_PREFIX))
    store.remove(name)
    return now_ms


def pin(catalog: CatalogWriter, name: str, now_ms: int, ttl_ms: int) -> None:
    """Protect everything that is in use now, until the pin expires or is lifted."""
    with catalog.transaction() as connection:
        connection.execute(
            "INSERT INTO pins VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE SET until_ms = ?3",
            (name, now_ms, now_ms + ttl_ms),
        )


def unpin(catalog: CatalogWriter, name: str) -> None:
    """Lift a pin if it exists."""
    with catalog.transaction() as connection:
        connection.execute("DELETE FROM pins WHERE name = ?", (name,))


def _retire_dead(catalog: CatalogWriter, now_ms: int) -> None:
    """Retire packs that hold nothing but dead bytes."""
    for pack in catalog.packs("retired_ms IS NULL AND NOT has_delta AND dead_bytes = data_bytes"):
        swap(catalog, [], [pack.name], now_ms)


def _oldest_pin_ms(catalog: CatalogWriter, now_ms: int) -> int:
    with catalog.transaction() as connection:
        connection.execute("DELETE FROM pins WHERE until_ms <= ?", (now_ms,))
    oldest = catalog.read("SELECT min(created_ms) FROM pins")[0][0]
    # Without pins nothing is held back.
    return now_ms + 1 if oldest is None else int(oldest)


def _orphans(catalog: CatalogWriter, store: ObjectStore, before_ms: int) -> list[tuple[str, int]]:
    """Packs older than this that no row of the catalog names.

    Those of one range of the log are removed together: a rebuild would use one with a delta as long
    as it is there, and miss the companions that were removed.
    """
    known = {row.name for row in catalog.packs("TRUE")}
    orphans = [info for info in store.list(PACKS_PREFIX) if info.name not in known]
    young = {_range(info.name) for info in orphans if info.modified_ms > before_ms}
    return [(info.name, info.size_bytes) for info in orphans if _range(info.name) not in young]


def _range(name: str) -> str:
    """The range of the log in the name of a pack."""
    return name.rpartition("-")[0]


class Collected(NamedTuple):
    objects: int
    size_bytes: int
    # Whether there is more that is due.
    is_cut: bool = False


def remove_dropped(catalog: CatalogWriter, store: ObjectStore, before_ms: int) -> Collected:
    """Remove snapshots that were dropped before then, the oldest first."""
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
    """Finds orphaned snapshots, going through some of the store in each collection."""

    def __init__(self, store: ObjectStore, held_of: HeldOf) -> None:
        self._store = store
        self._held_of = held_of
        self._walk: Iterator[ObjectInfo] | None = None

    def remove(self, catalog: CatalogWriter, before_ms: int) -> Collected:
        """Remove orphans older than this among the next snapshots."""
        unknown = [
            info
            for info in self._next()
            if info.modified_ms <= before_ms and not _is_known(catalog, info.name)
        ]
        # The server is asked last: what it has let go since then was flushed before, and is known.
        held = self._held_of([info.name for info in unknown]) if unknown else ()
        orphans = [info for info in unknown if info.name not in held]
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
    """Whether a stream has the snapshot, or had it recently."""
    return bool(
        catalog.read(
            "SELECT 1 FROM streams WHERE snapshot = ?1 "
            "UNION ALL SELECT 1 FROM dropped_snapshots WHERE name = ?1",
            (name,),
        )
    )
