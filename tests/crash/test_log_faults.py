"""A disk that fails and hangs under concurrent producers: what was answered 200 or 204 is there.

Everything is real but the faults: connections, handlers, shard, commit thread, files.
"""

import asyncio
import errno
import json
import shutil
from pathlib import Path
from random import Random

import pytest
import uvloop

from holdfast.engine.reading import read
from holdfast.log.directory import Files
from holdfast.testing import HangingFiles
from tests.crash.faulty_server import open_shard, serve
from tests.crash.wire import Answer, Wire
from tests.thorough import some_of

TEXT = "text/plain"
JSON = "application/json"
FAULTS = 40
PAUSE_S = 0.002


class RetryingProducer:
    """Sends every number until it is answered, several at a time; the last one closes."""

    def __init__(self, name: str, *, window: int, is_json: bool = False) -> None:
        self.name = f"faults/{name}"
        self.answered: set[int] = set()
        self.refusals = 0
        self._window = window
        self._is_json = is_json
        self._sent = 0
        self._last: int | None = None

    def body(self, seq: int) -> bytes:
        return b"[%d,%d]" % (seq, seq) if self._is_json else b"%d\n" % seq

    def stored(self, seqs: int) -> bytes:
        form = b"%d\x1e%d\x1e" if self._is_json else b"%d\n"
        return b"".join(form % ((seq,) * form.count(b"%")) for seq in range(seqs))

    async def run(self, port: int, over: asyncio.Event) -> None:
        """Go on until the trouble is over and all is answered."""
        path, kind = f"/v1/stream/{self.name}", JSON if self._is_json else TEXT
        async with await Wire.open(port) as wire:
            while (await wire.request("PUT", path, content_type=kind)).status == 503:
                await asyncio.sleep(PAUSE_S)
            while self._last not in self.answered:
                for seq in (seqs := self._next(over)):
                    closing = {"stream_closed": "true"} if seq == self._last else {}
                    ids = {"producer_id": "p", "producer_epoch": "0", "producer_seq": str(seq)}
                    wire.send("POST", path, self.body(seq), content_type=kind, **ids, **closing)
                for seq in seqs:
                    self._note(seq, await wire.answer())
                await asyncio.sleep(PAUSE_S)

    def _next(self, over: asyncio.Event) -> range:
        if over.is_set() and self._last is None:
            self._last = self._sent
        first = 0
        while first in self.answered:
            first += 1
        end = first + self._window
        if self._last is not None:
            end = min(end, self._last + 1)
        self._sent = max(self._sent, end)
        return range(first, end)

    def _note(self, seq: int, answer: Answer) -> None:
        if answer.status in {200, 204}:
            self.answered.add(seq)
            return
        # A number behind one that failed is a gap; the retry sends both.
        assert answer.status in {503, 409}, answer
        assert "producer-expected-seq" in answer.headers or "retry-after" in answer.headers
        self.refusals += 1

    def check(self, data: bytes, closed: bool, answered: set[int]) -> None:
        """Every number once and in order, at least all those that were answered."""
        count = data.count(b"\x1e") // 2 if self._is_json else data.count(b"\n")
        assert max(answered, default=-1) < count <= self._sent
        assert data == self.stored(count)
        assert closed == (count - 1 == self._last), "data and closure are one record"


class PlainAuthor:
    """Sends each append once, and takes the server at its word."""

    def __init__(self, name: str) -> None:
        self.name = f"faults/{name}"
        self.answered: set[int] = set()
        self.failed: set[int] = set()
        self.unknown: set[int] = set()

    async def run(self, port: int, over: asyncio.Event) -> None:
        """Go on until the trouble is over."""
        path, number = f"/v1/stream/{self.name}", 0
        async with await Wire.open(port) as wire:
            while (await wire.request("PUT", path, content_type=TEXT)).status == 503:
                await asyncio.sleep(PAUSE_S)
            while not over.is_set():
                answer = await wire.request("POST", path, b"%d\n" % number, content_type=TEXT)
                self._note(number, answer)
                number += 1
                await asyncio.sleep(PAUSE_S)

    def _note(self, number: int, answer: Answer) -> None:
        if answer.status == 204:
            self.answered.add(number)
            return
        assert answer.status == 503, answer
        code = json.loads(answer.body)["error"]["code"]
        # Refused at once while an earlier outcome is unknown, or refused by the log.
        assert code in {"unavailable", "commit_failed", "commit_unknown"}
        (self.unknown if code == "commit_unknown" else self.failed).add(number)

    def check(self, data: bytes, closed: bool, answered: set[int]) -> None:
        """What was answered is there, what was refused is not, the unknown may be; in order."""
        found = [int(line) for line in data.splitlines()]
        assert found == sorted(set(found)), "twice, or out of order"
        assert answered <= set(found)
        assert not self.failed & set(found), "refused, and stored all the same"
        assert not closed


Author = RetryingProducer | PlainAuthor


def make_authors() -> list[Author]:
    return [
        RetryingProducer("one", window=1),
        RetryingProducer("eight", window=8),
        RetryingProducer("thirty-two", window=32),
        RetryingProducer("json", window=4, is_json=True),
        PlainAuthor("plain-1"),
        PlainAuthor("plain-2"),
    ]


def check_image(log_directory: Path, image: Path, authors: list[Author]) -> None:
    """Recover a copy of the log, as a crash at this moment would leave it."""
    answered = [set(author.answered) for author in authors]
    shutil.copytree(log_directory, image)
    state = open_shard(image, Files()).state
    for author, theirs in zip(authors, answered, strict=True):
        stream = state.by_name.get(author.name)
        if stream is None:
            assert not theirs
        else:
            author.check(read(stream, 0, stream.tail), stream.closed, theirs)


async def check_server(port: int, authors: list[Author]) -> None:
    async with await Wire.open(port) as wire:
        for author in authors:
            pages, closed = await wire.read_all(f"/v1/stream/{author.name}")
            data = b"".join(pages)
            if author.name.endswith("json"):
                data = data.strip(b"[]").replace(b",", b"\x1e") + b"\x1e"
            author.check(data, closed, author.answered)


async def make_trouble(
    files: HangingFiles, log_directory: Path, authors: list[Author], over: asyncio.Event
) -> None:
    """Let the disk fail in every way, one after the other, and look at it while it hangs."""
    random = Random(len(authors))
    plain = [author for author in authors if isinstance(author, PlainAuthor)]
    for number in range(FAULTS):
        await more_of([author.answered for author in authors], random.randint(1, 40))
        match number % 5:
            case 0:
                files.fail("write", random.choice([errno.EIO, errno.ENOSPC]))
            case 1:
                files.fail("sync")
            case 2:
                # The header of the next segment fails as well: the outcome is unknown for a while.
                files.fail("sync")
                files.fail("create")
            case 3:
                files.fail("sync", times=2)
            case 4:
                files.hold(random.choice(["write", "sync"]))
                assert await asyncio.to_thread(files.wait_until_stuck, 5.0)
                check_image(log_directory, log_directory.with_name(f"image-{number}"), authors)
                if number % 2:
                    # Longer than the server is patient.
                    await more_of([author.unknown for author in plain], 1)
                files.release()
    await more_of([author.answered for author in authors], 1)
    over.set()


async def more_of(numbers: list[set[int]], count: int) -> None:
    """Wait until so many numbers have been added to these sets."""
    enough = sum(map(len, numbers)) + count
    async with asyncio.timeout(10):
        while sum(map(len, numbers)) < enough:
            await asyncio.sleep(PAUSE_S)


@pytest.mark.parametrize("attempt", some_of(range(2), 1))
def test_nothing_answered_is_lost_to_faults(tmp_path: Path, attempt: int) -> None:
    log_directory, files, authors = tmp_path / "log", HangingFiles(), make_authors()

    async def scenario() -> None:
        over = asyncio.Event()
        async with serve(tmp_path, files) as port:
            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                for author in authors:
                    tasks.create_task(author.run(port, over))
                tasks.create_task(make_trouble(files, log_directory, authors, over))
            await check_server(port, authors)
        async with serve(tmp_path) as port:
            await check_server(port, authors)

    uvloop.run(scenario())
    plain = [author for author in authors if isinstance(author, PlainAuthor)]
    assert all(author.answered and author.failed and author.unknown for author in plain)
    assert all(author.refusals for author in authors if isinstance(author, RetryingProducer))


FAULTS_BY_NAME = {
    "write": ("write", errno.EIO),
    "full": ("write", errno.ENOSPC),
    "sync": ("sync", errno.EIO),
}


@pytest.mark.parametrize(("operation", "code"), FAULTS_BY_NAME.values(), ids=FAULTS_BY_NAME.keys())
def test_refused_append_is_gone_if_the_server_crashes_right_then(
    tmp_path: Path, operation: str, code: int
) -> None:
    """All its bytes may be on disk: the answer waits until they are disowned."""
    log_directory, files, path = tmp_path / "log", HangingFiles(), "/v1/stream/faults/a"

    def stored_after_a_crash(image: str) -> bytes:
        shutil.copytree(log_directory, tmp_path / image)
        stream = open_shard(tmp_path / image, Files()).state.by_name["faults/a"]
        return read(stream, 0, stream.tail)

    async def scenario() -> None:
        async with serve(tmp_path, files) as port, await Wire.open(port) as wire:
            assert (await wire.request("PUT", path, b"a", content_type=TEXT)).status == 201
            files.fail(operation, code)
            refused = await wire.request("POST", path, b"b", content_type=TEXT)
            assert refused.status == 503
            assert b"commit_failed" in refused.body
            assert stored_after_a_crash("then") == b"a"
            assert (await wire.request("POST", path, b"c", content_type=TEXT)).status == 204
            assert stored_after_a_crash("later") == b"ac"
            assert (await wire.read_all(path))[0] == [b"ac"]

    uvloop.run(scenario())
