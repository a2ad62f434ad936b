"""A restore: a backup becomes a data directory again, with an object store of its own.

1. Claim the object store, which must be empty or claimed by this restore before.
2. Copy packs and snapshots, except those that an attempt before this one has copied.
3. Copy the catalog, and have it belong to that store.
4. Copy the log.

Every step may be the last and can be done again. That the directory is not taken for a data
directory before all of them are done is the caller's business.
"""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from holdfast.errors import SettingsError
from holdfast.failpoints import failpoint
from holdfast.objects.store import store_owner
from holdfast.storage.catalog_copy import adopt_catalog, download
from holdfast.storage.garbage import PACKS_PREFIX
from holdfast.storage.manifest import BACKUPS_PREFIX
from holdfast.storage.object_copy import copy_objects, missing_objects
from holdfast.storage.open_objects import claim
from holdfast.storage.pack_copy import verified_pieces
from holdfast.storage.snapshot_bodies import copied_pieces
from holdfast.storage.snapshot_store import SNAPSHOTS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.objects.store import ObjectStore
    from holdfast.storage.manifest import CopiedObject, CopiedPack, Manifest

    Advance = Callable[[int], object]

# What SQLite may leave beside a file that is only partly written.
_SIDE_FILES: Final = ("", "-wal", "-shm", "-journal")


class Restore:
    """One restore under way; its steps are called in order."""

    def __init__(
        self, manifest: Manifest, source: ObjectStore, target: ObjectStore, identity: str
    ) -> None:
        self._manifest = manifest
        self._source = source
        self._target = target
        # What the target is marked with: the same in every attempt.
        self._identity = identity
        # The packs and snapshots that no attempt before this one has copied.
        self.missing: list[CopiedPack] = []
        self.missing_snapshots: list[CopiedObject] = []

    def claim_store(self) -> None:
        """See that nobody else's packs are in the store, and mark it."""
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
        """Find out what has to be copied; how many bytes that is."""
        target, manifest = self._target, self._manifest
        self.missing = missing_objects(target, PACKS_PREFIX, manifest.packs)
        self.missing_snapshots = missing_objects(target, SNAPSHOTS_PREFIX, manifest.snapshots)
        packs_bytes = sum(each.size_bytes for each in self.missing)
        return packs_bytes + sum(each.size_bytes for each in self.missing_snapshots)

    def copy_packs(self, advance: Advance) -> None:
        """Copy the packs that are missing."""
        pieces = partial(verified_pieces, self._source)
        copied = partial(failpoint, "restore.pack_copied")
        copy_objects(self._target, self.missing, pieces, copied, advance)
        failpoint("restore.packs_copied")

    def copy_snapshots(self, advance: Advance) -> None:
        """Copy the snapshots that are missing."""
        pieces = partial(copied_pieces, self._source)
        copied = partial(failpoint, "restore.snapshot_copied")
        copy_objects(self._target, self.missing_snapshots, pieces, copied, advance)
        failpoint("restore.snapshots_copied")

    def copy_catalog(self, path: Path, advance: Advance) -> None:
        """Write the catalog, which knows its store; without one in the backup it is a new one."""
        for suffix in _SIDE_FILES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        if self._manifest.catalog is not None:
            download(self._source, self._manifest.catalog, path, advance)
        adopt_catalog(path, self._identity)
        failpoint("restore.catalog_copied")

    def copy_log(self, directory: Path, advance: Advance) -> None:
        """Write the log's segments; the directory is there, and what else is in it goes."""
        for path in directory.iterdir():
            path.unlink()
        for segment in self._manifest.log:
            download(self._source, segment, directory / PurePosixPath(segment.name).name, advance)
        failpoint("restore.log_copied")
