"""A shard driven by hand: the test says when time passes and what the log answers."""

from unittest.mock import ANY

from holdfast.engine.metadata_writes import StoredSnapshot
from holdfast.engine.shard import Shard
from holdfast.engine.writes import (
    AppendRequest,
    CreateRequest,
    ForkRequest,
    StreamAppended,
    StreamCreated,
)
from holdfast.errors import HoldfastError
from holdfast.format.records import Snapshot
from holdfast.log.interface import CommitOutcome
from holdfast.protocol.producer import Producer
from holdfast.storage.pending import run
from holdfast.testing import FakeClock, ScriptedLog

COMMITTED, FAILED, UNKNOWN = CommitOutcome.COMMITTED, CommitOutcome.FAILED, CommitOutcome.UNKNOWN
TEXT = "text/plain"
JSON = "application/json"
NAME = "bucket/stream"
COMMIT_TIMEOUT_S = 5.0
# The size that published snapshots are said to have.
SNAPSHOT_BYTES = 1


def appended(*fields, **named):
    """What an append is answered, whichever stream it was."""
    return StreamAppended(*fields, number=ANY, **named)


def created(*fields, **named):
    """What a creation is answered, whichever number the stream has."""
    return StreamCreated(*fields, number=ANY, **named)


class Ask:
    """One request to a shard, and what it was answered, whether raised or replied."""

    def __init__(self):
        self.outcomes = []

    def __repr__(self):
        return f"Ask({self.outcomes!r})"

    @property
    def answered(self):
        assert len(self.outcomes) <= 1, "a request is answered once"
        return bool(self.outcomes)

    @property
    def outcome(self):
        assert self.answered, "not answered yet"
        return self.outcomes[0]


def reply(ask, outcome):
    ask.outcomes.append(outcome)


class Driver:
    """A started shard over a `ScriptedLog`; `batches` is what an earlier one left behind."""

    def __init__(
        self,
        *,
        batches=None,
        clock=None,
        batch_bytes_max=1 << 20,
        pending_bytes_max=1 << 30,
        **settings,
    ):
        self.clock = clock or FakeClock()
        self.log = ScriptedLog(batches)
        self.limits = {"batch_bytes_max": batch_bytes_max, "pending_bytes_max": pending_bytes_max}
        self.shard = Shard(
            self.log, self.clock, commit_timeout_s=COMMIT_TIMEOUT_S, **self.limits, **settings
        )
        self.recovered = self.shard.recover()
        self.shard.start(self.clock.call_soon)

    # Requests.

    def create(self, name=NAME, content_type=TEXT, **fields):
        request = CreateRequest(content_type, **fields)
        return self._ask(self.shard.create, name, request)

    def append(self, body=b"", name=NAME, media=TEXT, **fields):
        request = AppendRequest(body, media if body else None, **fields)
        return self._ask(self.shard.append, name, request)

    def produce(self, seq, body=b"x", epoch=0, producer_id=b"p", **fields):
        return self.append(body, producer=Producer(producer_id, epoch, seq), **fields)

    def delete(self, name=NAME):
        return self._ask(self.shard.delete, name)

    def fork(self, name, source=NAME, offset=None, content_type=None, **fields):
        staged = self.shard._staging.view(source)
        number = 0 if staged is None else staged.number
        request = ForkRequest(source, offset, offset, source=number)
        return self.create(name, content_type, fork=request, **fields)

    def publish(self, offset, name=NAME, number=None):
        """Publish a snapshot of a stream, whose body nobody looks at."""
        if number is None:
            number = self.shard.find(name).number
        snapshot = Snapshot(offset, f"snapshots/{number}/{offset}", TEXT, SNAPSHOT_BYTES, 1)
        return self.publish_stored(StoredSnapshot(name, number, snapshot))

    def publish_stored(self, stored):
        publish = self.shard.snapshots.publish
        return self._ask(lambda reply, context: publish([stored], reply, [context]))

    def create_bucket(self, name):
        return self._ask(self.shard.buckets.create, name)

    def delete_bucket(self, name):
        return self._ask(self.shard.buckets.delete, name)

    def documents(self, **changes):
        return self._ask(self.shard.documents.commit, changes)

    def listed(self, prefix, after="", page=2):
        """The names of all published streams that start so."""
        return [each.name for each in self.shard.listing.streams(prefix, after, page)]

    def read(self, name=NAME):
        """All durable bytes of the stream."""
        return b"".join(self.shard.find(name).chunks)

    def content(self, name=NAME, start=None, bytes_max=7):
        """All that can be read of the stream, wherever it is; in small pieces."""
        stream = self.shard.find(name)
        at, data = stream.earliest if start is None else start, b""
        while at < stream.tail:
            answers = []
            run(self.shard.reader.read(stream, at, bytes_max), answers.append)
            self.clock.run()
            [answer] = answers
            if isinstance(answer, HoldfastError):
                raise answer
            assert answer.end > at
            at, data = answer.end, data + answer.data
        return data

    def exists(self, name=NAME):
        try:
            self.shard.find(name)
        except HoldfastError:
            return False
        return True

    @staticmethod
    def _ask(call, *args):
        ask = Ask()
        try:
            call(*args, reply, ask)
        except HoldfastError as error:
            ask.outcomes.append(error)
        return ask

    # The log and the clock.

    def answer(self, outcome, **truth):
        """Let the loop run, and give the batch under way this outcome."""
        self.clock.run()
        self.log.answer(outcome, **truth)
        self.clock.run()

    def commit(self):
        """Have everything pending committed."""
        self.clock.run()
        while self.log.under_way is not None:
            self.log.answer(COMMITTED)
            self.clock.run()

    def committed(self, ask):
        """The answer to a request once everything pending is durable."""
        self.commit()
        return ask.outcome

    def restart(self, *, clock=None):
        """Another shard on what the log kept, as after kill -9."""
        return Driver(batches=list(self.log.batches), clock=clock or self.clock, **self.limits)


def dump(state):
    """Everything that must be the same after a replay, in a form that compares."""
    streams = [
        {
            "number": number,
            "meta": stream.meta,
            "media": stream.media,
            "created_ms": stream.created_ms,
            "last_write_ms": stream.last_write_ms,
            "tail": stream.tail,
            "closed": stream.closed,
            "closer": stream.closer,
            "producers": stream.producers,
            "seq": stream.seq,
            "chunks": stream.chunks,
            "ends": stream.ends,
            "recorded_deadline_ms": stream.recorded_deadline_ms,
            "gone": stream.gone,
            "base": stream.base,
            "start": stream.start,
            "earliest": stream.earliest,
            "snapshot": stream.snapshot,
            "forks": stream.forks,
            "deleted": stream.deleted,
        }
        for number, stream in sorted(state.by_number.items())
    ]
    names = {name: stream.number for name, stream in state.by_name.items()}
    sizes = state.stored_bytes, state.appended_bytes
    return streams, names, sizes, state.buckets, state.documents
