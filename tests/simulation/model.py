"""What clients were told, and so what has to be true: a state machine of its own.

The node decides about requests in the order in which they come, and what it decides becomes
durable in that order. So there is one published state, and behind it a list of pending effects:

- an answer makes its effect, and all before it, published for ever
- "failed" drops everything that is pending
- after "unknown", or when the node crashes, some first part of what is pending was kept and the
  rest was not; which one shows, and from then on it is decided

An effect may concern several streams: a fork counts with its source, and a source may go with its
last fork. Buckets and documents are kept the same way, under names that no stream can have; what is
asked of streams that have to do with one another is in `relatives`.

Nothing of the engine's own code is used here but the types of requests and answers.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from unittest.mock import ANY

from holdfast.engine.writes import Deleted, StreamAppended, StreamCreated
from holdfast.errors import (
    ContentTypeMismatchError,
    InvalidJsonError,
    InvalidRequestError,
    ProducerDigestError,
    ProducerFencedError,
    ProducerGapError,
    StreamClosedError,
    StreamDeletedError,
    StreamExistsError,
    StreamNotFoundError,
    StreamSeqError,
)
from holdfast.protocol.producer import ProducerState

JSON = "application/json"
SEPARATOR = b"\x1e"


class Violation(BaseException):
    """The node did what it must not do; nothing in it is to catch this."""


class Refusal(NamedTuple):
    """An error that is expected, with those of its attributes that matter."""

    cls: type
    attributes: Mapping = MappingProxyType({})

    def fits(self, outcome):
        return type(outcome) is self.cls and all(
            getattr(outcome, name) == value for name, value in self.attributes.items()
        )


class Version(NamedTuple):
    """A stream at one moment. `birth` tells streams of one name apart."""

    birth: int
    name: str
    content_type: str
    ttl_s: int | None
    expires_at_ms: int | None
    created_ms: int
    last_write_ms: int
    # As far as writes say; reads may have moved it.
    deadline_ms: int | None
    data: bytes = b""
    # Where messages end.
    ends: tuple[int, ...] = ()
    closed: bool = False
    closer: tuple | None = None
    seq: bytes | None = None
    producers: Mapping = MappingProxyType({})
    # The stream that it was forked from, as (birth, name, offset). `data` starts with its bytes.
    fork: tuple | None = None
    # Its own bytes are kept from `start` on, and readers may ask for those from `earliest` on.
    start: int = 0
    earliest: int = 0
    # The snapshot at `earliest`: the name of its object.
    snapshot: str = ""
    forks: int = 0
    # There for its forks only.
    deleted: bool = False

    @property
    def tail(self):
        return len(self.data)

    @property
    def media(self):
        return media_of(self.content_type)

    @property
    def slides(self):
        """Whether reads and writes renew it."""
        return self.ttl_s is not None and self.expires_at_ms is None


def media_of(content_type):
    return content_type.split(";")[0].strip().lower()


class Effect:
    """What a request does once it is durable: a new version of a stream, or none, by name."""

    def __init__(self, changes):
        self.changes = changes
        self.is_unknown = False


class Model:
    """Streams as they were promised."""

    def __init__(self, *, ttl_is_fixed):
        self._ttl_is_fixed = ttl_is_fixed
        self.published: dict[str, Version] = {}
        self.pending: list[Effect] = []
        # By birth: how far reads have moved the deadline; the number it is known by.
        self.renewed: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.births = 0
        self.on_publish = []

    # What there is.

    def streams(self):
        """All published versions of streams."""
        return [each for each in self.published.values() if isinstance(each, Version)]

    def staged(self, name):
        """The stream as it will be."""
        effect = self.last_effect(name)
        return self.published.get(name) if effect is None else effect.changes[name]

    def last_effect(self, *names):
        """The last of the pending effects that concerns any of these."""
        wanted = set(names)
        return next((each for each in reversed(self.pending) if wanted & each.changes.keys()), None)

    def deadline_ms(self, version):
        if version.deadline_ms is None:
            return None
        return max(version.deadline_ms, self.renewed.get(version.birth, 0))

    def is_due(self, version, now_ms):
        deadline_ms = self.deadline_ms(version)
        return deadline_ms is not None and deadline_ms <= now_ms

    def writable(self, name, now_ms):
        """The stream that a write meets, or None."""
        version = self.staged(name)
        if version is None or version.deleted or self.is_due(version, now_ms):
            return None
        return version

    def gone(self, name):
        """The error of a write to a stream that is not there."""
        version = self.staged(name)
        is_kept = version is not None and version.deleted
        return Refusal(StreamDeletedError if is_kept else StreamNotFoundError)

    def readable(self, name, now_ms):
        """The stream that a reader finds, or None."""
        version = self.published.get(name)
        if version is not None and version.deleted:
            return None
        if version is None or not self.is_due(version, now_ms):
            return version
        # A write that came in time, and is on its way, saves it.
        staged = self.staged(name)
        saved = (
            staged is not None and staged.birth == version.birth and not self.is_due(staged, now_ms)
        )
        return version if saved else None

    def renew(self, version, now_ms):
        """A read was answered."""
        if version.slides and not self.is_due(version, now_ms):
            renewed_ms = now_ms + version.ttl_s * 1000
            self.renewed[version.birth] = max(renewed_ms, self.deadline_ms(version))

    # What writes are answered, and what they do: (answer, effect or None).

    def create(self, name, request, messages, now_ms):
        existing = self.writable(name, now_ms)
        if existing is not None:
            return self.confirm(existing, request), None
        if self.staged(name) is not None and self.staged(name).deleted:
            return Refusal(StreamExistsError), None
        if request.producer is not None and request.producer.seq != 0:
            expected = {"expected": 0, "received": request.producer.seq}
            return Refusal(ProducerGapError, expected), None
        if messages is None:
            return Refusal(InvalidJsonError), None
        expires_at_ms = request.expires_at_ms
        if request.ttl_s is not None and self._ttl_is_fixed:
            expires_at_ms = now_ms + request.ttl_s * 1000
        self.births += 1
        version = Version(
            self.births,
            name,
            request.content_type,
            request.ttl_s,
            expires_at_ms,
            now_ms,
            now_ms,
            expires_at_ms,
        )
        version = written(version, request, messages, now_ms)
        answer = StreamCreated(True, request.content_type, version.tail, version.closed, ANY)
        return answer, Effect({name: version})

    @staticmethod
    def confirm(existing, request):
        if existing.fork is not None:
            return Refusal(StreamExistsError)
        same_end = request.ttl_s == existing.ttl_s and (
            existing.ttl_s is not None or request.expires_at_ms == existing.expires_at_ms
        )
        if (
            media_of(request.content_type) != existing.media
            or not same_end
            or request.close != existing.closed
        ):
            return Refusal(StreamExistsError)
        return StreamCreated(False, existing.content_type, existing.tail, existing.closed, ANY)

    def append(self, name, request, messages, now_ms):
        stream = self.writable(name, now_ms)
        if stream is None:
            return self.gone(name), None
        producer = request.producer
        if stream.closed:
            return self._append_to_closed(stream, request), None
        if request.body and request.media != stream.media:
            return Refusal(ContentTypeMismatchError), None
        if producer is not None:
            answer = self._judge(stream, producer)
            if answer is not None:
                return answer, None
        if request.seq is not None and stream.seq is not None and request.seq <= stream.seq:
            return Refusal(StreamSeqError), None
        if request.body and not messages:
            return Refusal(InvalidJsonError), None
        version = written(stream, request, messages, now_ms)
        state = None if producer is None else ProducerState(producer.epoch, producer.seq)
        answer = StreamAppended(version.tail, version.closed, state, bool(messages), ANY)
        return answer, Effect({name: version})

    @staticmethod
    def _append_to_closed(stream, request):
        producer, closer = request.producer, stream.closer
        if producer is not None and closer is not None and producer[:3] == closer[:3]:
            if _differ(producer.digest, closer.digest):
                return Refusal(ProducerDigestError, {"seq": closer.seq})
            state = ProducerState(closer.epoch, closer.seq, 0, closer.digest)
            return StreamAppended(stream.tail, True, state, False, ANY)
        if request.close and not request.body:
            return StreamAppended(stream.tail, True, None, False, ANY)
        return Refusal(StreamClosedError, {"tail": stream.tail})

    @staticmethod
    def _judge(stream, producer):
        """The answer to a producer whose append is not taken as new; None if it is."""
        epoch, last, digest = stream.producers.get(producer.id, (producer.epoch, -1, b""))
        if producer.epoch < epoch:
            return Refusal(ProducerFencedError, {"epoch": epoch})
        if producer.epoch > epoch:
            return None if producer.seq == 0 else Refusal(InvalidRequestError)
        if producer.seq == last and _differ(producer.digest, digest):
            return Refusal(ProducerDigestError, {"seq": last, "digest": digest.hex()})
        if producer.seq <= last:
            state = ProducerState(epoch, last, 0, digest)
            return StreamAppended(stream.tail, False, state, False, ANY)
        if producer.seq > last + 1:
            expected = {"expected": last + 1, "received": producer.seq}
            return Refusal(ProducerGapError, expected)
        return None

    def delete(self, name, now_ms):
        stream = self.writable(name, now_ms)
        if stream is None:
            return self.gone(name), None
        return Deleted(), Effect(removal(self, stream))

    # What becomes of effects.

    def publish(self, count):
        """The first `count` of the pending effects are durable."""
        for effect in self.pending[:count]:
            for name, version in effect.changes.items():
                if version is None:
                    self.published.pop(name, None)
                else:
                    self.published[name] = version
            for call in self.on_publish:
                call(effect)
        del self.pending[:count]

    def publish_through(self, effect):
        if effect in self.pending:
            self.publish(self.pending.index(effect) + 1)

    def drop(self):
        """Nothing of what is pending will be."""
        self.pending.clear()

    @property
    def is_unsettled(self):
        """Whether clients were told of anything pending that its outcome is unknown."""
        return any(effect.is_unknown for effect in self.pending)

    def settled(self, matches):
        """How many of the pending effects are durable: the least that fits what is seen.

        `matches(name, version)` says whether the node has this stream in this state.
        """
        names = sorted({name for effect in self.pending for name in effect.changes})
        state = {name: self.published.get(name) for name in names}
        if all(matches(name, state[name]) for name in names):
            return 0
        for count, effect in enumerate(self.pending, 1):
            state.update(effect.changes)
            if all(matches(name, state[name]) for name in names):
                return count
        raise Violation(f"no outcome of {len(self.pending)} pending writes fits what is there")


def removal(model, stream):
    """The changes that the end of a stream means to it and to those it comes from."""
    changes = {}
    while True:
        changes[stream.name] = stream._replace(deleted=True) if stream.forks else None
        if stream.forks or stream.fork is None:
            return changes
        source = model.staged(stream.fork[1])
        source = source._replace(forks=source.forks - 1)
        if source.forks or not source.deleted:
            changes[source.name] = trimmed(source)
            return changes
        stream = source


def trimmed(version):
    """A stream without the bytes that neither its readers nor its forks can ask for."""
    if version.forks or version.deleted:
        return version
    return version._replace(start=max(version.start, version.earliest))


def written(version, request, messages, now_ms):
    """The version that a write of these messages makes of another."""
    data, ends = version.data, version.ends
    for message in messages or ():
        data += message
        ends += (len(data),)
    changes = {"data": data, "ends": ends, "last_write_ms": now_ms}
    if version.slides:
        changes["deadline_ms"] = now_ms + version.ttl_s * 1000
    if request.producer is not None:
        producer_id, *state = request.producer
        changes["producers"] = {**version.producers, producer_id: tuple(state)}
    if request.seq is not None:
        changes["seq"] = request.seq
    if request.close:
        changes.update(closed=True, closer=request.producer)
    return version._replace(**changes)


def end_of_read(version, tail, start, bytes_max):
    """Where a read of a stream with this tail has to end."""
    target = start + bytes_max
    if target >= tail:
        return tail
    fitting = [end for end in version.ends if start < end <= target]
    if fitting:
        return fitting[-1]
    message_end = next(end for end in version.ends if end > start)
    if version.media == JSON:
        return message_end
    if not version.media.startswith("text/"):
        return target
    # At least one character, and none in part.
    cut = start + max(bytes_max, 4)
    if cut >= message_end:
        return message_end
    while version.data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def _differ(digest, other):
    """Whether two digests are there, and not the same."""
    return digest != other and b"" not in {digest, other}
