"""Random histories of forks, snapshots and deletions, against a model that copies everything."""

from dataclasses import dataclass, field
from random import Random

import httpx
import pytest

from tests.http.bucketed import BucketStream, ids, new_bucket, offset, parts
from tests.http.streams import BINARY, JSON, check_error
from tests.http.test_forks import TIDY, collect
from tests.storage_stats import flush
from tests.thorough import some_of

STEPS = 120
STREAMS_MAX = 12


@dataclass
class Model:
    """What a stream is: all its messages, and what of them is retained."""

    kind: str
    messages: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])
    first: int = 0
    snapshot: bytes | None = None
    source: str | None = None
    forks: int = 0
    deleted: bool = False

    def append(self, message: bytes) -> None:
        extra = 1 if self.kind == JSON else 0
        self.messages.append(message)
        self.ends.append(self.ends[-1] + len(message) + extra)

    def content(self) -> bytes:
        kept = self.messages[self.first :]
        return b"[%b]" % b",".join(kept) if self.kind == JSON else b"".join(kept)


class History:
    """One bucket, its streams and their models."""

    def __init__(self, client: httpx.Client, random: Random, kind: str) -> None:
        self.client = client
        self.kind = kind
        self.random = random
        self.bucket = new_bucket(client)
        self.models: dict[str, Model] = {}
        self.serial = 0

    def stream(self, name: str) -> BucketStream:
        return BucketStream(self.client, self.bucket, name, self.kind)

    def step(self) -> None:
        live = [name for name, model in self.models.items() if not model.deleted]
        if not live:
            self.create()
            return
        name = self.random.choice(live)
        steps = [self.append] * 6 + [self.fork] * 4 + [self.publish] * 2 + [self.delete] * 2
        if len(live) < STREAMS_MAX // 3:
            steps += [lambda _name: self.create()]
        if len(self.models) >= STREAMS_MAX:
            steps = [self.append, self.publish, self.delete]
        self.random.choice(steps)(name)

    def create(self) -> None:
        name = self.new_name()
        assert self.stream(name).create().status_code == 201
        self.models[name] = Model(self.kind)

    def new_name(self) -> str:
        """A name that is free; sometimes one that was used before."""
        free = [f"s{number}" for number in range(self.serial) if f"s{number}" not in self.models]
        if free and self.random.random() < 0.3:
            return self.random.choice(free)
        self.serial += 1
        return f"s{self.serial - 1}"

    def append(self, name: str) -> None:
        message = b"%d" % self.random.randrange(10 ** self.random.randint(1, 9))
        assert self.stream(name).append(message).status_code == 204
        self.models[name].append(message)

    def fork(self, name: str) -> None:
        source, fork = self.models[name], self.new_name()
        at = self.random.randrange(len(source.ends))
        answer = self.stream(fork).fork(
            self.stream(name), stream_fork_offset=offset(source.ends[at])
        )
        if at < source.first:
            check_error(answer, 410, "offset_gone")
            return
        assert answer.status_code == 201, answer.text
        self.models[fork] = Model(
            self.kind,
            source.messages[:at],
            source.ends[: at + 1],
            source.first,
            source.snapshot,
            name,
        )
        source.forks += 1

    def publish(self, name: str) -> None:
        model = self.models[name]
        at = self.random.randrange(model.first, len(model.ends))
        body = b"state %d of %b" % (self.random.randrange(1000), name.encode())
        assert self.stream(name).publish(offset(model.ends[at]), body).status_code == 204
        model.first, model.snapshot = at, body

    def delete(self, name: str) -> None:
        assert self.stream(name).delete().status_code == 204
        self.models[name].deleted = True
        at: str | None = name
        while at is not None and self.models[at].deleted and not self.models[at].forks:
            model = self.models.pop(at)
            at = model.source
            if at is not None:
                self.models[at].forks -= 1

    def check(self) -> None:
        """Everything is as the model says."""
        live = sorted(name for name, model in self.models.items() if not model.deleted)
        assert ids(self.client, self.bucket) == live
        for name, model in self.models.items():
            stream = self.stream(name)
            if model.deleted:
                assert stream.head().status_code == 410
            else:
                self.check_stream(stream, model)
        for number in range(self.serial):
            if f"s{number}" not in self.models:
                assert self.stream(f"s{number}").head().status_code == 404

    def check_stream(self, stream: BucketStream, model: Model) -> None:
        assert stream.tail() == offset(model.ends[-1])
        earliest = model.ends[model.first]
        assert stream.read(offset(earliest)).content == model.content()
        if model.first:
            check_error(stream.read("-1"), 410, "offset_gone")
            check_error(stream.read(offset(earliest - 1)), 410, "offset_gone")
        first = (BINARY, model.snapshot or b"")
        kept = [(self.kind, message) for message in model.messages[model.first :]]
        assert parts(stream.bootstrap()) == [first, *kept]


@pytest.mark.parametrize("kind", [BINARY, JSON])
@pytest.mark.parametrize("seed", some_of([1, 2], 1))
def test_any_history(start_server, client_of, seed, kind) -> None:
    random = Random(seed)
    server = start_server(**TIDY)
    history = History(client_of(server), random, kind)
    for _ in range(STEPS):
        history.step()
        if random.random() < 0.1:
            flush(history.client)
        if random.random() < 0.05:
            collect(history.client)
        if random.random() < 0.08:
            history.check()
        if random.random() < 0.02:
            server.kill() if random.random() < 0.5 else server.stop()
            server = start_server(**TIDY)
            history.client = client_of(server)
            history.check()
    history.check()
    flush(history.client)
    collect(history.client)
    history.check()
    # With the last stream everything goes.
    for name in [name for name, model in history.models.items() if not model.deleted]:
        history.delete(name)
    assert not history.models
    assert history.client.get(f"/{history.bucket}").json()["bytes"] == 0
    assert history.client.delete(f"/{history.bucket}").status_code == 204
