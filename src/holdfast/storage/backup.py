"""Backups and restores of a data directory, while a server works with it.

A backup:

1. Pin the packs: those in use from now on stay until the pin is lifted or expires.
2. Copy the log, which starts at a position that the catalog covers.
3. Copy the catalog, which by now covers at least as much, so there is no gap between the two. Drop
   the part of the copied log that the catalog covers.
4. Copy the packs that this catalog uses, except those already at the destination, the snapshots of
   its streams and of the copied log, and the keys of subscriptions.
5. Write the manifest.

The server takes no part: SQLite lets this process write its pin beside it. If anything fails before
5 there is no backup, and the packs that were copied are there for the next attempt.

A restore claims the object store, which must be empty or claimed by the same restore, and copies
packs, snapshots, the catalog, the log and the keys. Every step can be repeated. The caller makes
sure that the directory is not used as a data directory before all steps are done.
"""

from __future__ import annotations

import tempfile
from array import array
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Self

from xxhash import xxh3_64_hexdigest

from holdfast.errors import (
    CatalogError,
    HoldfastError,
    LogCorruptError,
    SettingsError,
)
from holdfast.failpoints import failpoint
from holdfast.format.records import Kind, decode, decode_snapshot
from holdfast.format.segments import decode_header, iter_batches
from holdfast.objects.store import store_owner
from holdfast.storage.catalog import Catalog
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.copying import (
    CopiedCatalog,
    MissingObjects,
    adopt_catalog,
    copy_catalog,
    download,
    upload,
)
from holdfast.storage.garbage import PACKS_PREFIX, pin, unpin
from holdfast.storage.manifest import (
    BACKUPS_PREFIX,
    CopiedObject,
    CopiedSegment,
    Manifest,
    backup_prefix,
    copied_snapshot,
    new_id,
    timestamp,
    write_manifest,
)
from holdfast.storage.open_objects import claim
from holdfast.storage.snapshot_store import SNAPSHOTS_PREFIX
from holdfast.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType

    from holdfast.clock import Clock
    from holdfast.format.segments import BatchFrame
    from holdfast.objects.store import ObjectStore
    from holdfast.storage.manifest import CopiedObject, Manifest

    Advance = Callable[[int], object]

# A killed backup holds packs back for this long at most.
PIN_MS: Final = 6 * 3_600_000
_RENEW_MS: Final = PIN_MS // 12
# A swap retires packs as of the time it was requested, and may then wait for this process's
# transaction. So the pin reaches back further than SQLite's longest wait.
_PIN_EARLIER_MS: Final = 60_000
# Leftovers of killed backups are removed once no running backup can need them.
_UNFINISHED_MS: Final = 7 * 86_400_000
# Files that SQLite may leave beside a catalog that is only partly written.
_SIDE_FILES: Final = ("", "-wal", "-shm", "-journal")


class Backup:
    """One backup; call its steps in order inside a `with` block."""

    def __init__(
        self, catalog_path: Path, source: ObjectStore, target: ObjectStore, clock: Clock
    ) -> None:
        self._path = catalog_path
        self._source = source
        self._target = target
        self._clock = clock
        self._begun_ms = self._renewed_ms = clock.now_ms()
        self.id = new_id(clock, self._begun_ms)
        self._prefix = backup_prefix(self.id)
        self._writer: CatalogWriter | None = None
        self._written: list[str] = []
        self._log: list[CopiedSegment] = []
        self._catalog: CopiedObject | None = None
        self._found = CopiedCatalog(0, 0, 0, "", [], [])
        # Bodies that the log publishes, each with the position where it does.
        self._published: list[tuple[int, CopiedObject]] = []
        self._snapshots: list[CopiedObject] = []
        # What the copied batches hold, four numbers for each: see `_count_batch`.
        self._batches = array("q")
        self._keys: CopiedObject | None = None
        # Set by `find_missing`.
        self.missing = MissingObjects(source, target, [], [])

    def __enter__(self) -> Self:
        self._check_places()
        self._target.remove_unfinished(self._begun_ms - _UNFINISHED_MS)
        if _is_there(self._path):
            # Only reading finds out whether it is a catalog; opening to write would make it one.
            Catalog(self._path).close()
            self._writer = CatalogWriter(self._path)
            self._pin(self._writer)
        failpoint("backup.started")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            # If it cannot be lifted it runs out.
            with suppress(CatalogError):
                unpin(self._writer, self._pin_name)
            self._writer.close()
        if kind is not None:
            with suppress(HoldfastError):
                for name in reversed(self._written):
                    self._target.remove(name)

    @property
    def _pin_name(self) -> str:
        return f"backup-{self.id}"

    def _pin(self, catalog: CatalogWriter) -> None:
        """Pin the packs, or renew the pin, which then protects the same packs."""
        self._renewed_ms = self._clock.now_ms()
        since_ms = self._renewed_ms - _PIN_EARLIER_MS
        pin(catalog, self._pin_name, since_ms, PIN_MS + _PIN_EARLIER_MS)

    def _check_places(self) -> None:
        """Refuse a destination that is a server's own store, from which it removes packs."""
        source, target = f"{self._source.url}/", f"{self._target.url}/"
        inside = (source + PACKS_PREFIX, source + SNAPSHOTS_PREFIX)
        if store_owner(self._target) or target.startswith(inside):
            raise SettingsError(
                f"{self._target.url} is an object store that a server keeps its packs in, and "
                "removes them from. Choose another place for backups, such as another prefix."
            )

    # 2. The log.

    @property
    def flushed(self) -> int:
        """The log is needed after this position."""
        return 0 if self._writer is None else self._writer.flushed

    def copy_log(self, segments: Iterable[tuple[int, int, int, bytes]], advance: Advance) -> None:
        """Copy segments: their number, first and last position, and bytes.

        Numbers have no gaps; number 1 starts over and voids all earlier ones.
        """
        for number, first, last, data in segments:
            if number == 1:
                self._drop_log(first)
            name = f"{self._prefix}log/{number:010d}.seg"
            self._put(name, data)
            self._count(data)
            copied = CopiedSegment(name, len(data), xxh3_64_hexdigest(data), first, last)
            self._log.append(copied)
            advance(len(data))
        failpoint("backup.log_copied")

    def _count(self, segment: bytes) -> None:
        """Note the snapshots of a copied segment, and what each of its batches holds."""
        try:
            header = decode_header(segment)
            if header is None:
                raise LogCorruptError("A segment of the copied log has no sound header.")
            for frame in iter_batches(segment, header, None):
                self._count_batch(frame)
        except ValueError as error:
            raise LogCorruptError(f"A segment of the copied log is damaged: {error}.") from error

    def _count_batch(self, frame: BatchFrame) -> None:
        streams = appends = size_bytes = 0
        for record in decode(frame.body):
            if record.kind == Kind.SNAPSHOT:
                snapshot = copied_snapshot(decode_snapshot(record.payload))
                self._published.append((frame.position, snapshot))
            elif record.kind in {Kind.CREATE, Kind.APPEND}:
                streams += record.kind == Kind.CREATE
                appends += bool(record.payload)
                size_bytes += len(record.payload)
            elif record.kind in {Kind.DELETE, Kind.EXPIRE}:
                streams -= 1
        self._batches.extend((frame.position, streams, appends, size_bytes))

    def _counted(self) -> tuple[int, int, int]:
        """The streams, appends and bytes that the log adds to the catalog."""
        numbers = self._batches
        added = [at for at in range(0, len(numbers), 4) if numbers[at] > self._found.flushed]
        streams, appends, size_bytes = (
            sum(numbers[at + field] for at in added) for field in (1, 2, 3)
        )
        return streams, appends, size_bytes

    def _drop_log(self, through: int) -> None:
        """Drop copied segments that hold nothing after this position."""
        while self._log and self._log[0].last_position <= through:
            self._target.remove(self._log.pop(0).name)

    def _put(self, name: str, data: bytes) -> None:
        self._written.append(name)
        self._target.put(name, data)

    # 3. The catalog.

    def copy_catalog(self, advance: Advance) -> None:
        """Copy the current catalog, and check that the copied log continues it."""
        if self._writer is not None:
            with tempfile.TemporaryDirectory(prefix="holdfast-backup-") as directory:
                path = Path(directory) / "catalog.sqlite"
                self._found = copy_catalog(self._path, path)
                name = f"{self._prefix}catalog.sqlite"
                self._written.append(name)
                self._catalog = upload(self._target, name, path, advance)
        self._drop_log(self._found.flushed)
        if self._log and self._log[0].first_position > self._found.flushed + 1:
            raise LogCorruptError(
                f"The log starts at position {self._log[0].first_position}, but the catalog "
                f"{self._path} covers only {self._found.flushed}: something is missing between "
                "them. 'holdfast check' says more."
            )
        self._snapshots = self._needed_snapshots()
        failpoint("backup.catalog_copied")

    @property
    def position(self) -> int:
        """The last position that the copied log or catalog has."""
        return self._log[-1].last_position if self._log else self._found.flushed

    def _needed_snapshots(self) -> list[CopiedObject]:
        """The snapshots of the catalog, and those that the log publishes after it."""
        needed = {each.name: each for each in self._found.snapshots}
        for position, each in self._published:
            if position > self._found.flushed:
                needed[each.name] = each
        return [needed[name] for name in sorted(needed)]

    # 4. Packs and snapshots.

    def find_missing(self) -> int:
        """Find the objects to copy; returns their size."""
        found = self._found
        if (found.packs or self._snapshots) and store_owner(self._source) != found.store:
            raise SettingsError(
                f"The object store {self._source.url} is not the one that the data was flushed to. "
                "Give this command the settings of the server, such as --store or --config."
            )
        self.missing = MissingObjects(self._source, self._target, found.packs, self._snapshots)
        return self.missing.size_bytes

    def copy_packs(self, advance: Advance) -> None:
        self.missing.copy_packs(partial(self._copied, "backup.pack_copied"), advance)
        failpoint("backup.packs_copied")

    def copy_snapshots(self, advance: Advance) -> None:
        self.missing.copy_snapshots(partial(self._copied, "backup.snapshot_copied"), advance)
        failpoint("backup.snapshots_copied")

    def copy_keys(self, path: Path) -> None:
        """Copy the file with the keys of subscriptions, if there is one."""
        with suppress(FileNotFoundError):
            data = path.read_bytes()
            name = f"{self._prefix}{path.name}"
            self._put(name, data)
            self._keys = CopiedObject(name, len(data), xxh3_64_hexdigest(data))

    def _copied(self, name: str) -> None:
        failpoint(name)
        if self._clock.now_ms() - self._renewed_ms > _RENEW_MS and self._writer is not None:
            self._pin(self._writer)

    # 5. The manifest.

    def finish(self) -> Manifest:
        """Write the manifest, which makes it a backup."""
        found = self._found
        streams, appends, size_bytes = self._counted()
        manifest = Manifest(
            id=self.id,
            holdfast=__version__,
            created=timestamp(self._begun_ms),
            position=self.position,
            store=found.store,
            streams=found.streams + streams,
            stored_bytes=found.stored_bytes + size_bytes,
            log_appends=appends,
            catalog=self._catalog,
            log=self._log,
            packs=found.packs,
            snapshots=self._snapshots,
            keys=self._keys,
        )
        # Should it be there although this fails, it is the first thing to go.
        self._written.append(f"{self._prefix}manifest.json")
        write_manifest(self._target, manifest)
        # What is written now is part of a backup, and stays.
        self._written = []
        failpoint("backup.finished")
        return manifest


def _is_there(path: Path) -> bool:
    """Whether there is a catalog; an empty file is one that is just being created."""
    return path.exists() and path.stat().st_size > 0


class Restore:
    """One restore; call its steps in order."""

    def __init__(
        self, manifest: Manifest, source: ObjectStore, target: ObjectStore, identity: str
    ) -> None:
        self._manifest = manifest
        self._source = source
        self._target = target
        # What the target is marked with: the same in every attempt.
        self._identity = identity
        # Set by `find_missing`.
        self.missing = MissingObjects(source, target, [], [])

    def claim_store(self) -> None:
        """Check that the store is empty or claimed by this restore, and mark it."""
        url = self._target.url
        owner = store_owner(self._target)
        if owner and owner != self._identity:
            raise SettingsError(
                f"The object store {url} belongs to another data directory. Choose an empty one "
                "with --store, such as another prefix."
            )
        for prefix in (BACKUPS_PREFIX, PACKS_PREFIX, SNAPSHOTS_PREFIX):
            if not owner and next(self._target.list(prefix), None) is not None:
                raise SettingsError(
                    f"The object store {url} is not empty: it holds {prefix.rstrip('/')}. Choose "
                    "an empty one with --store, such as another prefix."
                )
        if claim(self._target, self._identity) != self._identity:
            raise SettingsError(f"The object store {url} was just claimed by another server.")

    def find_missing(self) -> int:
        """Find the objects to copy; returns their size."""
        manifest = self._manifest
        self.missing = MissingObjects(
            self._source, self._target, manifest.packs, manifest.snapshots
        )
        return self.missing.size_bytes

    def copy_packs(self, advance: Advance) -> None:
        self.missing.copy_packs(partial(failpoint, "restore.pack_copied"), advance)
        failpoint("restore.packs_copied")

    def copy_snapshots(self, advance: Advance) -> None:
        self.missing.copy_snapshots(partial(failpoint, "restore.snapshot_copied"), advance)
        failpoint("restore.snapshots_copied")

    def copy_catalog(self, path: Path, advance: Advance) -> None:
        """Write the catalog and set its store; if the backup has none, create an empty one."""
        for suffix in _SIDE_FILES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        if self._manifest.catalog is not None:
            download(self._source, self._manifest.catalog, path, advance)
        adopt_catalog(path, self._identity)
        failpoint("restore.catalog_copied")

    def copy_log(self, directory: Path, advance: Advance) -> None:
        """Write the log to an existing directory, whose files are removed first."""
        for path in directory.iterdir():
            path.unlink()
        for segment in self._manifest.log:
            download(self._source, segment, directory / PurePosixPath(segment.name).name, advance)
        failpoint("restore.log_copied")

    def copy_keys(self, path: Path, advance: Advance) -> None:
        """Write the keys of subscriptions, if the backup has them."""
        if self._manifest.keys is not None:
            download(self._source, self._manifest.keys, path, advance)
