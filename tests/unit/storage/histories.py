"""Random histories of a shard: valid records in batches, with cuts between them.

Beside the log a plain model says what there is in the end: the content of every stream from its
first byte on, where its messages end, from where it can be read, and the buckets and documents.
"""

import random
from dataclasses import dataclass, field

from hypothesis import strategies as st

from holdfast.engine.state import State
from holdfast.format.records import Snapshot, decode
from holdfast.protocol.content import JSON as JSON_MEDIA
from holdfast.protocol.content import SEPARATOR
from holdfast.protocol.producer import Producer
from tests.producer_states import stored_producers
from tests.unit.storage.rig import BINARY, JSON, TEXT, Log

NAMES = ("b/one", "b/two", "c/ünï", "b/three", "d/four", "c/five")
TYPES = (BINARY, TEXT, JSON, "Application/JSON; charset=utf-8")
BUCKETS = ("b", "c", "empty", "other")

_PLAIN = ["create"] * 3 + ["append"] * 9 + ["touch", "delete", "expire"] + ["commit"] * 4 + ["cut"]
_RELATED = [
    *_PLAIN,
    *["fork"] * 4,
    *["snapshot"] * 3,
    *["delete"] * 2,
    "create_bucket",
    "delete_bucket",
    "documents",
]


def script(seed, length, actions=tuple(_RELATED)):
    """Some steps: what to do, to which stream, with what, and how much later."""
    chance = random.Random(seed)
    return [
        (
            chance.choice(actions),
            chance.randrange(1000),
            [chance.randbytes(chance.randint(1, 8)) for _ in range(chance.randrange(4))],
            {
                "closes": chance.random() < 0.1,
                "producer": _producer(chance) if chance.random() < 0.3 else None,
                "seq": chance.randbytes(2) if chance.random() < 0.3 else None,
            },
            chance.randrange(5000),
        )
        for _ in range(length)
    ]


def _producer(chance):
    return Producer(chance.choice([b"p", b"q"]), chance.randrange(9), chance.randrange(9))


# Histories differ more from each other than lists that hypothesis draws, and still shrink.
steps = st.builds(script, st.integers(0, 2**32), st.integers(30, 150))


@dataclass
class Told:
    """A stream as its writers were told it is."""

    number: int
    name: str
    content_type: str
    # Everything from offset 0 on, whoever owns it and whether it can be read or not.
    data: bytes = b""
    ends: list = field(default_factory=list)
    # Its own messages as (bytes, timestamp, position).
    messages: list = field(default_factory=list)
    own_start: int = 0
    start: int = 0
    earliest: int = 0
    snapshot: Snapshot | None = None
    source: "Told | None" = None
    forks: int = 0
    deleted: bool = False
    closed: bool = False

    @property
    def is_json(self):
        return self.content_type.lower().startswith(JSON_MEDIA)

    @property
    def tail(self):
        return len(self.data)

    @property
    def boundaries(self):
        """Where a snapshot may be, and a fork of a JSON stream may start."""
        between = {each for each in self.ends if self.earliest <= each}
        return sorted(between | {self.earliest, self.tail})

    def needed_messages(self):
        """Its own messages that are not dead, in part at least."""
        at, needed = self.own_start, []
        for message, at_ms, position in self.messages:
            at += len(message)
            if at > self.start:
                needed.append((message, at_ms, position))
        return needed

    def trim(self):
        if not self.forks:
            self.start = max(self.start, min(self.earliest, self.tail))


class History:
    """Carries out steps on a log, making each of them valid; `cuts` are positions."""

    def __init__(self, script):
        self.log = Log()
        self.cuts = []
        # By name, those that are deleted and kept for their forks too.
        self.streams = {}
        self.removed = set()
        self.explicit = set()
        self.documents_now = {}
        for action, choice, bodies, extras, pause_ms in script:
            self.log.now_ms += pause_ms
            getattr(self, action)(choice, bodies, extras)
        self.cut()

    @property
    def alive(self):
        return [told for told in self.streams.values() if not told.deleted]

    @property
    def by_number(self):
        return {told.number: told for told in self.streams.values()}

    # What writers do.

    def create(self, choice, bodies, extras):
        name = NAMES[choice % len(NAMES)]
        if name in self.streams:
            self.append(choice, bodies, extras)
            return
        told = Told(0, name, TYPES[choice // 4 % len(TYPES)])
        self._born(told, choice, bodies, extras)

    def fork(self, choice, bodies, extras):
        source = self._pick(choice)
        free = [name for name in NAMES if name not in self.streams]
        if source is None or not free:
            return
        offset = random.Random(choice).choice(source.boundaries)
        if not source.is_json and choice % 3 == 0:
            offset = random.Random(choice).randint(source.earliest, source.tail)
        told = Told(0, random.Random(choice).choice(free), source.content_type)
        told.data = source.data[:offset]
        told.ends = sorted({each for each in source.ends if each < offset} | {offset} - {0})
        told.own_start = told.start = offset
        told.earliest, told.snapshot = source.earliest, source.snapshot
        told.source = source
        source.forks += 1
        self._born(told, choice, bodies, extras)

    def _born(self, told, choice, bodies, extras):
        body = _stored(bodies, told.is_json)
        lifetime = [{}, {"ttl_s": choice}, {"expires_at_ms": choice}][choice % 3]
        more = {"content_type": told.content_type, **lifetime, **extras}
        source = told.source
        if source is None:
            told.number = self.log.create(told.name, body, **more)
        else:
            told.number = self.log.fork(
                told.name, source.number, source.name, told.own_start, body, **more
            )
        self.streams[told.name] = told
        self._written(told, bodies, extras)

    def append(self, choice, bodies, extras):
        told = self._pick(choice)
        if told is not None and not told.closed:
            self.log.append(told.number, _stored(bodies, told.is_json), **extras)
            self._written(told, bodies, extras)

    def touch(self, choice, bodies, extras):
        told = self._pick(choice)
        if told is not None:
            self.log.touch(told.number, self.log.now_ms + choice)

    def snapshot(self, choice, bodies, extras):
        told = self._pick(choice)
        if told is None:
            return
        offset = random.Random(choice).choice(told.boundaries)
        name = f"snapshots/{told.number:016x}/{offset}-{self.log.now_ms}-{len(self.log.open)}"
        told.snapshot = Snapshot(offset, name, TEXT, choice, choice * 7)
        told.earliest = offset
        told.trim()
        self.log.snapshot(told.number, told.snapshot)

    def delete(self, choice, bodies, extras):
        self._end(choice, self.log.delete)

    def expire(self, choice, bodies, extras):
        self._end(choice, self.log.expire)

    def _end(self, choice, how):
        told = self._pick(choice)
        if told is None:
            return
        how(told.number)
        told.deleted = True
        while told is not None and told.deleted and not told.forks:
            del self.streams[told.name]
            self.removed.add(told.number)
            told = told.source
            if told is not None:
                told.forks -= 1
                if not told.deleted:
                    told.trim()

    def create_bucket(self, choice, bodies, extras):
        name = BUCKETS[choice % len(BUCKETS)]
        if name not in self.explicit:
            self.log.create_bucket(name)
            self.explicit.add(name)

    def delete_bucket(self, choice, bodies, extras):
        name = BUCKETS[choice % len(BUCKETS)]
        if name in self.explicit and not self.in_bucket(name):
            self.log.delete_bucket(name)
            self.explicit.discard(name)

    def documents(self, choice, bodies, extras):
        changes = {f"sub/{choice % 5}": bodies[0] if bodies else None}
        if choice % 2:
            changes[f"sub/{choice % 7}"] = b"x" * (choice % 3)
        self.log.documents(**changes)
        for key, value in changes.items():
            if value is None:
                self.documents_now.pop(key, None)
            else:
                self.documents_now[key] = value

    # Batches and cuts.

    def commit(self, *_):
        if self.log.open:
            self.log.commit()

    def cut(self, *_):
        self.commit()
        if self.log.position - 1 > self.log._sealed:
            self.log.seal()
            self.cuts.append(self.log.position - 1)

    def _pick(self, choice):
        alive = self.alive
        return alive[choice % len(alive)] if alive else None

    def _written(self, told, bodies, extras):
        told.closed |= extras["closes"]
        if not bodies:
            return
        parts = [body_form(each) + SEPARATOR for each in bodies]
        if not told.is_json:
            parts = [b"".join(bodies)]
        for each in parts:
            told.data += each
            told.ends.append(told.tail)
            told.messages.append((each, self.log.now_ms, self.log.position))

    # What there is in the end.

    def in_bucket(self, name):
        return [told for told in self.alive if told.name.startswith(f"{name}/")]

    def buckets(self):
        """(explicit, streams, bytes) of each bucket, and of what is kept of former ones."""
        sizes = dict.fromkeys(self.explicit, 0)
        for told in self.by_number.values():
            name = told.name.partition("/")[0]
            size_bytes = 0 if told.snapshot is None else told.snapshot.size_bytes
            sizes[name] = sizes.get(name, 0) + told.tail - told.start + size_bytes
        found = {
            name: (name in self.explicit, len(self.in_bucket(name)), size_bytes)
            for name, size_bytes in sizes.items()
        }
        return {name: counts for name, counts in found.items() if any(counts)}

    def state(self, after=0, source=None):
        """What the engine makes of it; behind a position, on what a catalog has up to there."""
        state = State(source)
        if source is not None:
            totals = source.totals()
            state.begin(totals.flushed, totals.streams, source.documents())
        for position in range(after + 1, self.log.position):
            state.replay(position, decode(self.log.body(position)))
        return state


def body_form(message):
    """Bytes without a separator, as JSON text has none."""
    return message.replace(SEPARATOR, b"_")


def _stored(bodies, is_json):
    if is_json:
        return b"".join(body_form(each) + SEPARATOR for each in bodies)
    return b"".join(bodies)


def fields_of_stream(stream):
    """What a stream of the engine and a row of the catalog have in common."""
    return {
        "number": stream.number,
        "meta": stream.meta,
        "created_ms": stream.created_ms,
        "last_write_ms": stream.last_write_ms,
        "tail": stream.tail,
        "closed": stream.closed,
        "closer": stream.closer,
        "seq": stream.seq,
        "producers": stream.producers,
        "deadline_ms": stream.recorded_deadline_ms,
        "start": stream.start,
        "earliest": stream.earliest,
        "snapshot": stream.snapshot,
        "forks": stream.forks,
        "deleted": stream.deleted,
        "hidden_at": stream.hidden_at,
    }


def fields_of_row(row):
    return {name: getattr(row, name) for name in row.__struct_fields__}


def stored_row(catalog, number):
    """A row of the catalog with its producers, which are in another table."""
    row = catalog.find_number(number)
    assert row.producers is None
    row.producers = stored_producers(catalog, number) or None
    return row


def hot_bytes(stream):
    """What is needed of a stream's own bytes, where none have left memory."""
    data = b"".join(stream.chunks)
    assert stream.base + len(data) == stream.tail
    return data[max(0, stream.start - stream.base) :]
