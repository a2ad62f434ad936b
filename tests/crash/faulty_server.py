"""A server in this process whose disk fails and hangs on command."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.engine.shard import Shard
from holdfast.http.app import App
from holdfast.http.listener import Listener
from holdfast.log.file import FileLog
from holdfast.log.files import DiskFiles, Files
from holdfast.settings import ServerSettings, Settings, WalSettings
from holdfast.testing import FaultyFiles

COMMIT_TIMEOUT_S = 0.15


class HangingFiles(FaultyFiles):
    """Files whose operations can also be made to wait."""

    def __init__(self) -> None:
        super().__init__()
        self._held: str | None = None
        self._stuck = threading.Event()
        self._released = threading.Event()

    def hold(self, operation: str) -> None:
        """Make the next call of this operation wait for `release`."""
        self._stuck.clear()
        self._released.clear()
        self._held = operation

    def wait_until_stuck(self, timeout_s: float) -> bool:
        """Wait until a call waits; whether one does."""
        return self._stuck.wait(timeout_s)

    def release(self) -> None:
        """Let the call that waits go on."""
        self._held = None
        self._released.set()

    def take(self, operation: str) -> OSError | None:
        """Wait if told to, then fail if told to."""
        if operation == self._held:
            self._stuck.set()
            assert self._released.wait(30), "nobody released it"
        return super().take(operation)


def open_shard(log_directory: Path, files: Files) -> Shard:
    """A shard over the log in this directory, with its log replayed."""
    log_directory.mkdir(exist_ok=True)
    log = FileLog(
        log_directory,
        SystemClock(),
        segment_bytes=65_536,
        ballast_bytes=4096,
        zero_ahead_bytes=4096,
        files=files,
    )
    shard = Shard(
        log,
        SystemClock(),
        batch_bytes_max=8192,
        pending_bytes_max=1 << 24,
        commit_timeout_s=COMMIT_TIMEOUT_S,
    )
    shard.recover()
    return shard


@asynccontextmanager
async def serve(log_directory: Path, files: Files | None = None) -> AsyncIterator[int]:
    """Serve the shard of this directory; the port is given."""
    settings = Settings(
        server=ServerSettings(listen="127.0.0.1:0", data_dir=log_directory.parent),
        wal=WalSettings(commit_timeout_s=COMMIT_TIMEOUT_S),
    )
    shard = open_shard(log_directory, files or DiskFiles())
    shard.start(asyncio.get_running_loop().call_soon_threadsafe)
    app = App(shard, settings, SystemClock())
    app.not_ready = ""
    listener = Listener(app)
    await listener.open()
    try:
        yield int(listener.url.rpartition(":")[2])
    finally:
        listener.stop_accepting()
        await listener.close(1.0)
        await asyncio.to_thread(shard.log.close)
