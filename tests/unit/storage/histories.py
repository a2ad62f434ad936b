"""Random histories of a shard: valid records in batches, with cuts between them."""

import random

from hypothesis import strategies as st

from holdfast.engine.state import State
from holdfast.format.records import Kind, decode
from holdfast.protocol.content import JSON as JSON_MEDIA
from holdfast.protocol.json_mode import SEPARATOR
from holdfast.protocol.producer import Producer
from tests.unit.storage.rig import BINARY, JSON, TEXT, Log

NAMES = ("b/one", "b/two", "c/ünï", "b/three")
TYPES = (BINARY, TEXT, JSON, "Application/JSON; charset=utf-8")

_ACTIONS = (
    ["create"] * 3 + ["append"] * 9 + ["touch", "delete", "expire"] + ["commit"] * 4 + ["cut"]
)


def script(seed, length):
    """Some steps: what to do, to which stream, with what, and how much later."""
    chance = random.Random(seed)
    return [
        (
            chance.choice(_ACTIONS),
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


class History:
    """Carries out steps on a log, making each of them valid; `cuts` are positions."""

    def __init__(self, script):
        self.log = Log()
        self.cuts = []
        self.alive = {}
        # Number to [(message, timestamp, position)] of streams that are alive.
        self.messages = {}
        self.removed = set()
        self._is_json = {}
        self._closed = set()
        for action, choice, bodies, extras, pause_ms in script:
            self.log.now_ms += pause_ms
            getattr(self, action)(choice, bodies, extras)
        self.cut()

    def create(self, choice, bodies, extras):
        name = NAMES[choice % len(NAMES)]
        if name in self.alive:
            self.append(choice, bodies, extras)
            return
        content_type = TYPES[choice // 4 % len(TYPES)]
        is_json = content_type.lower().startswith(JSON_MEDIA)
        lifetime = [{}, {"ttl_s": choice}, {"expires_at_ms": choice}][choice % 3]
        body = _stored(bodies, is_json)
        number = self.log.create(name, body, content_type, **lifetime, **extras)
        self.alive[name] = number
        self.messages[number] = []
        self._is_json[number] = is_json
        self._written(number, bodies, extras)

    def append(self, choice, bodies, extras):
        number = self._pick(choice)
        if number is not None and number not in self._closed:
            self.log.append(number, _stored(bodies, self._is_json[number]), **extras)
            self._written(number, bodies, extras)

    def touch(self, choice, bodies, extras):
        number = self._pick(choice)
        if number is not None:
            self.log.touch(number, self.log.now_ms + choice)

    def delete(self, choice, bodies, extras):
        self._end(choice, self.log.delete)

    def expire(self, choice, bodies, extras):
        self._end(choice, self.log.expire)

    def commit(self, *_):
        if self.log.open:
            self.log.commit()

    def cut(self, *_):
        self.commit()
        if self.log.position - 1 > self.log._sealed:
            self.log.seal()
            self.cuts.append(self.log.position - 1)

    def _pick(self, choice):
        return [*self.alive.values()][choice % len(self.alive)] if self.alive else None

    def _end(self, choice, how):
        number = self._pick(choice)
        if number is not None:
            how(number)
            del self.messages[number]
            self.alive = {name: other for name, other in self.alive.items() if other != number}
            self.removed.add(number)

    def _written(self, number, bodies, extras):
        if extras["closes"]:
            self._closed.add(number)
        if not bodies:
            return
        parts = [body_form(each) + SEPARATOR for each in bodies]
        if not self._is_json[number]:
            parts = [b"".join(bodies)]
        self.messages[number] += [(each, self.log.now_ms, self.log.position) for each in parts]

    def state(self):
        """What the engine makes of it."""
        state = State()
        for position in range(1, self.log.position):
            for index, record in enumerate(decode(self.log.body(position))):
                assert record.kind in list(Kind)
                state.apply(record, position, index)
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
    }


def fields_of_row(row):
    return {name: getattr(row, name) for name in row.__struct_fields__}
