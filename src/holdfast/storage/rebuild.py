"""Rebuilding the catalog from the packs, into a new file that replaces the old one.

Which packs are live follows from the packs alone:

- A pack without a sound footer, directory and delta is ignored.
- Packs with a delta cover ranges of the log. The live ones form a chain from position 0 without a
  gap, as far as there is one. Where several start at the same position, the one that reaches
  furthest wins: an unfinished flush or merge leaves a pack that a later attempt covers, and a
  merged pack covers its sources.
- A pack that overlaps with the chain is superseded if a pack of the chain says so, and an orphan
  otherwise. A sound pack beyond the end of the chain means that something in between is missing.
- Packs without a delta are live if a live pack names them as companions, or if they supersede one
  that is named.

The steps, each of which can be the last:

1. Apply the deltas of the live packs, in the order of the log, to a new catalog beside the old one.
   Extents of streams that no longer exist at the end are dead.
2. Check that every stream is whole; if not, nothing is replaced.
3. Move the old catalog aside together with its write-ahead log, then rename the new one. SQLite
   would apply the log of one catalog to another, so there is a moment without any catalog; a crash
   there means that the rebuild has to be run again.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import CatalogError, ObjectMissingError, PackCorruptError
from holdfast.failpoints import failpoint
from holdfast.format.packs import times_of
from holdfast.format.rows import decode_row
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import store_owner
from holdfast.storage.catalog_check import CatalogCheck, Findings
from holdfast.storage.catalog_schema import open_for_reading, recount
from holdfast.storage.catalog_writer import (
    CatalogWriter,
    delete_stream,
    insert_pack,
    put_documents,
    put_rows,
    put_times,
    row_change,
)
from holdfast.storage.garbage import PACKS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from holdfast.format.packs import Delta
    from holdfast.objects.store import ObjectStore


# Files that SQLite keeps beside a catalog.
_WAL: Final = "-wal"
_SHARED: Final = "-shm"


class SoundPack(NamedTuple):
    """A pack that is sound, without its contents."""

    name: str
    size_bytes: int
    after: int
    through: int
    created_ms: int
    has_delta: bool
    supersedes: frozenset[str]
    companions: frozenset[str]


class LivePacks(NamedTuple):
    """The packs that hold the state, and those that they supersede."""

    # With a delta, in the order of the log.
    mains: list[SoundPack]
    companions: list[SoundPack]
    # Each with the name of the live pack that supersedes it.
    superseded: list[tuple[SoundPack, str]]
    # The first and the last position that are in no pack although later ones are.
    missing: tuple[int, int] | None

    @property
    def through(self) -> int:
        """The log is in packs up to this position."""
        return self.mains[-1].through if self.mains else 0

    @property
    def names(self) -> set[str]:
        return {pack.name for pack in (*self.mains, *self.companions)}


def survey(store: ObjectStore) -> dict[str, SoundPack]:
    """The sound packs of a store; reads everything of every pack but its index and data."""
    found = {}
    for info in store.list(PACKS_PREFIX):
        try:
            pack = Pack(store, info.name, info.size_bytes)
            deque(pack.directory(), maxlen=0)
            meta = pack.delta().meta
        except (ObjectMissingError, PackCorruptError):
            continue
        else:
            found[info.name] = SoundPack(
                info.name,
                info.size_bytes,
                pack.footer.after,
                pack.footer.through,
                meta.created_ms,
                meta.has_delta,
                frozenset(meta.supersedes),
                frozenset(meta.companions),
            )
    return found


def resolve(sound: dict[str, SoundPack], spoilt: Collection[str] = frozenset()) -> LivePacks:
    """Find the live packs; those in `spoilt`, whose data is damaged, are the last choice."""
    mains = [pack for pack in sound.values() if pack.has_delta and pack.through > pack.after]
    chain = _chain(mains, sound, spoilt)
    through = chain[-1].through if chain else 0
    companions = _companions(chain, sound)
    live = {pack.name for pack in (*chain, *companions)}
    superseded = {
        name: pack.name
        for pack in (*companions, *chain)
        for name in pack.supersedes
        if name in sound and name not in live
    }
    return LivePacks(
        chain,
        companions,
        [(sound[name], by) for name, by in sorted(superseded.items())],
        _missing(mains, through),
    )


class _Worth(NamedTuple):
    """Ranks packs that start at the same position: compared field by field, more is better."""

    # How far the log is covered, and minus the number of spoilt packs on the way.
    reach: int
    spoilt: int
    through: int
    companions_missing: int
    is_latest: bool
    created_ms: int
    name: str


def _chain(
    mains: Iterable[SoundPack], sound: dict[str, SoundPack], spoilt: Collection[str]
) -> list[SoundPack]:
    """The longest chain of adjacent packs from position 0 on.

    Always taking the pack that reaches furthest could end early, where a merge was left unfinished
    and one of its sources was merged with others. So this works from the end back.
    """
    superseded = {name for pack in mains for name in pack.supersedes}
    # By the position that packs start after, the best of them.
    best: dict[int, tuple[_Worth, SoundPack]] = {}
    for pack in sorted(mains, key=lambda pack: pack.after, reverse=True):
        onward = best[pack.through][0] if pack.through in best else None
        worth = _Worth(
            onward.reach if onward else pack.through,
            (onward.spoilt if onward else 0) - (pack.name in spoilt),
            pack.through,
            -len(pack.companions - sound.keys()),
            pack.name not in superseded,
            pack.created_ms,
            pack.name,
        )
        if pack.after not in best or worth > best[pack.after][0]:
            best[pack.after] = worth, pack
    chain, at = [], 0
    while at in best:
        chain.append(best[at][1])
        at = chain[-1].through
    return chain


def _companions(chain: Sequence[SoundPack], sound: dict[str, SoundPack]) -> list[SoundPack]:
    """The packs without a delta that belong to the chain.

    A named one may be missing: a companion is removed once all its streams are gone.
    """
    named = {name for pack in chain for name in pack.companions}
    covered = {name for pack in chain for name in pack.supersedes}
    extras = {name: pack for name, pack in sound.items() if not pack.has_delta}
    live = {name: extras[name] for name in (named - covered) & extras.keys()}
    # A pack names everything it supersedes, so one pass is enough if the latest come first.
    for pack in sorted(extras.values(), key=lambda pack: pack.created_ms, reverse=True):
        replaced = pack.supersedes & (named - covered)
        if replaced and pack.name not in live and pack.name not in covered:
            live[pack.name] = pack
            covered |= pack.supersedes
            for name in pack.supersedes & live.keys():
                del live[name]
    return [live[name] for name in sorted(live)]


def _missing(mains: Iterable[SoundPack], through: int) -> tuple[int, int] | None:
    beyond = [pack for pack in mains if pack.through > through]
    if not beyond:
        return None
    starts = [pack.after for pack in beyond if pack.after > through]
    return through + 1, min(starts, default=max(pack.through for pack in beyond))


def rebuild(store: ObjectStore, live: LivePacks, path: Path, now_ms: int) -> Path | None:
    """Replace the catalog with one built from the live packs; returns where the old one is now.

    Raises a CatalogError and changes nothing if the packs do not have all bytes.
    """
    if live.missing is not None:
        raise CatalogError(
            f"Positions {live.missing[0]} to {live.missing[1]} of the log are in no sound pack. "
            "Restore the packs that hold them from a backup; the catalog was not replaced."
        )
    new = _beside(path, ".new")
    try:
        _remove(new)
        build(store, live, new, now_ms)
        _refuse_holes(new)
        assert not _beside(new, _WAL).exists(), "a closed catalog is one file"
        _sync(new)
        failpoint("repair.rebuilt")
        return _put_in_place(new, path)
    except OSError as error:
        raise CatalogError(f"The catalog {path} cannot be rebuilt: {error}.") from error
    finally:
        _remove(new)


def build(store: ObjectStore, live: LivePacks, path: Path, now_ms: int) -> None:
    catalog = CatalogWriter(path)
    try:
        for companion in live.companions:
            _insert(catalog, Pack(store, companion.name, companion.size_bytes), None)
        for main in live.mains:
            pack = Pack(store, main.name, main.size_bytes)
            _insert(catalog, pack, pack.delta())
            catalog.checkpoint()
        for superseded, by in live.superseded:
            _insert_retired(catalog, store, superseded, by, now_ms)
        _settle(catalog)
        catalog.set_fact("flushed", live.through)
        catalog.set_fact("store", store_owner(store))
        catalog.checkpoint()
    finally:
        catalog.close()


def _insert(catalog: CatalogWriter, pack: Pack, delta: Delta | None) -> None:
    """Insert a pack with all of its extents, and apply its delta."""
    new = pack.describe()
    with catalog.transaction() as connection:
        try:
            insert_pack(connection, new.info, new.extents)
            if delta is not None:
                for number in delta.meta.removed:
                    delete_stream(connection, number)
                rows = (row for _, row in delta.items())
                put_rows(connection, (row_change(decode_row(row), row) for row in rows))
                put_documents(connection, delta.meta.documents)
                put_times(connection, times_of(delta.meta, new.info.after, new.info.through))
                connection.execute(
                    "UPDATE facts SET value = max(value, ?) WHERE name = 'flushed_ms'",
                    (delta.meta.last_ms,),
                )
        except sqlite3.IntegrityError as error:
            raise CatalogError(
                f"The packs contradict each other: what {pack.name} holds is in another as well "
                f"({error}). The catalog was not replaced."
            ) from error


def _insert_retired(
    catalog: CatalogWriter, store: ObjectStore, pack: SoundPack, by: str, now_ms: int
) -> None:
    """Insert a superseded pack as retired, so that garbage collection removes it."""
    new = Pack(store, pack.name, pack.size_bytes).describe()
    with catalog.transaction() as connection:
        number = insert_pack(connection, new.info, ())
        connection.execute(
            "UPDATE packs SET retired_ms = ?, retired_by = ? WHERE id = ?", (now_ms, by, number)
        )


def _settle(catalog: CatalogWriter) -> None:
    """Delete extents whose streams are gone, and count what is left."""
    with catalog.transaction() as connection:
        # Packs of older versions have no rows for buckets, or count less.
        recount(connection)
        connection.execute(
            "DELETE FROM extents WHERE NOT EXISTS (SELECT 1 FROM streams WHERE "
            "streams.number = extents.stream AND extents.start + extents.length > streams.start)"
        )
        connection.execute(
            "UPDATE packs SET dead_bytes = data_bytes - "
            "(SELECT coalesce(sum(length), 0) FROM extents WHERE extents.pack = packs.id) "
            "WHERE retired_ms IS NULL"
        )
        connection.execute(
            "UPDATE facts SET value = (SELECT count(*) FROM streams) WHERE name = 'streams'"
        )
        connection.execute(
            "UPDATE facts SET value = (SELECT coalesce(sum(length), 0) FROM extents) "
            "WHERE name = 'stored_bytes'"
        )


def _refuse_holes(path: Path) -> None:
    findings = Findings()
    with closing(open_for_reading(path)) as connection:
        CatalogCheck(connection, findings).check_streams()
    if not findings.ok:
        words = "; ".join(found.what for found in findings.of("damage"))
        raise CatalogError(
            f"The packs do not have all bytes: {words}. Restore the missing packs from a backup; "
            "the catalog was not replaced."
        )


def _put_in_place(new: Path, path: Path) -> Path | None:
    aside = _beside(path, ".damaged")
    existed = path.exists()
    if existed:
        _remove(aside)
        path.rename(aside)
        if _beside(path, _WAL).exists():
            _beside(path, _WAL).rename(_beside(aside, _WAL))
    _remove(path)
    _sync(path.parent)
    new.rename(path)
    _sync(path.parent)
    return aside if existed else None


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _remove(path: Path) -> None:
    """Remove a catalog and the files that SQLite keeps beside it."""
    for each in (path, _beside(path, _WAL), _beside(path, _SHARED)):
        each.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
