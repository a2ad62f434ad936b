"""The simulated machine, and the lives of a node on it."""

from collections import deque
from pathlib import Path
from random import Random

from holdfast.engine.shard import Shard
from holdfast.engine.stream import Stream
from holdfast.errors import HoldfastError
from holdfast.log.file import FileLog
from holdfast.log.interface import CommitOutcome
from holdfast.objects.store import MemoryObjects
from holdfast.storage.catalog import Catalog
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.cold import ColdReader
from holdfast.testing import FakeClock, FaultyObjects, StoreFaults
from tests.producer_states import known_producers, stored_producers
from tests.simulation.files import SimFiles
from tests.simulation.model import Violation
from tests.simulation.relatives import BUCKET, DOCUMENT
from tests.simulation.storage_worker import SimWorker
from tests.simulation.timing import ClockWorker, LifeClock

LOG = Path("/data/log")
POST_US = (0, 2000)
CALLS_AT_ONCE_MAX = 10_000
READ_US = (100, 20_000)


class Objects(MemoryObjects):
    """Objects in memory; somebody is told of every one that is removed."""

    on_remove = None
    last_put = ""

    def put(self, name, data):
        self.last_put = name
        super().put(name, data)

    def remove(self, name):
        self.on_remove(name)
        super().remove(name)


class Clock(FakeClock):
    """A clock that notices when time stands still because something never ends."""

    def __init__(self, seed):
        super().__init__(seed=seed)
        self._last_s = -1.0
        self._calls = 0

    def call_later(self, delay_s, call, *args):
        now_s = self.monotonic_s()
        self._calls = self._calls + 1 if now_s == self._last_s else 0
        self._last_s = now_s
        if self._calls > CALLS_AT_ONCE_MAX:
            raise Violation(f"this never ends: {call} {args}")
        return super().call_later(delay_s, call, *args)


class Machine:
    """What outlives a process: disk, catalog, object store, time."""

    def __init__(self, seed, directory):
        self.clock = Clock(seed)
        self.files = SimFiles(Random(seed + 1))
        self.catalog_path = directory / "catalog.sqlite"
        self.objects = Objects(self.clock)
        self.faults = StoreFaults()
        self.cold_faults = StoreFaults()
        # Until then the disk takes no orders, and reads of segments fail.
        self.disk_stalled_until_s = 0.0
        self.segments_unreadable_until_s = 0.0

    def read_file(self, path):
        if self.clock.monotonic_s() < self.segments_unreadable_until_s:
            raise OSError(5, "Input/output error")
        return self.files.read(Path(path))

    @property
    def is_in_trouble(self):
        """Whether the log's disk fails, or is going to."""
        files = self.files
        return bool(
            files.capacity_bytes is not None
            or files.fault_rate
            or files._faults
            or self.disk_stalled_until_s > self.clock.monotonic_s()
        )

    def heal(self):
        self.files.heal()
        self.files.capacity_bytes = None
        self.faults.heal()
        self.cold_faults.heal()
        self.disk_stalled_until_s = self.segments_unreadable_until_s = 0.0


class DiskClock(LifeClock):
    """The time of the commit thread: it stands still while the disk does."""

    def __init__(self, machine):
        super().__init__(machine.clock)
        self._machine = machine

    def call_later(self, delay_s, call, *args):
        stall_s = self._machine.disk_stalled_until_s - self.monotonic_s()
        return super().call_later(max(0.0, stall_s) + delay_s, call, *args)


class TracedLog(FileLog):
    """A file log that tells what it is given."""

    trace = None
    # The last position that was told to be durable.
    committed = 0

    def append(self, position, parts, done):
        self.trace("batch", position, b"".join(parts))

        def told(result):
            self.trace("batch", position, result.outcome.value)
            if result.outcome is CommitOutcome.COMMITTED:
                self.committed = position
            done(result)

        super().append(position, parts, told)


class Post:
    """The way from the commit thread to the event loop, which takes a while and keeps the order."""

    def __init__(self, clock):
        self._clock = clock
        self._posted = deque()

    def __call__(self, call, *args):
        self._posted.append((call, args))
        self._clock.call_later(self._clock.random_int(*POST_US) / 1e6, self._arrive)

    def _arrive(self):
        call, args = self._posted.popleft()
        call(*args)


class Ranges:
    """A range reader whose reads take a while, and count what went wrong on purpose."""

    def __init__(self, machine, clock):
        self._inner = machine.objects
        self._store = FaultyObjects(machine.objects, machine.cold_faults)
        self._clock = clock
        self.failures = 0
        self.flips = 0

    def read(self, name, at, size, done):
        delay_s = self._clock.random_int(*READ_US) / 1e6
        self._clock.call_later(delay_s, self._answer, name, at, size, done)

    def _answer(self, name, at, size, done):
        try:
            found = self._store.read(name, at, size)
        except HoldfastError as error:
            self.failures += 1
            done(error)
            return
        if found != self._inner.read(name, at, size):
            self.flips += 1
        done(found)

    def close(self):
        pass


class Node:
    """One life of a node, from its start to its end."""

    def __init__(self, machine, plan, *, trace, on_failpoint):
        self._opened = []
        self.clock = LifeClock(machine.clock)
        self.disk_clock = DiskClock(machine)
        self.commit_worker = ClockWorker(self.disk_clock)
        try:
            self._start(machine, plan, trace, on_failpoint)
        except BaseException:
            self.end()
            raise

    def _start(self, machine, plan, trace, on_failpoint):
        # Snapshots that were uploaded and may still be published.
        self.unpublished = set()
        CatalogWriter(machine.catalog_path).close()
        self.catalog = Catalog(machine.catalog_path)
        self._opened.append(self.catalog.close)
        self.ranges = Ranges(machine, self.clock)
        self.log = TracedLog(
            LOG,
            self.clock,
            segment_bytes=plan.segment_bytes,
            ballast_bytes=plan.ballast_bytes,
            zero_ahead_bytes=plan.zero_ahead_bytes,
            files=machine.files,
            worker=self.commit_worker,
            records_end=True,
        )
        self.log.trace = trace
        self.shard = Shard(
            self.log,
            self.clock,
            batch_bytes_max=plan.batch_bytes_max,
            pending_bytes_max=plan.pending_bytes_max,
            commit_timeout_s=plan.commit_timeout_s,
            ttl_is_fixed=plan.ttl_is_fixed,
            catalog=self.catalog,
        )
        self.worker = SimWorker(
            self.clock,
            machine.catalog_path,
            FaultyObjects(machine.objects, machine.faults),
            merge_packs=plan.merge_packs,
            garbage_grace_s=plan.grace_s,
            collect_s=plan.collect_s,
            read_file=machine.read_file,
            held_snapshots=self._held_snapshots,
            on_failpoint=on_failpoint,
        )
        self._opened.append(self.worker.end)
        self.cold = ColdReader(self.catalog, self.ranges, plan.cache_bytes)
        self.shard.attach(
            self.worker,
            self.cold,
            soft_bytes=plan.soft_bytes,
            hard_bytes=plan.hard_bytes,
            flush_age_s=plan.flush_age_s,
            streams_cached_max=plan.streams_cached_max,
        )
        self.batches = self.shard.recover()
        self.worker.start()
        self.log.committed = self.shard.commits.last_position
        self.shard.start(Post(self.clock))

    def _held_snapshots(self, names):
        held = self.shard.tier.unflushed_snapshots | self.unpublished
        return held.intersection(names)

    @property
    def is_idle(self):
        """Whether nothing is on its way to the log."""
        commits = self.shard.commits
        return not commits.stalled and commits._under_way is None and not commits._waiting

    def seen(self, name):
        """The stream of this name as the node has it, wherever that is; not as a reader would.

        Nothing comes into memory by this.
        """
        state = self.shard.state
        stream = state.by_name.get(name)
        if stream is None and name not in state.removed:
            stream = self.catalog.find_name(name)
        return stream

    def producers(self, seen):
        """The last pair and digest of each producer of a stream that was seen, wherever it is."""
        if isinstance(seen, Stream):
            known = known_producers(self.catalog, seen)
        else:
            known = stored_producers(self.catalog, seen.number)
        return {
            producer_id: (state.epoch, state.seq, state.digest)
            for producer_id, state in known.items()
        }

    def value(self, name):
        """A document, or whether a bucket was created, by the name that the model has for it."""
        state = self.shard.state
        if name.startswith(DOCUMENT):
            return state.documents.get(name.removeprefix(DOCUMENT))
        bucket = state.buckets.get(name.removeprefix(BUCKET))
        return True if bucket is not None and bucket.explicit else None

    def end(self):
        """As kill -9 does it."""
        self.clock.end()
        self.disk_clock.end()
        self.commit_worker.kill()
        for close in reversed(self._opened):
            close()
        self._opened.clear()
