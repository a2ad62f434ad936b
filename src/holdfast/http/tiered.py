"""A node's storage: catalog, object store and storage process, opened and closed together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.errors import StoreError
from holdfast.storage.catalog import Catalog
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.cold import ColdReader
from holdfast.storage.commands import Setup
from holdfast.storage.open_objects import (
    open_objects,
    open_ranges,
    open_uploads,
    probe,
    take_ownership,
)
from holdfast.storage.process import StorageProcess
from holdfast.storage.snapshot_store import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.log.directory import DataDirectory
    from holdfast.settings import Settings

_log = logging.getLogger(__name__)


class TieredStorage:
    """What is behind the log."""

    def __init__(self, settings: Settings, directory: DataDirectory, clock: Clock) -> None:
        self._settings = settings.storage
        _prepare(settings, directory, clock)
        self.catalog = Catalog(directory.catalog_path)
        self._ranges = open_ranges(settings.storage, directory.objects_path)
        self._cold = ColdReader(self.catalog, self._ranges, settings.storage.block_cache_bytes)
        self.snapshots = SnapshotStore(
            open_uploads(settings.storage, directory.objects_path),
            self._ranges,
            clock,
            settings.storage.snapshot_cache_bytes,
        )
        setup = Setup(
            str(directory.catalog_path),
            str(directory.objects_path),
            settings.storage,
            settings.log,
        )
        self._process = StorageProcess(setup, clock, (directory.lock_descriptor,))

    def attach(self, shard: Shard) -> None:
        """Have the shard flush to this storage and read from it."""
        settings = self._settings
        shard.attach(
            self._process,
            self._cold,
            soft_bytes=settings.hot_bytes_soft,
            hard_bytes=settings.hot_bytes_hard,
            flush_age_s=settings.flush_age_s,
            streams_cached_max=settings.streams_cached_max,
        )

    def start(self, post: Callable[..., object]) -> None:
        """Start the storage process, once the log is replayed."""
        self._process.start(post)

    def stop(self) -> None:
        """End the storage process; for a thread."""
        self._process.stop()

    def close(self) -> None:
        """Let go of store and catalog."""
        self._ranges.close()
        self.snapshots.close()
        self.catalog.close()


def _prepare(settings: Settings, directory: DataDirectory, clock: Clock) -> None:
    """Make the catalog if there is none, and see that the store is the one it belongs to."""
    store = open_objects(settings.storage, directory.objects_path)
    catalog = CatalogWriter(directory.catalog_path)
    try:
        probe(store)
        take_ownership(catalog, store, f"{clock.random_u64():016x}")
    except StoreError as error:
        # What is in memory and in the log can be served; the rest comes back with the store.
        _log.warning("the object store does not answer, going on without it: %s", error.message)
    finally:
        catalog.close()
