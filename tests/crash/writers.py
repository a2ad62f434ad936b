"""Writers that know what they were promised, and check it after every crash.

Each owns its streams. `write` goes on until the server is gone, or `stopping` is set; `check`
compares what the server holds then with the answers that were received before.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from random import Random

from tests.crash.wire import Wire

TEXT = "text/plain"
JSON = "application/json"

State = tuple[bytes, bool] | None


class Writer(ABC):
    """Something that writes to streams below a path of its own."""

    def __init__(self, name: str) -> None:
        self.path = f"/v1/stream/crash/{name}"
        # How many answers made a promise: a test that got none has shown nothing.
        self.promises = 0
        # Set to have `write` end behind an answer, so that no outcome is uncertain.
        self.stopping = False

    @abstractmethod
    async def write(self, port: int) -> None:
        """Write until told to stop, or until that ends with `Lost`."""

    @abstractmethod
    async def check(self, wire: Wire) -> None:
        """Check that every promise is kept."""


class Appender(Writer):
    """Plain appends, never sent again: each is there at most once, if answered exactly once.

    Several authors share the stream, each with `window` appends under way on its connection.
    """

    def __init__(self, name: str, *, authors: int = 1, window: int = 1) -> None:
        super().__init__(name)
        self._sent = [0] * authors
        self._window = window
        # (author, number) of an acknowledged append, and the tail that was its answer.
        self._acknowledged: dict[tuple[int, int], int] = {}
        self._known = b""

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            created = await wire.request("PUT", self.path, content_type=TEXT)
            assert created.status in {200, 201}
        await asyncio.gather(*(self._author(port, each) for each in range(len(self._sent))))

    async def _author(self, port: int, author: int) -> None:
        async with await Wire.open(port) as wire:
            while not self.stopping:
                first = self._sent[author]
                numbers = range(first, first + self._window)
                self._sent[author] = numbers.stop
                for number in numbers:
                    wire.send("POST", self.path, b"%d:%d\n" % (author, number), content_type=TEXT)
                for number in numbers:
                    answer = await wire.answer()
                    assert answer.status == 204, answer
                    self._acknowledged[author, number] = answer.tail
                    self.promises += 1

    async def check(self, wire: Wire) -> None:
        if not any(self._sent):
            return
        pages, closed = await wire.read_all(self.path)
        data = b"".join(pages)
        assert not closed
        assert data.startswith(self._known), "bytes that were read before have changed"
        self._known = data
        tails: dict[tuple[int, int], int] = {}
        last, at = [-1] * len(self._sent), 0
        for line in data.splitlines(keepends=True):
            author, number = (int(part) for part in line.split(b":"))
            at += len(line)
            assert last[author] < number < self._sent[author], "twice, or out of order"
            last[author] = number
            tails[author, number] = at
        missing = self._acknowledged.items() - tails.items()
        assert not missing, f"acknowledged, but not there or elsewhere: {missing}"


class Producer(Writer):
    """An idempotent producer, which sends again what was not answered: all is there once."""

    def __init__(self, name: str, *, window: int = 1, messages: int = 0) -> None:
        super().__init__(name)
        self._window = window
        # Messages of a JSON batch; 0 for lines of text.
        self._messages = messages
        self._type = JSON if messages else TEXT
        self._answered = 0
        self._sent = 0

    def _body(self, seq: int) -> bytes:
        if not self._messages:
            return b"%d\n" % seq
        return json.dumps([[seq, part] for part in range(self._messages)]).encode()

    def _append(self, wire: Wire, seq: int) -> None:
        wire.send(
            "POST",
            self.path,
            self._body(seq),
            content_type=self._type,
            producer_id="writer",
            producer_epoch="0",
            producer_seq=str(seq),
        )

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            created = await wire.request("PUT", self.path, content_type=self._type)
            assert created.status in {200, 201}
            uncertain = self._sent
            while not self.stopping:
                seqs = range(self._answered, self._answered + self._window)
                self._sent = max(self._sent, seqs.stop)
                for seq in seqs:
                    self._append(wire, seq)
                for seq in seqs:
                    answer = await wire.answer()
                    assert answer.status == 200 or (answer.status == 204 and seq < uncertain)
                    assert int(answer.headers["producer-seq"]) >= seq
                    self._answered = seq + 1
                    self.promises += 1

    async def check(self, wire: Wire) -> None:
        if not self._sent:
            return
        pages = await self._check_content(wire)
        if self._answered:
            self._append(wire, self._answered - 1)
            again = await wire.answer()
            assert again.status == 204, again
            assert await self._check_content(wire) == pages, "a duplicate was stored"

    async def _check_content(self, wire: Wire) -> list[bytes]:
        pages, closed = await wire.read_all(self.path)
        assert not closed
        if self._messages:
            found = [message for page in pages for message in json.loads(page)]
            assert len(found) % self._messages == 0, "half of a batch"
            stored = len(found) // self._messages
            expected = [[seq, part] for seq in range(stored) for part in range(self._messages)]
        else:
            found = [int(line) for line in b"".join(pages).splitlines()]
            stored = len(found)
            expected = list(range(stored))
        assert found == expected
        assert self._answered <= stored <= self._sent
        return pages


class Changer(Writer):
    """Creates, appends to, closes and deletes streams, one after the other.

    A stream's state is its content and whether it is closed, or None where there is no stream. A
    crash leaves the state before the change that was under way, or the one after it.
    """

    CHANGES_PER_STREAM = 12
    OLD_STREAMS_CHECKED = 30

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name)
        self._random = Random(seed)
        self._settled: list[State] = []
        self._state: State = None
        self._next: State = None
        self._serial = 0

    def _path(self, index: int) -> str:
        return f"{self.path}/{index}"

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            while not self.stopping:
                for _ in range(self.CHANGES_PER_STREAM):
                    await self._change(wire)
                self._settled.append(self._state)
                self._state = self._next = None

    async def _change(self, wire: Wire) -> None:
        path, state = self._path(len(self._settled)), self._state
        body = b"%d;" % self._serial
        self._serial += 1
        if state is None:
            closed = self._random.random() < 0.1
            await self._do(wire, (body, closed), "PUT", path, body, _closing(closed))
        elif self._random.random() < 0.1:
            await self._do(wire, None, "DELETE", path, b"", {})
        elif state[1]:
            refused = await wire.request("POST", path, body, content_type=TEXT)
            assert refused.status == 409
            assert refused.headers["stream-closed"] == "true"
        else:
            closed = self._random.random() < 0.15
            if closed and self._random.random() < 0.5:
                body = b""
            await self._do(wire, (state[0] + body, closed), "POST", path, body, _closing(closed))

    async def _do(
        self, wire: Wire, after: State, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> None:
        self._next = after
        answer = await wire.request(method, path, body, content_type=TEXT, **headers)
        assert answer.status in {201, 204}, (method, self._state, answer)
        self._state = after
        self.promises += 1

    async def check(self, wire: Wire) -> None:
        found = await _state_of(wire, self._path(len(self._settled)))
        assert found in (self._state, self._next)
        self._state = self._next = found
        indices = range(len(self._settled))
        # The latest, which nobody has checked yet, and some of the others.
        chosen = {*indices[-self.OLD_STREAMS_CHECKED :]}
        chosen.update(self._random.sample(indices, min(len(indices), self.OLD_STREAMS_CHECKED)))
        for index in sorted(chosen):
            assert await _state_of(wire, self._path(index)) == self._settled[index]


def _closing(closed: bool) -> dict[str, str]:
    return {"stream_closed": "true"} if closed else {}


async def _state_of(wire: Wire, path: str) -> State:
    head = await wire.request("HEAD", path)
    if head.status == 404:
        return None
    pages, closed = await wire.read_all(path)
    assert ("stream-closed" in head.headers) == closed
    data = b"".join(pages)
    assert head.tail == len(data)
    return data, closed
