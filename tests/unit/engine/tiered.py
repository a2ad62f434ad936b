"""A shard with storage behind it, driven by hand: the test says when a flush is done, or fails."""

from holdfast.engine.shard import Shard
from holdfast.engine.stream import RECORD_COST_BYTES, STREAM_COST_BYTES
from holdfast.errors import StoreError
from holdfast.format.records import Kind, decode
from holdfast.format.segments import SegmentHeader, encode_batch, encode_header
from holdfast.log.interface import SealedSegment
from holdfast.objects.store import MemoryObjects, PostedRanges
from holdfast.storage.catalog import Catalog
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.cold import ColdReader
from holdfast.storage.commands import WorkCounters
from holdfast.storage.pending import run
from holdfast.storage.worker import StorageWorker
from holdfast.testing import FakeClock, ScriptedLog
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, Driver

MIB = 1024 * 1024
LARGE = bytes(5000)
SOFT, HARD = 4000, 12_000


class SegmentedLog(ScriptedLog):
    """A scripted log whose cuts come with segments that a storage worker can read."""

    def __init__(self, batches=None):
        super().__init__(batches)
        self.files = {}

    def cut(self, done):
        super().cut(lambda cut: done(cut._replace(segments=self._segments(cut.through))))

    def _segments(self, through):
        batches = [batch for batch in self.batches if batch.position <= through]
        if not batches:
            return ()
        salt, first = 77, batches[0].position
        data = encode_header(SegmentHeader(salt, first, 0, 0))
        data += b"".join(encode_batch(salt, *batch) for batch in batches)
        path = f"{first}-{through}"
        self.files[path] = data
        return (SealedSegment(path, len(data), first, batches[-1].position),)


class HeldWorker:
    """A storage worker that works when it is told to; `auto` has it work at once."""

    restarts = 0

    def __init__(self, inner, clock):
        self.inner = inner
        self.clock = clock
        self.asked = []
        self.auto = False

    @property
    def counters(self):
        return WorkCounters()

    def submit(self, command, done):
        self.asked.append((command, done))
        if self.auto:
            self.clock.call_soon(self.work)

    def work(self):
        """Carry out what was asked for first, and answer."""
        command, done = self.asked.pop(0)
        self.inner.handle(command)
        done(self.inner.flushed)

    def fail(self, error=None, *, after_effect=False):
        """Answer with an error, perhaps though it was done."""
        command, done = self.asked.pop(0)
        if after_effect:
            self.inner.handle(command)
        done(error or StoreError("no store"))


class Tiered(Driver):
    """A started shard with a catalog in `path`, which may have been there before."""

    def __init__(
        self,
        path,
        *,
        batches=None,
        clock=None,
        store=None,
        soft_bytes=1000 * MIB,
        hard_bytes=2000 * MIB,
        flush_age_s=600.0,
        streams_cached_max=5000,
        producers_max=0,
        producer_idle_s=0,
    ):
        self.path = path
        self.clock = clock or FakeClock()
        self.log = SegmentedLog(batches)
        self.store = store or MemoryObjects(self.clock)
        self.writer = CatalogWriter(path / "catalog.db")
        self.catalog = Catalog(path / "catalog.db")
        self.limits = {
            "soft_bytes": soft_bytes,
            "hard_bytes": hard_bytes,
            "flush_age_s": flush_age_s,
            "streams_cached_max": streams_cached_max,
        }
        self.of_producers = {"producers_max": producers_max, "producer_idle_s": producer_idle_s}
        inner = StorageWorker(
            self.writer,
            self.store,
            self.clock,
            merge_packs=4,
            garbage_grace_s=60.0,
            producers_max=producers_max,
            producer_idle_s=producer_idle_s,
            read_file=self.log.files.__getitem__,
            held_snapshots=lambda names: self.tier.unflushed_snapshots & set(names),
        )
        self.worker = HeldWorker(inner, self.clock)
        self.shard = Shard(
            self.log,
            self.clock,
            batch_bytes_max=MIB,
            pending_bytes_max=1000 * MIB,
            commit_timeout_s=COMMIT_TIMEOUT_S,
            catalog=self.catalog,
            producers_max=producers_max,
            producer_idle_s=producer_idle_s,
        )
        self.cold = ColdReader(
            self.catalog, PostedRanges(self.store, self.clock.call_soon), 10 * MIB
        )
        self.shard.attach(self.worker, self.cold, **self.limits)
        self.tier, self.state = self.shard.tier, self.shard.state
        self.lifetimes = self.shard.lifetimes
        self.recovered = self.shard.recover()
        self.shard.start(self.clock.call_soon)

    def close(self):
        self.shard.stop()
        self.catalog.close()
        self.writer.close()

    def restart(self, *, clock=None, **limits):
        """Another shard on what the log kept, as after kill -9."""
        self.close()
        return Tiered(
            self.path,
            batches=list(self.log.batches),
            clock=clock or self.clock,
            store=self.store,
            **{**self.limits, **self.of_producers, **limits},
        )

    # Flushing.

    def begin_flush(self):
        """Have everything committed, and the log cut and handed to the worker."""
        self.commit()
        self.tier.flush(lambda _: None)
        self.clock.run()
        assert len(self.worker.asked) == 1

    def finish_flush(self):
        self.worker.work()
        self.clock.run()

    def flush(self):
        """Have everything that was written in packs, and let go."""
        self.commit()
        if self.state.generation.records:
            self.begin_flush()
            self.finish_flush()

    def written(self, *names, body=b"x", **fields):
        """Streams that are flushed and idle."""
        for name in names:
            self.create(name, body=body, **fields)
        self.flush()

    # What there is.

    @property
    def names(self):
        """The streams in memory."""
        return set(self.state.by_name)

    def data(self, name):
        """All of a stream's bytes, from wherever they are."""
        stream = self.shard.find(name)
        at, data = 0, b""
        while at < stream.tail:
            if at >= stream.base:
                inside = b"".join(stream.chunks)
                return data + inside[at - stream.base :]
            answers = []
            run(self.shard.reader.read(stream, at, MIB), answers.append)
            self.clock.run()
            [result] = answers
            assert result.end > at
            data += result.data
            at = result.end
        return data

    def kinds(self):
        """The kinds of all records that the log still has."""
        return [record.kind for batch in self.log.batches for record in decode(batch.body)]

    def expiries(self):
        return self.kinds().count(Kind.EXPIRE)


def cost(records, streams, size_bytes):
    return RECORD_COST_BYTES * records + STREAM_COST_BYTES * streams + size_bytes
