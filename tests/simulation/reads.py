"""Reads: from memory at once, from packs after a while, and by readers who wait for more."""

from holdfast.engine.reading import check_offset, end_of_read, read
from holdfast.errors import (
    HoldfastError,
    InvalidOffsetError,
    OffsetGoneError,
    PackCorruptError,
    StoreError,
    StreamDeletedError,
    StreamNotFoundError,
)
from holdfast.storage import cold
from holdfast.storage.pending import run as run_coroutine
from tests.simulation import model as rules
from tests.simulation.checks import check_hot_bytes, differences, same_stream
from tests.simulation.model import JSON, Violation

EVERYTHING = 1 << 40
BYTES_MAX = (1, 3, 4, 5, 17, 64, 300, 2000, EVERYTHING)


class ColdRead:
    """A read under way."""

    def __init__(self, run, version, number, start, bytes_max):
        self._run = run
        self._node = run.node
        self.version = version
        self.number = number
        self.start = start
        self.bytes_max = bytes_max
        # Where the stream may have ended while it was read.
        self.tails = [version.tail]
        self.is_removed = False
        # For forks, after it was deleted.
        self.was_kept = False
        self._failures = self._node.ranges.failures
        self._flips = self._node.ranges.flips
        self._extents = self._count_extents()

    def _count_extents(self):
        """Its own, and those of the streams it comes from."""
        version, model = self.version, self._run.model
        count, number = 0, self.number
        while True:
            count += len(self._node.catalog.extents(number, self.start, 1 << 30))
            if version is None or version.fork is None:
                return count
            birth, name, _ = version.fork
            number, version = model.numbers.get(birth, 0), model.published.get(name)

    def published(self, effect):
        """Something was published meanwhile."""
        if self.version.name in effect.changes:
            version = effect.changes[self.version.name]
            if version is None or version.birth != self.version.birth or version.deleted:
                self.is_removed = True
                self.was_kept |= version is not None and version.deleted
            else:
                self.version = version
                self.tails.append(version.tail)

    def check(self, result):
        """The result is what the rule says, for one of the ends the stream had."""
        if isinstance(result, HoldfastError):
            self._check_error(result)
            return
        end, data = result
        version, start = self.version, self.start
        if data != version.data[start:end]:
            raise Violation(f"a read of {version.name} from {start} to {end} gave wrong bytes")
        expected = {rules.end_of_read(version, t, start, self.bytes_max) for t in self.tails}
        if end in expected:
            return
        extents = max(self._extents, self._count_extents())
        if extents >= cold.EXTENTS_MAX and end in version.ends and start < end < max(expected):
            self._run.saw("read cut short after many extents")
            return
        raise Violation(
            f"a read of {version.name} from {start} with {self.bytes_max} bytes ended at {end} "
            f"instead of {sorted(expected)}"
        )

    def _check_error(self, error):
        run, ranges = self._run, self._node.ranges
        gone = self.is_removed or run.model.readable(self.version.name, run.now_ms) is None
        match error:
            case StreamNotFoundError() | StreamDeletedError():
                expected = gone
            case StreamDeletedError():
                expected = self.was_kept
            case OffsetGoneError():
                expected = self.start < self.version.earliest
                run.saw("read of what is gone")
            case InvalidOffsetError():
                is_json = self.version.media == JSON
                expected = is_json and self.start not in (0, *self.version.ends)
            case PackCorruptError():
                expected = ranges.flips > self._flips
                run.saw("corrupt pack read")
            case StoreError():
                expected = ranges.failures > self._failures
                run.saw("cold read failed")
            case _:
                expected = False
        if not expected:
            raise Violation(f"a cold read of {self.version.name} failed: {error!r}")


class Reads:
    def __init__(self, run):
        self._run = run
        self._model = run.model
        self._open: dict[int, ColdRead] = {}
        self._count = 0
        self._tailers: list[Tailer] = []
        # Offsets that answers have named, by birth.
        self._offsets: dict[int, list[int]] = {}
        # Deadlines that renewals have been promised: (birth, at least, failures so far).
        self._promises = []
        self.floors: dict[int, int] = {}
        run.model.on_publish.append(self._published)

    def _published(self, effect):
        for each in self._open.values():
            each.published(effect)

    # Looking a stream up.

    def find(self, name):
        """(stream, version), both None if there is no such stream, as a HEAD would find it."""
        run, model = self._run, self._model
        run.writes.sync()
        version = model.readable(name, run.now_ms)
        kept = model.published.get(name)
        is_kept = kept is not None and kept.deleted
        try:
            stream = run.node.shard.find(name)
        except (StreamNotFoundError, StreamDeletedError) as error:
            if version is not None or isinstance(error, StreamDeletedError) != is_kept:
                raise Violation(f"{name} is not found{differences(version, None)}") from None
            return None, None
        if version is None:
            raise Violation(f"{name} is found{differences(version, stream)}")
        if not same_stream(model, run.node, version, stream):
            raise Violation(f"{name} is wrong{differences(version, stream)}")
        if stream.deadline_ms != model.deadline_ms(version):
            raise Violation(f"{name} has another deadline{differences(version, stream)}")
        model.numbers[version.birth] = stream.number
        check_hot_bytes(version, stream)
        return stream, version

    def head(self):
        name = self._run.requests.name()
        stream, _ = self.find(name)
        self._run.trace("head", name, None if stream is None else (stream.number, stream.tail))

    # Catching up.

    def read(self):
        run, random = self._run, self._run.random
        name = run.requests.name()
        stream, version = self.find(name)
        bytes_max = random.choice(BYTES_MAX)
        if stream is None:
            run.trace("read", name, "not found")
            return
        known = self._offsets.setdefault(version.birth, [0])
        start = random.choice(known)
        if random.random() < 0.08:
            start = random.randint(0, version.tail + 3)
            if version.media != JSON and start < version.tail:
                # Offsets are opaque: only text is sensitive to where they are.
                start = random.choice((0, *version.ends))
        self.read_from(stream, version, start, bytes_max)

    def read_from(self, stream, version, start, bytes_max, done=None):
        """Read, and call `done(end)` once it is checked, `done(None)` if it failed."""
        run = self._run
        run.trace("read", version.name, start, bytes_max)
        try:
            check_offset(stream, start)
        except OffsetGoneError:
            if start >= version.earliest:
                raise Violation(f"offset {start} of {version.name} is refused") from None
            run.saw("read of what is gone")
            return
        except InvalidOffsetError:
            inside = version.media == JSON and start not in (0, *version.ends)
            if start <= version.tail and not inside:
                raise Violation(f"offset {start} of {version.name} is refused") from None
            return
        self._renew(stream, version)
        if start < stream.base:

            def finished(asked, result):
                if not isinstance(result, HoldfastError):
                    self._finished(asked.version, result.end, done)
                elif done is not None:
                    done(None)

            self.read_cold(stream, version, start, bytes_max, finished)
            return
        end = end_of_read(stream, start, bytes_max)
        data = read(stream, start, end)
        expected = rules.end_of_read(version, version.tail, start, bytes_max)
        if end != expected or data != version.data[start:end]:
            raise Violation(f"a read of {version.name} from {start} ends at {end}, not {expected}")
        self._finished(version, end, done)

    def _renew(self, stream, version):
        run, model = self._run, self._model
        # While memory is full nothing is recorded of one's own accord.
        is_certain = run.node.is_idle and not run.node.shard.commits.full
        before_ms = model.deadline_ms(version)
        run.node.shard.lifetimes.renew(stream)
        model.renew(version, run.now_ms)
        after_ms = model.deadline_ms(version)
        if after_ms != before_ms and is_certain:
            # What is not recorded is less than a tenth of the TTL.
            promise_ms = after_ms - version.ttl_s * 100
            failures = run.node.shard.counters.commit_failures
            self._promises.append((version.birth, promise_ms, failures))

    def read_cold(self, stream, version, start, bytes_max, done):
        """Read what is in packs; `done(asked, result)` once the result is checked."""
        run = self._run
        run.saw("cold read" if version.fork is None else "read through a fork")
        asked = ColdRead(run, version, stream.number, start, bytes_max)
        self._count += 1
        number = self._count
        self._open[number] = asked

        def finished(result):
            run.writes.sync()
            if self._open.pop(number, None) is None:
                raise Violation("a read was answered twice")
            run.trace("read done", number, result)
            asked.check(result)
            done(asked, result)

        run_coroutine(run.node.shard.reader.read(stream, start, bytes_max), finished)

    def _finished(self, version, end, done):
        self._offsets.setdefault(version.birth, [0]).append(end)
        if done is not None:
            done(end)

    # Waiting for more.

    def follow(self):
        run = self._run
        name = run.requests.name()
        stream, version = self.find(name)
        if stream is None or len(self._tailers) > 3:
            return
        run.trace("follow", name)
        start = run.random.choice([stream.earliest, stream.tail])
        tailer = Tailer(run, stream, version.birth, start, run.random.choice(BYTES_MAX[-4:]))
        self._tailers.append(tailer)
        run.node.shard.live.add(stream, tailer)
        tailer.wake()

    def unfollow(self):
        if self._tailers:
            tailer = self._tailers.pop(self._run.random.randrange(len(self._tailers)))
            tailer.leave()

    def check_tailers(self):
        """Nobody who follows a stream has missed anything."""
        for tailer in self._tailers:
            tailer.check()

    # Time passes.

    def tick(self):
        """Promises come true once everything is durable."""
        node = self._run.node
        if not node.is_idle:
            return
        failures = node.shard.counters.commit_failures
        for birth, promise_ms, before in self._promises:
            if failures == before:
                self.floors[birth] = max(promise_ms, self.floors.get(birth, 0))
        self._promises.clear()

    def crash_floors(self):
        """The least deadlines that have to survive a crash now, by birth."""
        model, state = self._model, self._run.node.shard.state
        floors = {}
        for version in model.streams():
            if not version.slides:
                continue
            stream = state.by_name.get(version.name)
            # Of what is not in memory the log knew all there was to know.
            floor_ms = stream.recorded_deadline_ms if stream else model.deadline_ms(version)
            floors[version.birth] = max(floor_ms, self.floors.get(version.birth, 0))
        return floors

    def crashed(self):
        self._open.clear()
        self._tailers.clear()
        self._promises.clear()

    @property
    def is_idle(self):
        return not self._open


class Tailer:
    """Somebody who reads a stream as it grows."""

    def __init__(self, run, stream, birth, at, bytes_max):
        self._run = run
        self._node = run.node
        self._stream = stream
        self._birth = birth
        self._at = at
        self._bytes_max = bytes_max
        self._is_reading = False
        self._has_left = False

    def wake(self):
        """Take what is there."""
        run = self._run
        run.writes.sync()
        while not (self._is_reading or self._has_left):
            stream = self._stream
            if stream.gone or self._at >= stream.tail:
                return
            if self._at < stream.earliest:
                # A snapshot has overtaken it.
                self.leave()
                return
            version = run.model.published.get(stream.meta.name)
            if version is None or version.birth != self._birth:
                raise Violation(f"{stream.meta.name} should be gone for those who follow it")
            self._is_reading = True
            if self._at < stream.base:
                run.reads.read_cold(stream, version, self._at, self._bytes_max, self._got)
            else:
                end = end_of_read(stream, self._at, self._bytes_max)
                data = read(stream, self._at, end)
                if data != version.data[self._at : end] or end <= self._at:
                    raise Violation(f"a follower of {version.name} got wrong bytes")
                self._at, self._is_reading = end, False
                run.saw("followed")

    def _got(self, _asked, result):
        self._is_reading = False
        if isinstance(result, HoldfastError):
            self.leave()
            return
        self._at = result.end
        self._node.clock.call_soon(self.wake)

    def finish(self):
        """Nothing to say."""

    def leave(self):
        self._has_left = True
        self._node.shard.live.remove(self._stream, self)

    def check(self):
        """Whoever follows a stream has all of it, and knows of its end."""
        run, stream = self._run, self._stream
        name = stream.meta.name
        version = run.model.published.get(name)
        if self._has_left or run.model.is_unsettled:
            return
        if version is None or version.birth != self._birth or version.deleted:
            if not stream.gone:
                raise Violation(f"a follower of {name} does not know that it is gone")
        elif stream.gone:
            if not run.model.is_due(version, run.now_ms):
                raise Violation(f"a follower of {name} takes it for gone")
        elif not self._is_reading and self._at != version.tail:
            raise Violation(f"a follower of {name} is at {self._at} of {version.tail}")
