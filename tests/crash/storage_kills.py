"""What the tests of storage under kills share: tiny limits, the child's id, orphans, checking."""

import asyncio
import os
import signal
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from tests.crash.wire import Lost, Wire
from tests.crash.writers import Writer
from tests.server_process import COMMAND, ServerProcess
from tests.storage_stats import DEADLINE_S

# Every commit is flushed, everything is merged, what is unused is garbage, nothing is cached.
TINY = {
    "hot_bytes_soft": 1,
    "block_cache_bytes": 4096,
    "streams_cached_max": 1,
    "merge_packs": 2,
    "garbage_grace": 0,
    "log_level": "warning",
}


def child_of(server: ServerProcess) -> int | None:
    """The id of the server's storage process, unless there is none just now."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name, which is in brackets and may hold anything: state, parent.
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == server.pid and state != "Z":
            return int(status.parent.name)
    return None


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_child(server: ServerProcess) -> bool:
    """Kill the storage process; False if there is none just now."""
    pid = child_of(server)
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def orphans(server: ServerProcess) -> set[str]:
    """Packs in the store that no row of the catalog names."""
    uri = f"file:{server.data_dir / 'catalog.sqlite'}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as catalog:
        known = {name for (name,) in catalog.execute("SELECT name FROM packs")}
    root = server.data_dir / "objects"
    return {str(path.relative_to(root)) for path in root.glob("packs/*")} - known


async def check_promises(server: ServerProcess, writers: list[Writer]) -> None:
    """Everything that was promised is kept."""
    async with await Wire.open(server.port) as wire:
        for writer in writers:
            await writer.check(wire)


async def write_while(
    server: ServerProcess, writers: list[Writer], during: Callable[[], Awaitable[object]]
) -> None:
    """Let all write until `during` is over; they end, or the server has; raise what went wrong."""
    for writer in writers:
        writer.stopping = False
    tasks = [asyncio.create_task(writer.write(server.port)) for writer in writers]
    try:
        await during()
    finally:
        for writer in writers:
            writer.stopping = True
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, Lost):
            raise outcome
        assert outcome is None or not server.running, "a connection was lost for no reason"


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, while others go on."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


def check_data(server: ServerProcess) -> None:
    """`holdfast check` finds nothing wrong with the data of a server that has ended."""
    program, _ = COMMAND
    found = subprocess.run(
        [program, "check", *server._arguments[len(COMMAND) :]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
