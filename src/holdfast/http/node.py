"""A node: data directory, log, shard and application, opened and closed together.

The native server and the ASGI app both run one of these.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from holdfast.engine.shard import Shard
from holdfast.errors import HoldfastError
from holdfast.http.access.gate import open_gate
from holdfast.http.app import App
from holdfast.http.tiered import TieredStorage
from holdfast.log.directory import DataDirectory
from holdfast.log.file import FileLog
from holdfast.log.memory import MemoryLog
from holdfast.objects.memory_objects import MemoryObjects, PostedRanges
from holdfast.storage.snapshot_store import SnapshotStore
from holdfast.subscriptions.assembly import open_subscriptions

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.http.mount import OpenMount
    from holdfast.log.files import Files
    from holdfast.log.interface import Log
    from holdfast.settings import Settings

_log = logging.getLogger(__name__)
_SWEEP_S: Final = 300.0


class Node:
    """Everything behind the listener."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        files: Files | None = None,
        open_mount: OpenMount | None = None,
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
            self._mount = None if open_mount is None else open_mount(shard, settings, clock)
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
        """Without storage nobody else removes snapshots that others have replaced."""
        store = self._memory_store
        if store is None or self._closed:
            return
        self._clock.call_later(_SWEEP_S, self._sweep_snapshots)
        streams = self.app.shard.state.by_number.values()
        needed = {each.snapshot.object for each in streams if each.snapshot is not None}
        # One that was just uploaded may not be published yet.
        before_ms = self._clock.now_ms() - int(_SWEEP_S * 1000)
        for info in list(store.list()):
            if info.name not in needed and info.modified_ms < before_ms:
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
        )

    def _unreadable(self, error: OSError) -> HoldfastError:
        place = self._settings.server.data_dir
        return HoldfastError(f"The log in {place} cannot be read: {error}.")

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
        if self._mount is not None:
            self._mount.start()
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
        """Take no more live readers, and have the present ones say goodbye."""
        self.app.end_live_readers()
        # Nothing new is begun; whoever was woken still gets answers.
        self._subscriptions.stop()
        if self._mount is not None:
            self._mount.stop()

    async def finish_writes(self, timeout_s: float) -> None:
        """Wait until nothing is pending, as long as that is reasonable."""
        if not self._started:
            return
        idle = asyncio.Event()
        self.app.shard.when_idle(idle.set)
        try:
            async with asyncio.timeout(timeout_s):
                await idle.wait()
        except TimeoutError:
            _log.warning("some writes were still waiting for the log")

    async def close(self) -> None:
        """Close log, storage and data directory; threads and child are waited for elsewhere."""
        self._closed = True
        self._subscriptions.stop()
        await self._subscriptions.close()
        if self._mount is not None:
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
