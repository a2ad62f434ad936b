"""Writes: sent, answered once, and each answer held against the model."""

from holdfast.engine.metadata_writes import StoredSnapshot
from holdfast.errors import (
    CommitFailedError,
    CommitUnknownError,
    HoldfastError,
    OverloadedError,
    UnavailableError,
)
from tests.simulation.checks import differences, same_stream
from tests.simulation.model import Refusal, Violation
from tests.simulation.relatives import BUCKET, DOCUMENT

# What makes no stream larger, or even frees memory.
TAKEN_WHEN_FULL = ("delete", "snapshot", "delete_bucket", "documents")


class Write:
    """A request under way, the answer it is to get, and what it does then."""

    def __init__(self, number, kind, name, expected, effect, rests_on, done):
        self.number = number
        self.kind = kind
        self.name = name
        self.expected = expected
        self.effect = effect
        self.rests_on = rests_on
        self.done = done
        self.answer = None


class Writes:
    def __init__(self, run):
        self._run = run
        self._model = run.model
        self._count = 0
        # Sent and not answered.
        self.open: dict[int, Write] = {}
        self._failures = 0

    # Sending.

    def create(self, name=None):
        run = self._run
        name = name or run.requests.name()
        self.send("create", name, *run.requests.create(name, run.now_ms))

    def append(self):
        run = self._run
        name = run.requests.name()
        if self._model.writable(name, run.now_ms) is None and run.random.random() < 0.9:
            self.create(name)
        else:
            self.send("append", name, *run.requests.append(name, run.now_ms))

    def delete(self):
        self.send("delete", self._run.requests.name())

    def fork(self):
        run = self._run
        name, request, messages = run.requests.fork()
        if name:
            self.send("fork", name, request, messages)

    def bucket(self):
        kind = self._run.random.choice(("create_bucket", "delete_bucket"))
        self.send(kind, self._run.requests.bucket())

    def document(self):
        self.send("documents", *self._run.requests.document())

    def send(self, kind, name, *what, done=None):
        run, model = self._run, self._model
        self.sync()
        refusal = self._refusal(kind)
        rests_on = self._rests_on(kind, name, what)
        expected, effect = getattr(model, kind)(name, *what, run.now_ms)
        if refusal is not None:
            expected, effect, rests_on = refusal, None, None
        self._count += 1
        write = Write(self._count, kind, name, expected, effect, rests_on, done)
        run.trace("send", write.number, kind, name, *what[:1])
        self.open[write.number] = write
        if effect is not None:
            model.pending.append(effect)
        try:
            self._ask(kind, name, what, write)
        except HoldfastError as error:
            self._answered(write, error)

    def _rests_on(self, kind, name, what):
        """The pending effect before which a refusal must not be answered."""
        model = self._model
        if kind == "fork" and model.staged(name) is None:
            return model.last_effect(name, what[0].fork.name)
        return model.last_effect(name)

    def _ask(self, kind, name, what, write):
        shard, reply = self._run.node.shard, self._answered
        match kind:
            case "fork":
                shard.create(name, what[0], reply, write)
            case "snapshot":
                number = self._model.numbers[what[1]]
                stored = StoredSnapshot(name, number, what[0])
                shard.snapshots.publish([stored], reply, [write])
            case "create_bucket":
                shard.buckets.create(name.removeprefix(BUCKET), reply, write)
            case "delete_bucket":
                shard.buckets.delete(name.removeprefix(BUCKET), reply, write)
            case "documents":
                shard.documents.commit({name.removeprefix(DOCUMENT): what[0]}, reply, write)
            case _:
                getattr(shard, kind)(name, *what[:1], reply, write)

    def _refusal(self, kind):
        """The error a write gets where no write is taken, or none of its kind."""
        shard = self._run.node.shard
        tier, commits = shard.tier, shard.commits
        is_full = tier.cost_bytes > tier.hard_bytes
        if bool(commits.full) != is_full:
            raise Violation(f"full is {commits.full!r} at {tier.cost_bytes} hot bytes")
        if is_full and kind not in TAKEN_WHEN_FULL:
            self._run.refused("hot limit")
            return Refusal(OverloadedError)
        if shard.commits.stalled:
            self._run.refused("stalled")
            return Refusal(UnavailableError)
        if commits.pending_bytes > commits.pending_bytes_max:
            self._run.refused("pending bytes")
            return Refusal(OverloadedError)
        room_bytes = tier.hard_bytes - tier.cost_bytes
        if commits.pending_bytes > room_bytes and kind not in TAKEN_WHEN_FULL:
            self._run.refused("hot limit")
            return Refusal(OverloadedError)
        return None

    # Answers.

    def _answered(self, write, outcome):
        self._run.trace("answer", write.number, outcome)
        if self.open.pop(write.number, None) is None:
            raise Violation(f"request {write.number} was answered twice")
        write.answer = outcome
        effect = write.effect
        if write.done is not None:
            write.done(outcome)
        if isinstance(outcome, CommitFailedError):
            self._run.saw("commit failed")
            self.sync()
        elif isinstance(outcome, CommitUnknownError):
            self._run.saw("commit unknown")
            if effect is not None:
                effect.is_unknown = True
        else:
            self._confirmed(write, outcome)

    def _confirmed(self, write, outcome):
        model, expected = self._model, write.expected
        if isinstance(expected, Refusal):
            if not expected.fits(outcome):
                raise Violation(f"{write.kind} {write.number}: {outcome!r} instead of {expected}")
        elif outcome != expected:
            raise Violation(f"{write.kind} {write.number}: {outcome!r} instead of {expected!r}")
        if write.effect is None:
            if write.rests_on in model.pending and not model.is_unsettled:
                raise Violation(f"request {write.number} was answered before what it rests on")
            return
        if write.effect not in model.pending:
            raise Violation(f"request {write.number} was confirmed after it had failed")
        self._run.saw(f"confirmed {write.kind}")
        model.publish_through(write.effect)

    # What became of writes whose outcome was unknown.

    def sync(self):
        """See what has been decided since the last time."""
        model, shard = self._model, self._run.node.shard
        failures = shard.counters.commit_failures
        if model.is_unsettled:
            model.publish(model.settled(self._is_published))
            if not model.is_unsettled:
                self._run.saw("unknown write found")
        if failures != self._failures:
            self._failures = failures
            model.drop()

    def _is_published(self, name, version):
        run, model = self._run, self._model
        if name not in run.names:
            return run.node.value(name) == version
        seen = run.node.seen(name)
        if version is None:
            return seen is None
        if seen is None:
            return model.is_due(version, run.now_ms)
        return same_stream(model, run.node, version, seen)

    def crashed(self):
        """Whoever waits for an answer gets none."""
        self.open.clear()
        self._failures = 0

    def check_all_answered(self):
        for write in self.open.values():
            version = self._model.staged(write.name)
            seen = self._run.node.seen(write.name)
            raise Violation(f"no answer to {write.kind} {write.number}{differences(version, seen)}")
