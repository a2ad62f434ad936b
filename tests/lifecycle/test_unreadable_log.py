"""A log that cannot be read: the server says so in one line, and changes nothing."""

import asyncio
import errno
import os
import subprocess
from pathlib import Path

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.log.directory import Files
from holdfast.node.server import Server
from holdfast.settings import ServerSettings, Settings
from tests.server_process import ServerProcess


@pytest.fixture
def data_dir(start_server, stream_on) -> Path:
    """The data of a server that has ended, with a stream in it."""
    server = start_server()
    stream_on(server, body=b"kept")
    server.stop()
    return server.data_dir


@pytest.fixture
def segment(data_dir) -> Path:
    """A segment of the log that is a directory."""
    segment = min((data_dir / "log").glob("*.seg"))
    segment.rename(data_dir / "aside")
    segment.mkdir()
    return segment


def restore(segment: Path) -> None:
    segment.rmdir()
    (segment.parent.parent / "aside").rename(segment)


def test_server_says_so_in_one_line(segment, data_dir) -> None:
    server = ServerProcess(data_dir)
    finished = subprocess.run(
        server._arguments, capture_output=True, text=True, timeout=30, check=False
    )
    server._stderr.close()
    assert finished.returncode == 1
    assert finished.stdout == ""
    (line,) = [line for line in finished.stderr.splitlines() if line.startswith("holdfast: ")]
    assert "cannot be read" in line
    assert segment.name in line
    assert "Traceback" not in finished.stderr
    restore(segment)
    with ServerProcess(data_dir):
        pass


def test_embedded_app_raises_it(segment, data_dir) -> None:
    async def enter() -> None:
        async with holdfast.asgi(data_dir=str(data_dir)):
            pass

    with pytest.raises(HoldfastError, match="cannot be read"):
        asyncio.run(enter())
    restore(segment)
    asyncio.run(enter())


class HalfReadable(Files):
    """Files of which the disk gives the first bytes, but not the rest."""

    def read(self, path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_disk_that_fails_during_recovery_is_told(data_dir) -> None:
    settings = Settings(server=ServerSettings(listen="127.0.0.1:0", data_dir=data_dir))

    async def scenario() -> None:
        server = Server(settings, SystemClock(), HalfReadable())
        await server.start()
        try:
            with pytest.raises(HoldfastError, match=r"cannot be read: .*Input/output error"):
                await server.ready()
        finally:
            await server.stop()

    asyncio.run(scenario())
