"""A full disk: refusals that say when to come back, nothing half-written, and then all is well."""

import asyncio
from pathlib import Path

import pytest

from tests.crash.conftest import MakeServer
from tests.crash.small_disk import take_the_rest
from tests.crash.wire import Answer, Wire
from tests.server_process import ServerProcess

BODY_BYTES = 60_000
AUTHORS = 4
SETTINGS = {
    "wal_segment_bytes": 1024 * 1024,
    "wal_ballast_bytes": 131_072,
    "wal_zero_ahead_bytes": 65_536,
}
TEXT = "text/plain"


class Author:
    """Appends to a stream of its own, and remembers what was acknowledged."""

    def __init__(self, index: int) -> None:
        self.path = f"/v1/stream/author/{index}"
        self.acknowledged: list[bytes] = []
        self._letter = b"%c" % (ord("a") + index)

    async def append(self, wire: Wire) -> Answer:
        number = b"%d" % len(self.acknowledged)
        body = number + self._letter * (BODY_BYTES - len(number))
        answer = await wire.request("POST", self.path, body, content_type=TEXT)
        if answer.status == 204:
            self.acknowledged.append(body)
        return answer

    async def fill_up(self, server: ServerProcess) -> Answer:
        """Append until that is refused; the refusal is returned."""
        async with await Wire.open(server.port) as wire:
            assert (await wire.request("PUT", self.path, content_type=TEXT)).status == 201
            while (answer := await self.append(wire)).status == 204:
                pass
            return answer

    async def check(self, server: ServerProcess) -> None:
        """Exactly what was acknowledged is there: nothing is missing, nothing was added."""
        async with await Wire.open(server.port) as wire:
            pages, closed = await wire.read_all(self.path)
            assert b"".join(pages) == b"".join(self.acknowledged)
            assert not closed
            head = await wire.request("HEAD", self.path)
            assert head.tail == sum(map(len, self.acknowledged))

    async def append_once(self, server: ServerProcess) -> Answer:
        async with await Wire.open(server.port) as wire:
            return await self.append(wire)


def check_refusal(answer: Answer) -> None:
    assert answer.status == 503, answer
    assert int(answer.headers["retry-after"]) >= 1
    assert b'"commit_failed"' in answer.body


async def fill(server: ServerProcess) -> list[Author]:
    """Fill the disk from several connections at once; none of them is left with a promise."""
    authors = [Author(index) for index in range(AUTHORS)]
    for refusal in await asyncio.gather(*(author.fill_up(server) for author in authors)):
        check_refusal(refusal)
    for author in authors:
        await author.check(server)
    return authors


def test_full_disk_refuses_then_takes_appends_again(make_server: MakeServer, disk: Path) -> None:
    server = make_server(disk / "data", **SETTINGS)

    async def scenario() -> None:
        authors = await fill(server)
        take_the_rest(disk / "other")
        for author in authors:
            check_refusal(await author.append_once(server))
            await author.check(server)
        (disk / "other").unlink()
        for author in authors:
            answer = await author.append_once(server)
            assert answer.status == 204, answer
            await author.check(server)
        server.kill()
        server.start()
        for author in authors:
            await author.check(server)
            assert (await author.append_once(server)).status == 204

    server.start()
    asyncio.run(scenario())


@pytest.mark.slow
def test_what_was_refused_stays_away_after_a_restart(make_server: MakeServer, disk: Path) -> None:
    server = make_server(disk / "data", **SETTINGS)

    async def scenario() -> None:
        authors = await fill(server)
        server.kill()
        (disk / "other").unlink()
        server.start()
        for author in authors:
            await author.check(server)
            assert (await author.append_once(server)).status == 204
            await author.check(server)

    server.start()
    asyncio.run(scenario())


@pytest.mark.slow
def test_a_server_can_be_restarted_on_a_full_disk(make_server: MakeServer, disk: Path) -> None:
    """It serves reads and refuses writes, as it did before the restart."""
    server = make_server(disk / "data", **SETTINGS)

    async def scenario() -> None:
        authors = await fill(server)
        server.kill()
        take_the_rest(disk / "other")
        server.start()
        for author in authors:
            await author.check(server)
            check_refusal(await author.append_once(server))
        (disk / "other").unlink()
        for author in authors:
            assert (await author.append_once(server)).status == 204
            await author.check(server)

    server.start()
    asyncio.run(scenario())
