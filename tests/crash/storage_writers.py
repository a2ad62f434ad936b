"""Writers of what storage has to carry: bytes of every value, closures, producers, deadlines."""

import json
import time
from random import Random

from tests.crash.wire import Wire
from tests.crash.writers import JSON, Appender, Changer, Producer, Writer

BINARY = "application/octet-stream"


def make_writers(seed: int) -> list[Writer]:
    """Some of every kind."""
    return [
        Appender("shared", authors=2),
        Producer("text", window=4),
        Producer("json", window=2, messages=3),
        Bytes("bytes"),
        Runs("runs"),
        ShortLived("short-lived"),
        *(Changer(f"changer-{index}", seed * 100 + index) for index in range(2)),
    ]


def _producer(seq: int) -> dict[str, str]:
    return {"producer_id": "writer", "producer_epoch": "0", "producer_seq": str(seq)}


class Bytes(Writer):
    """An idempotent producer of bytes of every value, in pieces of every length."""

    LONGEST_BYTES = 4000

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._answered = self._sent = 0

    def _piece(self, seq: int) -> bytes:
        random = Random(seq)
        return random.randbytes(random.randint(1, self.LONGEST_BYTES))

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            created = await wire.request("PUT", self.path, content_type=BINARY)
            assert created.status in {200, 201}
            while not self.stopping:
                self._sent = max(self._sent, self._answered + 1)
                answer = await self._append(wire, self._answered)
                assert answer in {200, 204}
                self._answered += 1
                self.promises += 1

    async def _append(self, wire: Wire, seq: int) -> int:
        piece = self._piece(seq)
        headers = _producer(seq)
        return (await wire.request("POST", self.path, piece, content_type=BINARY, **headers)).status

    async def check(self, wire: Wire) -> None:
        if not self._answered:
            return
        assert await self._append(wire, self._answered - 1) == 204
        pages, closed = await wire.read_all(self.path)
        assert not closed
        stored = b"".join(pages)
        expected = b""
        for seq in range(self._answered):
            expected += self._piece(seq)
        possible = [expected]
        if self._sent > self._answered:
            possible.append(expected + self._piece(self._answered))
        assert stored in possible


class Runs(Writer):
    """JSON streams with a TTL, each written to some times and closed by its producer."""

    STEPS = 4
    CHECKED = 20

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._finished = 0
        self._answered = self._sent = 0

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            while not self.stopping:
                path = f"{self.path}/{self._finished}"
                if not self._answered:
                    created = await wire.request("PUT", path, content_type=JSON, stream_ttl="3600")
                    assert created.status in {200, 201}
                while self._answered < self.STEPS:
                    self._sent = max(self._sent, self._answered + 1)
                    assert await self._step(wire, path, self._answered) in {200, 204}
                    self._answered += 1
                    self.promises += 1
                self._finished, self._answered, self._sent = self._finished + 1, 0, 0

    async def _step(self, wire: Wire, path: str, seq: int) -> int:
        headers = _producer(seq)
        if seq == self.STEPS - 1:
            headers["stream_closed"] = "true"
        answer = await wire.request(
            "POST", path, b'{"step":%d}' % seq, content_type=JSON, **headers
        )
        return answer.status

    async def check(self, wire: Wire) -> None:
        for index in range(self._finished)[-self.CHECKED :]:
            path = f"{self.path}/{index}"
            head = await wire.request("HEAD", path)
            assert head.status == 200
            assert head.headers["stream-ttl"] == "3600"
            assert await self._step(wire, path, self.STEPS - 1) == 204, "no duplicate any more"
            assert await _steps(wire, path) == (list(range(self.STEPS)), True)
        if self._answered:
            steps, closed = await _steps(wire, f"{self.path}/{self._finished}")
            assert steps in (list(range(self._answered)), list(range(self._sent)))
            assert closed == (len(steps) == self.STEPS)


async def _steps(wire: Wire, path: str) -> tuple[list[int], bool]:
    pages, closed = await wire.read_all(path)
    return [each["step"] for page in pages for each in json.loads(page)], closed


class ShortLived(Writer):
    """Streams that nobody touches after they are made, and that are gone a second later."""

    TTL_S = 1
    CHECKED = 30

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._serial = 0
        # When each was known to be there, which is not before its second began.
        self._answered_s: dict[int, float] = {}

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            while not self.stopping:
                self._serial += 1
                created = await wire.request(
                    "PUT", self._path(self._serial), b"soon gone", stream_ttl=str(self.TTL_S)
                )
                assert created.status == 201
                self._answered_s[self._serial] = time.monotonic()
                self.promises += 1

    def _path(self, serial: int) -> str:
        return f"{self.path}/{serial}"

    async def check(self, wire: Wire) -> None:
        chosen = list(self._answered_s.items())
        for serial, answered_s in [*chosen[: self.CHECKED], *chosen[-self.CHECKED :]]:
            is_over = time.monotonic() > answered_s + self.TTL_S
            head = await wire.request("HEAD", self._path(serial))
            assert head.status == 404 or (head.status == 200 and not is_over)
