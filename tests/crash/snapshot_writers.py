"""A writer that publishes a snapshot of all it has written, again and again."""

from dataclasses import dataclass

from tests.crash.wire import Answer, Wire

_PIECE = b"piece %08d\n"
_SIZE = len(_PIECE % 0)


@dataclass(frozen=True)
class Moment:
    """How far a writer was: what was answered, and what was sent."""

    answered: int
    sent: int


class Snapshots:
    """Appends a piece and then publishes a snapshot at its end; a fork keeps an early one."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._path = f"/{bucket}/states"
        self._fork = f"/{bucket}/fork"
        self.answered = self.sent = 0

    def moment(self) -> Moment:
        return Moment(self.answered, self.sent)

    @staticmethod
    def state(count: int) -> bytes:
        """The body of the snapshot behind so many pieces."""
        return b"%d pieces\n" % count * (1 + count % 40)

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            for path in (f"/{self._bucket}", self._path):
                answer = await wire.request("PUT", path, content_type="text/plain")
                assert answer.status == 201, answer
            while True:
                self.sent += 1
                answer = await wire.request(
                    "POST", self._path, _PIECE % self.answered, content_type="text/plain"
                )
                assert answer.status == 204, answer
                await self._publish(wire, self.answered + 1)
                self.answered += 1
                if self.answered == 1:
                    forked = await wire.request("PUT", self._fork, stream_forked_from=self._path)
                    assert forked.status == 201, forked

    async def _publish(self, wire: Wire, count: int) -> None:
        place = f"{self._path}/snapshot/{count * _SIZE:020d}"
        answer = await wire.request("PUT", place, self.state(count), content_type="text/plain")
        assert answer.status == 204, answer

    async def check(self, wire: Wire, before: Moment, after: Moment) -> None:
        count = await self._visible(wire, self._path)
        assert before.answered <= count <= after.sent
        assert await self._visible(wire, self._fork) == 1
        answer = await wire.request("GET", f"{self._path}?offset={0:020d}")
        assert answer.status == 410
        tail = (await wire.request("HEAD", self._path)).tail
        assert tail in {count * _SIZE, (count + 1) * _SIZE}
        if tail > count * _SIZE:
            answer = await wire.request("GET", f"{self._path}?offset={count * _SIZE:020d}")
            assert answer.body == _PIECE % count
        await self._publish(wire, tail // _SIZE)

    async def _visible(self, wire: Wire, path: str) -> int:
        """How many pieces the visible snapshot stands for, whose body is what it should be."""
        answer: Answer = await wire.request("GET", f"{path}/snapshot")
        assert answer.status == 307, answer
        offset = answer.headers["stream-snapshot-offset"]
        count = int(offset) // _SIZE
        body = await wire.request("GET", f"{path}/snapshot/{offset}")
        assert (body.status, body.body) == (200, self.state(count))
        return count
