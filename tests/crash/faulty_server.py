"""A server in this process whose disk fails and hangs on command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.engine.shard import Shard
from holdfast.log.directory import Files
from holdfast.log.file import FileLog
from holdfast.node.server import Server
from holdfast.settings import ServerSettings, Settings, WalSettings

COMMIT_TIMEOUT_S = 0.15


def settings_for(data_dir: Path) -> Settings:
    """Small segments and batches, and little patience with the disk."""
    return Settings(
        server=ServerSettings(listen="127.0.0.1:0", data_dir=data_dir),
        wal=WalSettings(
            segment_bytes=65_536,
            ballast_bytes=4096,
            zero_ahead_bytes=4096,
            batch_bytes_max=8192,
            commit_timeout_s=COMMIT_TIMEOUT_S,
        ),
    )


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
async def serve(data_dir: Path, files: Files | None = None) -> AsyncIterator[int]:
    """Serve this data directory; the port is given."""
    server = Server(settings_for(data_dir), SystemClock(), files)
    await server.start()
    try:
        await server.ready()
        yield int(server.url.rpartition(":")[2])
    finally:
        await server.stop()
