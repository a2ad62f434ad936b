"""Writers of snapshots, forks and buckets: what was acknowledged is there, wholly or not at all."""

from email.parser import BytesParser
from random import Random

from tests.crash.wire import Answer, Wire
from tests.crash.writers import TEXT, Writer

CHECKED = 15


def make_publishers(seed: int) -> list[Writer]:
    """Some of every kind."""
    return [
        Publisher("small", seed),
        Publisher("large", seed + 1, longest_bytes=200_000),
        Forks("forks"),
        Buckets("buckets"),
    ]


def parts(answer: Answer) -> list[bytes]:
    """The bodies of the parts of a bootstrap."""
    assert answer.status == 200, answer
    head = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
    message = BytesParser().parsebytes(head + answer.body)
    assert not message.defects
    return [part.get_payload(decode=True) for part in message.get_payload()]


class BucketWriter(Writer):
    """A writer with a bucket of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.bucket = f"/crash-{name}"

    async def make_bucket(self, wire: Wire) -> None:
        created = await wire.request("PUT", self.bucket)
        assert created.status in {201, 409}


class Publisher(BucketWriter):
    """Appends lines, and now and then publishes a snapshot of all so far."""

    LINE = b"line %08d\n"
    LINE_BYTES = len(LINE % 0)

    def __init__(self, name: str, seed: int, longest_bytes: int = 200) -> None:
        super().__init__(name)
        self._random = Random(seed)
        self._longest_bytes = longest_bytes
        self._path = f"{self.bucket}/stream"
        # Lines that were acknowledged, and sent; the snapshot's lines likewise.
        self._answered = self._sent = 0
        self._published = 0
        self._publishing = 0

    def _state(self, count: int) -> bytes:
        return (b"%d lines;" % count) * (1 + Random(count).randrange(self._longest_bytes // 10))

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            await self.make_bucket(wire)
            created = await wire.request("PUT", self._path, content_type=TEXT)
            assert created.status in {200, 201}
            while not self.stopping:
                self._sent = self._answered + 1
                body = self.LINE % self._answered
                appended = await wire.request("POST", self._path, body, content_type=TEXT)
                assert appended.status == 204, appended
                self._answered = self._sent
                self.promises += 1
                if self._random.random() < 0.4:
                    await self._publish(wire)

    async def _publish(self, wire: Wire) -> None:
        count = self._random.randint(self._published, self._answered)
        self._publishing = count
        place = f"{self._path}/snapshot/{count * self.LINE_BYTES:020d}"
        answer = await wire.request("PUT", place, self._state(count), content_type="a/b")
        assert answer.status == 204, answer
        self._published = count
        self.promises += 1

    async def check(self, wire: Wire) -> None:
        if not self._sent:
            return
        head = await wire.request("HEAD", self._path)
        if head.status == 404:
            assert not self._answered
            return
        lines, rest = divmod(head.tail, self.LINE_BYTES)
        assert not rest
        assert lines in {self._answered, self._sent}
        self._answered = self._sent = lines
        found = int(head.headers.get("stream-snapshot-offset", "0")) // self.LINE_BYTES
        assert found in {self._published, self._publishing}
        self._published = self._publishing = found
        has_one = "stream-snapshot-offset" in head.headers
        await self._check_snapshot(wire, has_one=has_one)

    async def _check_snapshot(self, wire: Wire, *, has_one: bool) -> None:
        count, at = self._published, self._published * self.LINE_BYTES
        state = self._state(count) if has_one else b""
        snapshot = await wire.request("GET", f"{self._path}/snapshot/{at:020d}")
        assert snapshot.status == (200 if has_one else 404)
        assert not has_one or snapshot.body == state
        first, *messages = parts(await wire.request("GET", f"{self._path}/bootstrap"))
        assert first == state
        assert messages == [self.LINE % number for number in range(count, self._answered)]
        whole = await wire.request("GET", f"{self._path}?offset=-1")
        assert whole.status == (410 if at else 200)
        rest = await wire.request("GET", f"{self._path}?offset={at:020d}")
        assert b"".join(messages).startswith(rest.body)
        assert rest.status == 200


class Forks(BucketWriter):
    """Makes a stream, forks it, appends to the fork, and then trims or deletes the source."""

    STEPS = 4

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._round = 0
        # Steps of this round that were acknowledged, and sent.
        self._answered = self._sent = 0

    def _paths(self, number: int) -> tuple[str, str]:
        return f"{self.bucket}/source-{number}", f"{self.bucket}/fork-{number}"

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            await self.make_bucket(wire)
            while not self.stopping:
                while self._answered < self.STEPS:
                    self._sent = self._answered + 1
                    await self._step(wire, self._round, self._answered)
                    self._answered = self._sent
                    self.promises += 1
                self._round, self._answered, self._sent = self._round + 1, 0, 0

    async def _step(self, wire: Wire, number: int, step: int) -> None:
        source, fork = self._paths(number)
        if step == 0:
            answer = await wire.request("PUT", source, b"source;", content_type=TEXT)
        elif step == 1:
            answer = await wire.request("PUT", fork, stream_forked_from=source)
        elif step == 2:
            answer = await wire.request("POST", fork, b"fork;", content_type=TEXT)
        elif number % 2:
            answer = await wire.request("DELETE", source)
        else:
            answer = await wire.request("PUT", f"{source}/snapshot/{7:020d}", b"trimmed")
        assert answer.status in {201, 204}, (step, answer)

    async def check(self, wire: Wire) -> None:
        for number in range(self._round)[-CHECKED:]:
            assert await self._steps(wire, number) == self.STEPS
        if self._sent:
            found = await self._steps(wire, self._round)
            assert found in {self._answered, self._sent}
            self._answered = self._sent = found

    async def _steps(self, wire: Wire, number: int) -> int:
        """How many steps of a round are done; between two of them there is nothing."""
        source, fork = self._paths(number)
        head = await wire.request("HEAD", source)
        if head.status == 404:
            return 0
        fork_head = await wire.request("HEAD", fork)
        if fork_head.status == 404:
            return 1
        pages, closed = await wire.read_all(fork)
        assert not closed
        content = b"".join(pages)
        assert content in {b"source;", b"source;fork;"}
        assert parts(await wire.request("GET", f"{fork}/bootstrap"))[0] == b""
        if content == b"source;":
            return 2
        if head.status == 410:
            return 4
        trimmed = await wire.request("GET", f"{source}?offset=-1")
        return 4 if trimmed.status == 410 else 3


class Buckets(Writer):
    """Creates buckets, a stream in each, and deletes both of every other one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._round = 0
        self._answered = self._sent = 0

    def _bucket(self, number: int) -> str:
        return f"/crash-bucket-{number}"

    def _steps_of(self, number: int) -> list[tuple[str, str]]:
        bucket = self._bucket(number)
        made = [("PUT", bucket), ("PUT", f"{bucket}/stream")]
        return [*made, ("DELETE", f"{bucket}/stream"), ("DELETE", bucket)][: 2 + 2 * (number % 2)]

    async def write(self, port: int) -> None:
        async with await Wire.open(port) as wire:
            while not self.stopping:
                steps = self._steps_of(self._round)
                while self._answered < len(steps):
                    self._sent = self._answered + 1
                    method, path = steps[self._answered]
                    answer = await wire.request(method, path)
                    assert answer.status in {201, 204}, (method, path, answer)
                    self._answered = self._sent
                    self.promises += 1
                self._round, self._answered, self._sent = self._round + 1, 0, 0

    async def check(self, wire: Wire) -> None:
        for number in range(self._round)[-CHECKED:]:
            expected = {"404"} if number % 2 else {"1"}
            assert {await self._streams(wire, number)} == expected
        if not self._sent:
            return
        # After each step: no bucket, an empty one, one with a stream, and back.
        after = ["404", "0", "1", "0", "404"]
        found = await self._streams(wire, self._round)
        assert found in {after[self._answered], after[self._sent]}
        if found == after[self._sent]:
            self._answered = self._sent
        else:
            self._sent = self._answered

    async def _streams(self, wire: Wire, number: int) -> str:
        bucket = self._bucket(number)
        answer = await wire.request("GET", f"{bucket}/streams")
        if answer.status == 404:
            return "404"
        assert answer.status == 200
        count = answer.body.count(b'"stream_id"')
        head = await wire.request("HEAD", f"{bucket}/stream")
        assert head.status == (200 if count else 404)
        return str(count)
