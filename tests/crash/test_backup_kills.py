"""Backups of a server at work, and kills of backups and restores: what was promised is in them.

The server flushes every commit, merges whatever it can and removes what is out of use at once, so
that packs, catalog and log change under the backup all the time.
"""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import httpx
import pytest

from holdfast import failpoints
from tests.crash.conftest import MakeServer
from tests.crash.snapshot_writers import Moment, Snapshots
from tests.crash.wire import Answer, Wire
from tests.server_process import COMMAND, ServerProcess
from tests.thorough import some_of

HOLDFAST = COMMAND[0]
BUSY = {
    "hot_bytes_soft": 1,
    "merge_packs": 2,
    "garbage_grace": 0,
    "streams_cached_max": 1,
    "wal_segment_bytes": 16_384,
    "wal_zero_ahead_bytes": 4096,
    "log_level": "error",
}
# A backup that takes its time between steps, so that packs go out of use and the log is overtaken.
SLOWLY = """
import time
from holdfast import failpoints
from holdfast.cli.main import run
often = ("backup.pack_copied", "backup.snapshot_copied")
failpoints.hook = lambda name: None if name in often else time.sleep(0.15)
run()
"""
TTL_S = 86_400
RUN_STEPS = 3
BACKUPS = 5


class Line:
    """A producer that writes each piece to one stream, and once that is answered to another.

    So the second never has more than the first. Retries of what is stored are duplicates.
    """

    def __init__(self, name: str, content_type: str) -> None:
        self.paths = (f"/v1/stream/{name}/first", f"/v1/stream/{name}/second")
        self._type = content_type
        self.answered = self.sent = 0

    def moment(self) -> Moment:
        return Moment(self.answered, self.sent)

    def piece(self, seq: int) -> bytes:
        if self._type == "application/json":
            return b'[{"seq":%d},[]]' % seq
        return b"%d," % seq * (1 + seq % 50)

    def stored(self, count: int) -> bytes:
        """What a read of everything gives, where this many pieces are stored."""
        if self._type == "application/json":
            return b"[%s]" % b",".join(self.piece(seq)[1:-1] for seq in range(count))
        return b"".join(map(self.piece, range(count)))

    def _count(self, data: bytes) -> int:
        """How many pieces these bytes are, if they are all whole."""
        if self._type == "application/json":
            return data.count(b'"seq"')
        count = size = 0
        while size < len(data):
            size += len(self.piece(count))
            count += 1
        return count

    async def append(self, wire: Wire, path: str, seq: int) -> Answer:
        return await wire.request(
            "POST",
            path,
            self.piece(seq),
            content_type=self._type,
            producer_id="line",
            producer_epoch="0",
            producer_seq=str(seq),
        )

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            for path in self.paths:
                created = await wire.request("PUT", path, content_type=self._type)
                assert created.status == 201
            while True:
                self.sent += 1
                for path in self.paths:
                    answer = await self.append(wire, path, self.answered)
                    assert answer.status == 200, answer
                self.answered += 1

    async def check(self, wire: Wire, before: Moment, after: Moment) -> None:
        counts = [await self._check_stream(wire, path, before, after) for path in self.paths]
        assert counts[0] - 1 <= counts[1] <= counts[0], "not the state of one moment"

    async def _check_stream(self, wire: Wire, path: str, before: Moment, after: Moment) -> int:
        pages, closed = await wire.read_all(path)
        assert not closed
        data = b"".join(pages)
        if self._type == "application/json":
            data = data.replace(b"][", b",")
        count = self._count(data)
        assert data == self.stored(count)
        assert before.answered <= count <= after.sent
        for seq in {0, max(0, before.answered - 1), count - 1}:
            assert (await self.append(wire, path, seq)).status == 204, "no duplicate any more"
        assert (await self.append(wire, path, count)).status == 200
        return count


class Runs:
    """Streams with a TTL that are written to some times, closed by their producer, or deleted."""

    def __init__(self, name: str) -> None:
        self._path = f"/v1/stream/{name}/"
        self.answered = self.sent = 0

    def moment(self) -> Moment:
        return Moment(self.answered, self.sent)

    async def _step(self, wire: Wire, path: str, step: int) -> Answer:
        headers = {"stream_closed": "true"} if step == RUN_STEPS - 1 else {}
        return await wire.request(
            "POST",
            path,
            b"step %d\n" % step,
            content_type="text/plain",
            producer_id="run",
            producer_epoch="3",
            producer_seq=str(step),
            **headers,
        )

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            while True:
                path = f"{self._path}{self.answered}"
                self.sent += 1
                created = await wire.request(
                    "PUT", path, content_type="text/plain", stream_ttl=str(TTL_S)
                )
                assert created.status == 201
                for step in range(RUN_STEPS):
                    assert (await self._step(wire, path, step)).status == 200
                if self.answered % 3 == 0:
                    assert (await wire.request("DELETE", path)).status == 204
                self.answered += 1

    async def check(self, wire: Wire, before: Moment, after: Moment) -> None:
        for number in range(before.answered)[-60:]:
            await self._check_finished(wire, number)
        absent = await wire.request("HEAD", f"{self._path}{after.sent}")
        assert absent.status == 404, "it was made after the backup"

    async def _check_finished(self, wire: Wire, number: int) -> None:
        path = f"{self._path}{number}"
        head = await wire.request("HEAD", path)
        if number % 3 == 0:
            assert head.status == 404
            return
        assert head.headers["stream-ttl"] == str(TTL_S)
        assert (await self._step(wire, path, RUN_STEPS - 1)).status == 204
        pages, closed = await wire.read_all(path)
        assert closed
        assert b"".join(pages) == b"".join(b"step %d\n" % step for step in range(RUN_STEPS))


Writers = list[Line | Runs | Snapshots]


def make_writers() -> Writers:
    return [
        Line("text", "text/plain"),
        Line("json", "application/json"),
        Line("bytes", "application/octet-stream"),
        Runs("runs"),
        Snapshots("states"),
    ]


@asynccontextmanager
async def writing(server: ServerProcess, writers: Writers) -> AsyncIterator[None]:
    """Have all write, and garbage removed again and again, for as long as this lasts."""

    async def collect() -> None:
        async with await Wire.open(server.port) as wire:
            while True:
                assert (await wire.request("POST", "/cluster/collect-garbage")).status == 204
                await asyncio.sleep(0.02)

    tasks = [
        asyncio.create_task(each) for each in (collect(), *(w.write(server.port) for w in writers))
    ]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(writers: Writers, answered: int) -> None:
    """Wait until each has been answered that often."""
    async with asyncio.timeout(60):
        while any(writer.answered < answered for writer in writers):
            await asyncio.sleep(0.01)


async def run(*arguments: object, killed_at: str = "", slowly: bool = False) -> str:
    """Run `holdfast`, which ends well or is killed at a failpoint; what it printed."""
    env = dict(os.environ)
    if killed_at:
        env[failpoints.VARIABLE] = f"{killed_at}=kill"
    program = (sys.executable, "-c", SLOWLY) if slowly else (HOLDFAST,)
    process = await asyncio.create_subprocess_exec(
        *program,
        *map(str, arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    )
    output, errors = await process.communicate()
    expected = -signal.SIGKILL if killed_at else 0
    assert process.returncode == expected, (process.returncode, errors.decode())
    return output.decode()


async def check_restored(
    make_server: MakeServer,
    data_dir: Path,
    writers: Writers,
    before: list[Moment],
    after: list[Moment],
) -> None:
    with make_server(data_dir) as server:
        async with await Wire.open(server.port) as wire:
            for writer, first, last in zip(writers, before, after, strict=True):
                await writer.check(wire, first, last)


async def flushed(server: ServerProcess) -> None:
    """Have packs to copy, however late the storage process was."""
    answer = await asyncio.to_thread(httpx.post, f"{server.url}/cluster/flush", timeout=30)
    answer.raise_for_status()


def pins(data_dir: Path) -> int:
    with closing(sqlite3.connect(data_dir / "catalog.sqlite")) as catalog:
        return catalog.execute("SELECT count(*) FROM pins").fetchone()[0]


@pytest.mark.slow
def test_backups_of_a_busy_server_hold_all_that_was_acknowledged_before(
    make_server: MakeServer, tmp_path: Path
) -> None:
    place = tmp_path / "backups"
    server, writers = make_server(**BUSY), make_writers()
    taken: list[tuple[str, list[Moment], list[Moment]]] = []

    async def scenario() -> None:
        async with writing(server, writers):
            for number in range(BACKUPS):
                await until(writers, 10 * (number + 1))
                before = [writer.moment() for writer in writers]
                backup = ("backup", place, "--data-dir", server.data_dir, "--json")
                output = await run(*backup, slowly=number % 2 == 0)
                after = [writer.moment() for writer in writers]
                taken.append((json.loads(output)["id"], before, after))
        assert pins(server.data_dir) == 0
        for backup, before, after in taken:
            restored = tmp_path / backup
            await run("restore", place, "--backup", backup, "--data-dir", restored)
            await run("check", "--data-dir", restored)
            await check_restored(make_server, restored, writers, before, after)

    server.start()
    asyncio.run(scenario())
    assert json.loads(_manifest(place, taken[-1][0]))["packs"], "nothing was flushed"


def _manifest(place: Path, backup: str) -> str:
    return (place / "backups" / backup / "manifest.json").read_text()


def names(prefix: str) -> list[str]:
    return [name for name in failpoints.NAMES if name.startswith(prefix)]


@pytest.mark.slow
def test_a_killed_backup_is_no_backup_and_the_next_one_works(
    make_server: MakeServer, tmp_path: Path
) -> None:
    place = tmp_path / "backups"
    server, writers = make_server(**BUSY), make_writers()

    async def scenario() -> None:
        backup = ("backup", place, "--data-dir", server.data_dir)
        async with writing(server, writers):
            await until(writers, 10)
            await flushed(server)
            for name in names("backup."):
                await run(*backup, killed_at=name)
                listed = json.loads(await run("backup", "--list", place, "--json"))
                assert len(listed) == (name == "backup.finished")
            before = [writer.moment() for writer in writers]
            made = json.loads(await run(*backup, "--json"))
            after = [writer.moment() for writer in writers]
        assert pins(server.data_dir) == len(names("backup.")), "they run out by themselves"
        restored = tmp_path / "restored"
        await run("restore", place, "--backup", made["id"], "--data-dir", restored)
        await check_restored(make_server, restored, writers, before, after)

    server.start()
    asyncio.run(scenario())


@pytest.mark.slow
def test_a_killed_restore_is_no_data_directory_and_can_be_run_again(
    make_server: MakeServer, tmp_path: Path
) -> None:
    place = tmp_path / "backups"
    server, writers = make_server(**{**BUSY, "merge_packs": 50}), make_writers()

    async def scenario() -> None:
        async with writing(server, writers):
            await until(writers, 20)
            await flushed(server)
            before = [writer.moment() for writer in writers]
            await run("backup", place, "--data-dir", server.data_dir)
            after = [writer.moment() for writer in writers]
        restored = tmp_path / "restored"
        restore = ("restore", place, "--data-dir", restored, "--json")
        for name in names("restore."):
            await run(*restore, killed_at=name)
            refused = subprocess.run(
                [HOLDFAST, "serve", "--listen", "127.0.0.1:0", "--data-dir", restored],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert refused.returncode == 1
            assert "run holdfast restore again" in refused.stderr
        again = json.loads(await run(*restore))
        assert again["packs"] > again["packs_copied"] == 0
        assert again["snapshots"] > again["snapshots_copied"] == 0
        await check_restored(make_server, restored, writers, before, after)

    server.start()
    asyncio.run(scenario())


@pytest.mark.parametrize("moment", some_of(["locked", "copying"], 1))
def test_a_restore_killed_at_any_other_moment_can_be_run_again(
    make_server: MakeServer, tmp_path: Path, moment: str
) -> None:
    """Between making the directory and the first pack there is no failpoint."""
    place, restored = tmp_path / "backups", tmp_path / "restored"
    server, writers = make_server(**BUSY), make_writers()

    async def scenario() -> None:
        async with writing(server, writers):
            await until(writers, 5)
            before = [writer.moment() for writer in writers]
            await run("backup", place, "--data-dir", server.data_dir)
            after = [writer.moment() for writer in writers]
        restore = ("restore", place, "--data-dir", restored)
        process = await asyncio.create_subprocess_exec(HOLDFAST, *map(str, restore))
        awaited = restored / ("lock" if moment == "locked" else "objects")
        while not awaited.exists() and process.returncode is None:
            await asyncio.sleep(0)
        with suppress(ProcessLookupError):
            process.kill()
        if await process.wait():
            await run(*restore)
        await check_restored(make_server, restored, writers, before, after)

    server.start()
    asyncio.run(scenario())
