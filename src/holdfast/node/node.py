"""Everything behind a listener, opened and closed together: log, storage, shard and app.

The native server and the ASGI app each run one node.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from holdfast.engine.shard import Shard
from holdfast.errors import HoldfastError, StoreError
from holdfast.http.access.gate import open_gate
from holdfast.http.app import App
from holdfast.log.directory import DataDirectory
from holdfast.log.file import FileLog
from holdfast.log.interface import MemoryLog
from holdfast.node.proxy import open_proxy
from holdfast.objects.store import MemoryObjects, PostedRanges
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
from holdfast.storage.warm_catalog import WarmCatalog
from holdfast.subscriptions.service import open_subscriptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.log.directory import Files
    from holdfast.log.interface import Log
    from holdfast.settings import Settings

_log = logging.getLogger(__name__)
_SWEEP_S: Final = 300.0


class Node:
    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        files: Files | None = None,
    ) -> None:
        self._settings = settings
        self._files = files
        self._clock = clock
        self._directory: DataDirectory | None = None
        self._storage: TieredStorage | None = None
        self._memory_store: MemoryObjects | None = None
        self._closed = False
        if settings.server.durability == "fsync":
            self._directory = DataDirectory.open(settings.server.data_dir)
            self._directory.warn_if_exposed()
        else:
            _log.warning("in memory only: nothing survives the end of this process")
        try:
            self._gate = open_gate(settings, clock)
            shard = self._open_shard()
            self._subscriptions = open_subscriptions(
                shard,
                clock,
                settings.webhooks,
                None if self._directory is None else self._directory.path,
            )
            self._mount = open_proxy(shard, settings, clock)
        except OSError as error:
            self._release()
            raise self._unreadable(error) from error
        except BaseException:
            self._release()
            raise
        self.app = App(
            shard,
            settings,
            clock,
            self._open_snapshots(),
            self._subscriptions,
            self._gate,
            self._mount,
        )
        self._started = False

    def _open_shard(self) -> Shard:
        settings = self._settings
        if self._directory is not None:
            self._storage = TieredStorage(settings, self._directory, self._clock)
        shard = Shard(
            self._open_log(),
            self._clock,
            batch_bytes_max=settings.wal.batch_bytes_max,
            pending_bytes_max=settings.wal.pending_bytes_max,
            commit_timeout_s=settings.wal.commit_timeout_s,
            ttl_is_fixed=settings.server.stream_ttl == "fixed",
            catalog=None if self._storage is None else self._storage.catalog,
            bucket_bytes_max=settings.limits.bucket_bytes_max,
            bucket_streams_max=settings.limits.bucket_streams_max,
            producers_max=settings.limits.producers_max,
            producer_idle_s=settings.limits.producer_idle_s,
        )
        if self._storage is not None:
            self._storage.attach(shard)
        return shard

    def _open_snapshots(self) -> SnapshotStore:
        if self._storage is not None:
            return self._storage.snapshots
        store = MemoryObjects(self._clock)
        ranges = PostedRanges(store, self._clock.call_soon)
        self._memory_store = store
        return SnapshotStore(store, ranges, self._clock, 0)

    def _sweep_snapshots(self) -> None:
        """Remove replaced snapshots from memory; without storage there is no garbage collection."""
        store = self._memory_store
        if store is None or self._closed:
            return
        self._clock.call_later(_SWEEP_S, self._sweep_snapshots)
        streams = self.app.shard.state.by_number.values()
        needed = {each.snapshot.object for each in streams if each.snapshot is not None}
        needed |= self.app.snapshots.unpublished
        for info in list(store.list()):
            if info.name not in needed:
                store.remove(info.name)

    def _open_log(self) -> Log:
        if self._directory is None:
            return MemoryLog()
        wal = self._settings.wal
        return FileLog(
            self._directory.log_path,
            self._clock,
            segment_bytes=wal.segment_bytes,
            ballast_bytes=wal.ballast_bytes,
            zero_ahead_bytes=wal.zero_ahead_bytes,
            files=self._files,
            records_end=True,
        )

    def _unreadable(self, error: OSError) -> HoldfastError:
        data_dir = self._settings.server.data_dir
        return HoldfastError(f"The log in {data_dir} cannot be read: {error}.")

    async def recover(self) -> None:
        """Replay the log in a thread, then take requests."""
        shard = self.app.shard
        started_s = self._clock.monotonic_s()
        if self._gate is not None:
            await self._gate.start()
        try:
            batches = await asyncio.to_thread(shard.recover)
            await asyncio.to_thread(self._subscriptions.recover)
        except OSError as error:
            raise self._unreadable(error) from error
        post = asyncio.get_running_loop().call_soon_threadsafe
        if self._storage is not None:
            self._storage.start(post)
        shard.start(post)
        self._subscriptions.start()
        self._mount.start()
        self.app.batches.start()
        self._sweep_snapshots()
        self._started = True
        self.app.not_ready = ""
        _log.info(
            "recovered %d batches in %.2f s, %d streams in all",
            batches,
            self._clock.monotonic_s() - started_s,
            shard.state.streams,
        )

    def end_live_readers(self) -> None:
        """Send live readers a last control event, and accept no more of them."""
        self.app.end_live_readers()
        # No new wakes; workers that were woken still get responses.
        self._subscriptions.stop()
        self._mount.stop()
        self.app.batches.stop()

    async def finish_writes(self, timeout_s: float) -> None:
        """Wait until no write is pending, up to a time limit."""
        if not self._started:
            return
        idle = asyncio.Event()
        self.app.shard.commits.stop_pausing()
        self.app.shard.commits.when_idle(idle.set)
        try:
            async with asyncio.timeout(timeout_s):
                await idle.wait()
        except TimeoutError:
            _log.warning("some writes were still waiting for the log")

    async def close(self) -> None:
        """Close log, storage and data directory, waiting in threads for what blocks."""
        self._closed = True
        self.app.batches.stop()
        self._subscriptions.stop()
        await self._subscriptions.close()
        await self._mount.close()
        self.app.shard.stop()
        if self._gate is not None:
            await self._gate.stop()
        await asyncio.to_thread(self.app.shard.log.close)
        if self._storage is not None:
            await asyncio.to_thread(self._storage.stop)
        self._release()

    def _release(self) -> None:
        if self._storage is not None:
            self._storage.close()
        if self._directory is not None:
            self._directory.close()


class TieredStorage:
    """Catalog, object store and storage process, opened and closed together."""

    def __init__(self, settings: Settings, directory: DataDirectory, clock: Clock) -> None:
        self._settings = settings.storage
        _prepare(settings, directory, clock)
        self.catalog = WarmCatalog(directory.catalog_path, clock)
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
            settings.limits,
            settings.log,
        )
        self._process = StorageProcess(setup, clock, (directory.lock_descriptor,))

    def attach(self, shard: Shard) -> None:
        """Have the shard flush to this storage and read from it."""
        self._shard = shard
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
        """Start the storage process and the catalog's threads, once the log is replayed."""
        self.catalog.start(post)
        self._process.start(post, self._held_snapshots)

    def _held_snapshots(self, names: list[str]) -> set[str]:
        """Those of these snapshots that the catalog may not know although they are needed."""
        tier = self._shard.tier
        assert tier is not None, "a shard with storage has a tier"
        return tier.unflushed_snapshots.union(self.snapshots.unpublished).intersection(names)

    def stop(self) -> None:
        """End the storage process; blocks."""
        self._process.stop()

    def close(self) -> None:
        self._ranges.close()
        self.snapshots.close()
        self.catalog.close()


def _prepare(settings: Settings, directory: DataDirectory, clock: Clock) -> None:
    """Create the catalog if there is none, and check that it belongs to this store."""
    store = open_objects(settings.storage, directory.objects_path)
    catalog = CatalogWriter(directory.catalog_path)
    try:
        probe(store)
        take_ownership(catalog, store, f"{clock.random_u64():016x}")
    except StoreError as error:
        # What is in memory and in the log can be served until the store is back.
        _log.warning("the object store cannot be reached, starting without it: %s", error.message)
    finally:
        catalog.close()
