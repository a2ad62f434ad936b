"""Random requests, aimed at what there is: right ones, repeated ones, late ones and wrong ones."""

import json

from holdfast.engine.writes import AppendRequest, CreateRequest, ForkRequest
from holdfast.protocol.producer import Producer
from tests.simulation.model import JSON, SEPARATOR, media_of
from tests.simulation.relatives import BUCKET, DOCUMENT

# Streams in this bucket have no deadline, and may be forked.
KIN = "kin/"
BYTES = "application/octet-stream"
CONTENT_TYPES = (BYTES, "text/plain", "text/plain; charset=utf-8", JSON, "Application/JSON")
MEDIA = (BYTES, "text/plain", JSON)
LETTERS = "ab é漢😀\n"
PRODUCERS = (b"p", b"other")
# A request may have none.
DIGESTS = (b"", b"digest-1", b"digest-2")


class Requests:
    def __init__(self, random, model, names, shard):
        self._random = random
        self._model = model
        self._names = names
        self._shard = shard
        self._count = 0

    def name(self):
        return self._random.choice(self._names)

    def create(self, name, now_ms):
        """(request, messages)"""
        random = self._random
        existing = self._model.writable(name, now_ms)
        if existing is not None and random.random() < 0.6:
            expires_at_ms = None if existing.ttl_s is not None else existing.expires_at_ms
            request = CreateRequest(
                existing.content_type, existing.ttl_s, expires_at_ms, existing.closed
            )
            return request, ()
        ttl_s = expires_at_ms = None
        match 9 if name.startswith(KIN) else random.randrange(10):
            case 0 | 1 | 2 | 3:
                ttl_s = random.choice([1, 5, 30, 30, 100, 100])
            case 4:
                expires_at_ms = now_ms + random.choice([-1000, 500, 5000, 60_000, 60_000])
        content_type = random.choice(CONTENT_TYPES)
        body, messages = b"", ()
        if random.random() < 0.4:
            body, messages = self.body(media_of(content_type))
        producer = None
        if random.random() < 0.15:
            producer = Producer(
                random.choice(PRODUCERS), random.randrange(3), random.choice((0, 0, 1))
            )
        seq = b"%04d" % random.randrange(30) if random.random() < 0.1 else None
        close = random.random() < 0.04
        request = CreateRequest(content_type, ttl_s, expires_at_ms, close, body, producer, seq)
        return request, messages

    def fork(self):
        """(name, request, messages) of a fork of a stream that has no deadline."""
        random, model = self._random, self._model
        kin = [name for name in self._names if name.startswith(KIN)]
        if not kin:
            return "", None, ()
        free = [name for name in kin if model.staged(name) is None]
        taken = [name for name in kin if model.staged(name) is not None]
        name = random.choice(free if free and random.random() < 0.8 else kin)
        source = random.choice(taken if taken and random.random() < 0.9 else kin)
        version = model.staged(source)
        offset = None
        if version is not None and random.random() < 0.6:
            offset = random.choice((version.earliest, version.tail, *version.ends))
            if version.media == BYTES and random.random() < 0.5:
                offset = random.randint(version.earliest, version.tail)
            if random.random() < 0.05:
                offset = version.tail + 1
        body, messages = b"", ()
        if version is not None and random.random() < 0.3:
            body, messages = self.body(version.media)
            if not messages:
                body, messages = b"", ()
        staged = self._shard()._staging.view(source)
        number = 0 if staged is None else staged.number
        asked = ForkRequest(source, offset, offset, source=number)
        return name, CreateRequest(None, body=body, fork=asked), messages

    def bucket(self):
        """A bucket as the model names it; one of them never has streams with a deadline."""
        return BUCKET + self._random.choice((KIN.rstrip("/"), "empty", "other"))

    def document(self):
        """(name, value): nobody can mistake one value for another."""
        name = f"{DOCUMENT}{self._random.randrange(4)}"
        self._count += 1
        if self._model.staged(name) is not None and self._random.random() < 0.3:
            return name, None
        return name, b"%d" % self._count

    def append(self, name, now_ms):
        """(request, messages)"""
        random = self._random
        stream = self._model.writable(name, now_ms)
        media = random.choice(MEDIA)
        if stream is not None and random.random() < 0.95:
            media = stream.media
        close = random.random() < 0.02
        body, messages = b"", ()
        if not close or random.random() < 0.5:
            body, messages = self.body(media)
        producer = self._producer(stream) if random.random() < 0.4 else None
        seq = self._seq(stream) if random.random() < 0.15 else None
        request = AppendRequest(body, media if body else None, close, producer, seq)
        return request, messages

    def _producer(self, stream):
        digest = self._random.choice(DIGESTS)
        return Producer(*self._numbered(stream), digest)

    def _numbered(self, stream):
        """An id, an epoch and a number, mostly those that come next."""
        random = self._random
        producer_id = random.choice(PRODUCERS)
        known = None if stream is None else stream.producers.get(producer_id)
        if known is None:
            return producer_id, random.randrange(3), random.choice((0, 0, 0, 2))
        epoch, seq, _ = known
        chance = random.random()
        if chance < 0.6:
            return producer_id, epoch, seq + 1
        if chance < 0.8:
            return producer_id, epoch, random.randint(0, seq)
        if chance < 0.86:
            return producer_id, epoch, seq + random.randint(2, 5)
        if chance < 0.92:
            return producer_id, max(0, epoch - 1), random.randint(0, seq + 1)
        return producer_id, epoch + 1, random.choice((0, 0, 1))

    def _seq(self, stream):
        last = 0 if stream is None or stream.seq is None else int(stream.seq)
        return b"%04d" % max(0, last + self._random.choice((1, 1, 2, 5, 0, -1)))

    def body(self, media):
        """A body, and the messages it is stored as; None instead of them if it is refused."""
        random = self._random
        if media == JSON:
            return self._json()
        size = random.choice((1, 5, 30, 30, 100, 400, 1200))
        if media == BYTES:
            body = random.randbytes(size)
        else:
            body = "".join(random.choices(LETTERS, k=size)).encode()
        return body, (body,)

    def _json(self):
        random = self._random
        match random.randrange(20):
            case 0:
                return b"[]", ()
            case 1:
                return random.choice((b"{", b"[1,", b"\xff", b"[1]2")), None
        count = random.choice((1, 1, 1, 2, 3, 12))
        values = [self._value() for _ in range(count)]
        if count == 1 and random.random() < 0.7 and values[0][:1] != b"[":
            body = values[0]
        else:
            body = b"[" + random.choice((b",", b" , ")).join(values) + b"]"
        return body, tuple(value + SEPARATOR for value in values)

    def _value(self):
        random = self._random
        number = random.randrange(10**6)
        text = "".join(random.choices(LETTERS, k=random.choice((2, 20, 200))))
        value = random.choice((number, text, [number, [text]], {"a": text, "b": [number]}, None))
        return json.dumps(value, ensure_ascii=random.random() < 0.5).encode()
