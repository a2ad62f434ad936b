"""Random histories: scans that follow each other give every message once, wherever it is."""

from dataclasses import dataclass, field
from random import Random

import httpx
import pytest

from tests.http.bucketed import BucketStream, new_bucket, offset
from tests.http.scanning import Message, Scan
from tests.http.streams import BINARY, JSON, TEXT
from tests.http.test_forks import TIDY, collect
from tests.server_process import ServerProcess
from tests.storage_stats import flush
from tests.thorough import some_of

WAYS = ("names", "packs")
PHASES = 6
STEPS = 25
NAMES = [f"stream-{number}" for number in range(6)]
KINDS = (TEXT, BINARY, JSON)


@dataclass
class Life:
    """One stream from its creation on: what was appended in which phase."""

    name: str
    kind: str
    number: int
    tail: int = 0
    earliest: int = 0
    deleted: bool = False
    # Offset, bytes and phase of each message.
    messages: list[tuple[int, bytes, int]] = field(default_factory=list)

    def append(self, data: bytes, phase: int) -> None:
        self.messages.append((self.tail, data, phase))
        self.tail += len(data)


class History:
    """What is done to a bucket, and a model of it."""

    def __init__(self, client: httpx.Client, random: Random) -> None:
        self.client = client
        self.random = random
        self.bucket = new_bucket(client)
        self.live: dict[str, Life] = {}
        self.lives: list[Life] = []
        self.phase = 0

    def stream(self, name: str, kind: str = BINARY) -> BucketStream:
        return BucketStream(self.client, self.bucket, name, kind)

    def step(self) -> None:
        name = self.random.choice(NAMES)
        life = self.live.get(name)
        if life is None:
            self.create(name)
        elif self.random.random() < 0.8:
            self.append(life)
        elif self.random.random() < 0.6:
            self.publish(life)
        else:
            assert self.stream(name).delete().status_code == 204
            life.deleted = True
            del self.live[name]

    def create(self, name: str) -> None:
        kind = self.random.choice(KINDS)
        stream = self.stream(name, kind)
        body = self.random.choice([None, b"7"])
        created = stream.create(body)
        assert created.status_code == 201
        number = int(created.headers["ETag"].strip('"').partition(":")[0], 16)
        life = Life(name, kind, number)
        if body is not None:
            life.append(body + (b"\x1e" if kind == JSON else b""), self.phase)
        self.live[name] = life
        self.lives.append(life)

    def append(self, life: Life) -> None:
        messages = [b"%d" % self.random.randrange(1000) for _ in range(self.random.randint(1, 4))]
        if life.kind == JSON:
            body = b"[%b]" % b",".join(messages)
            stored = [message + b"\x1e" for message in messages]
        else:
            body = b"".join(messages)
            stored = [body]
        assert self.stream(life.name, life.kind).append(body).status_code == 204
        for each in stored:
            life.append(each, self.phase)

    def publish(self, life: Life) -> None:
        ends = [at for at, _, _ in life.messages if at >= life.earliest] + [life.tail]
        at = self.random.choice(ends)
        assert self.stream(life.name).publish(offset(at)).status_code == 204
        life.earliest = at

    def appended(self, first: int, last: int) -> set[tuple[int, int, bytes]]:
        """Every message of these phases."""
        return {
            (life.number, at, data)
            for life in self.lives
            for at, data, phase in life.messages
            if first <= phase < last
        }

    def retained(self, first: int, last: int) -> set[tuple[int, int, bytes]]:
        """Those that readers can still get."""
        earliest = {life.number: life.earliest for life in self.lives if not life.deleted}
        return {
            each
            for each in self.appended(first, last)
            if each[0] in earliest and each[1] >= earliest[each[0]]
        }

    def check(self, found: list[Message], first: int, last: int, *, is_now: bool = False) -> None:
        """`is_now`: nothing happened between the plan and the reads."""
        keys = [(each.stream, each.offset, each.data) for each in found]
        assert len(keys) == len(set(keys)), "a message was given twice"
        retained = self.retained(first, last)
        assert retained <= set(keys) <= (retained if is_now else self.appended(first, last))
        names = {life.number: life.name for life in self.lives}
        assert all(names[each.stream] == each.stream_id for each in found)
        by_stream: dict[int, list[Message]] = {}
        for each in found:
            by_stream.setdefault(each.stream, []).append(each)
        for messages in by_stream.values():
            offsets = [each.offset for each in messages]
            positions = [each.position for each in messages]
            assert offsets == sorted(offsets)
            assert positions == sorted(positions)


def cursor(history: History) -> str:
    path = f"/{history.bucket}/streams/changes?after=now"
    return history.client.get(path).json()["next_cursor"]


@pytest.mark.parametrize("seed", some_of([1, 2, 3], 1))
def test_any_history(start_server, client_of, seed) -> None:
    random = Random(seed)
    server: ServerProcess = start_server(**TIDY)
    history = History(client_of(server), random)
    cursors = ["-1"]

    def disturb() -> None:
        """What may happen between a plan and its reads."""
        history.step()
        if random.random() < 0.5:
            flush(history.client)
        if random.random() < 0.5:
            collect(history.client)

    for phase in range(PHASES):
        history.phase = phase
        for _ in range(STEPS):
            history.step()
            if random.random() < 0.1:
                flush(history.client)
        cursors.append(cursor(history))
        # What the step within belongs to has not begun for the scan.
        history.phase = phase + 1
        scan = Scan(history.client, server, history.bucket, after=cursors[-2], until=cursors[-1])
        history.check(scan.messages(disturb), phase, phase + 1)
        if random.random() < 0.3:
            server.kill() if random.random() < 0.5 else server.stop()
            server = start_server(**TIDY)
            history.client = client_of(server)
    for first in range(PHASES):
        for last in range(first, PHASES + 1):
            for by in WAYS:
                stretch = {"after": cursors[first], "until": cursors[last], "by": by}
                scan = Scan(history.client, server, history.bucket, **stretch)
                history.check(scan.messages(), first, last, is_now=True)
    for by in WAYS:
        whole = Scan(history.client, server, history.bucket, by=by)
        history.check(whole.messages(), 0, PHASES + 1, is_now=True)
    flush(history.client)
    collect(history.client)
    cold = Scan(history.client, server, history.bucket)
    assert cold.plan["hot"] == []
    found = cold.messages()
    history.check(found, 0, PHASES + 1)
    # Packs and catalog know all: nothing is given that readers could not get.
    assert {(each.stream, each.offset, each.data) for each in found} == history.retained(
        0, PHASES + 1
    )
