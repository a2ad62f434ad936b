"""A log written by hand, and a storage worker with store, catalog and clock to flush it into."""

from functools import partial

from xxhash import xxh3_64_intdigest

from holdfast.format.records import (
    Fork,
    Kind,
    Record,
    Snapshot,
    StreamMeta,
    encode,
    encode_documents,
    encode_snapshot,
    stream_number,
)
from holdfast.format.segments import SegmentHeader, encode_batch, encode_header
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import MemoryObjects, PostedRanges
from holdfast.storage.catalog import Catalog
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.cold import ColdReader
from holdfast.storage.commands import FlushLog
from holdfast.storage.flush import SegmentRef
from holdfast.storage.pending import run
from holdfast.storage.worker import StorageWorker
from holdfast.testing import FakeClock, FaultyObjects, FaultyRanges

TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"
DAY_S = 24 * 3600
_SALT = 0x5A17


class Log:
    """Batches of records, and the segments they were sealed into."""

    def __init__(self):
        self.files = {}
        self.segments = []
        self.batches = []
        self.open = []
        self.now_ms = 1_000
        self._sealed = 0

    @property
    def position(self):
        """The position that the open batch will have."""
        return len(self.batches) + 1

    # Records of the open batch.

    def create(
        self,
        name,
        body=b"",
        content_type=BINARY,
        *,
        ttl_s=None,
        expires_at_ms=None,
        fork=None,
        **more,
    ):
        number = stream_number(self.position, len(self.open))
        meta = StreamMeta(name, content_type, ttl_s, expires_at_ms, fork)
        self.open.append(Record(Kind.CREATE, number, self.now_ms, body, meta=meta, **more))
        return number

    def fork(self, name, source, source_name, offset, body=b"", **more):
        return self.create(name, body, fork=Fork(source, source_name, offset), **more)

    def append(self, number, body=b"", **more):
        self.open.append(Record(Kind.APPEND, number, self.now_ms, body, **more))

    def touch(self, number, deadline_ms):
        self.open.append(Record(Kind.TOUCH, number, deadline_ms))

    def delete(self, number):
        self.open.append(Record(Kind.DELETE, number, self.now_ms))

    def expire(self, number):
        self.open.append(Record(Kind.EXPIRE, number, self.now_ms))

    def snapshot(self, number, snapshot):
        payload = encode_snapshot(snapshot)
        self.open.append(Record(Kind.SNAPSHOT, number, self.now_ms, payload))

    def create_bucket(self, name):
        self.open.append(Record(Kind.CREATE_BUCKET, 0, self.now_ms, name.encode()))

    def delete_bucket(self, name):
        self.open.append(Record(Kind.DELETE_BUCKET, 0, self.now_ms, name.encode()))

    def documents(self, /, **changes):
        payload = encode_documents(changes)
        self.open.append(Record(Kind.DOCUMENTS, 0, self.now_ms, payload))

    # Batches and segments.

    def commit(self):
        """End the open batch; its position."""
        records, self.open = self.open, []
        self.batches.append(records)
        return len(self.batches)

    def body(self, position):
        return b"".join(map(encode, self.batches[position - 1]))

    def seal(self):
        """Put what was committed since the last seal into a segment; its reference."""
        if self.open:
            self.commit()
        first = self._sealed + 1
        data = encode_header(SegmentHeader(_SALT, first, 0, 0))
        for position in range(first, self.position):
            data += encode_batch(_SALT, position, self.body(position))
        path = f"{len(self.segments) + 1:08d}.log"
        # Room that was made ahead lies behind a segment's end.
        self.files[path] = data + bytes(100)
        self._sealed = self.position - 1
        self.segments.append(SegmentRef(path, len(data), self._sealed))
        return self.segments[-1]


class Rig:
    """Everything the storage process has, in memory but for the catalog."""

    def __init__(self, path, *, merge_packs=4, garbage_grace_s=DAY_S, seed=0):
        self.clock = FakeClock(seed=seed)
        self.log = Log()
        self.memory = MemoryObjects(self.clock)
        self.store = FaultyObjects(self.memory)
        self.writer = CatalogWriter(path / "catalog.db")
        self.catalog = Catalog(path / "catalog.db")
        self.ranges = FaultyRanges(PostedRanges(self.memory, self.clock.call_soon))
        self.cold = ColdReader(self.catalog, self.ranges, 64 * 1024 * 1024)
        # Snapshots that the server says it needs.
        self.held = set()
        self.start(merge_packs, garbage_grace_s)

    def start(self, merge_packs=4, garbage_grace_s=DAY_S, **more):
        """Start the worker, as after a restart of the process."""
        self.worker = StorageWorker(
            self.writer,
            self.store,
            self.clock,
            merge_packs=merge_packs,
            garbage_grace_s=garbage_grace_s,
            read_file=self.log.files.__getitem__,
            held_snapshots=self.held.intersection,
            **more,
        )

    def close(self):
        self.catalog.close()
        self.writer.close()

    # Work.

    def flush(self):
        """Flush everything that was written."""
        if self.log.open or self.log.position - 1 > self.log._sealed:
            self.log.seal()
        self.worker.handle(FlushLog(self.log.segments))

    def flush_each(self, *writes):
        """Flush after each of these calls."""
        for write in writes:
            write()
            self.flush()

    def merge(self):
        """One merge if there is one to do; whether there was and it was put into use."""
        plan = self.worker.plan_merge()
        if plan is None:
            return False
        return self.worker.finish_merge(self.worker.write_merge(plan), 0.1)

    # What there is.

    @property
    def packs(self):
        """The packs in use."""
        return self.writer.packs()

    @property
    def retired(self):
        return self.writer.packs("retired_ms IS NOT NULL")

    @property
    def pack_objects(self):
        return {name for name in self.memory.objects if name.startswith("packs/")}

    @property
    def orphans(self):
        """Packs in the store that the catalog does not know."""
        return self.pack_objects - {row.name for row in self.writer.packs("TRUE")}

    def open_pack(self, row):
        return Pack(self.memory, row.name, row.size_bytes)

    def extents(self, number):
        return self.catalog.extents(number, 0, 10_000)

    def stored(self, number):
        """The bytes of a stream that are needed, put together from its extents."""
        row, extents, data = self.catalog.find_number(number), self.extents(number), b""
        at = extents[0].start if extents else row.start
        assert at <= row.start < (extents[0].end if extents else row.start + 1)
        dead = row.start - at
        for extent in extents:
            assert extent.start == at, "extents leave no gap"
            data += self.memory.read(extent.pack, extent.data_at, extent.length)
            at = extent.end
        return data[dead:]

    def messages(self, number):
        """The messages that are needed as (bytes, timestamp, position), from the packs' indexes."""
        found, start = [], self.catalog.find_number(number).start
        packs = {row.name: self.open_pack(row) for row in self.packs}
        for extent in self.extents(number):
            pack, at, end = packs[extent.pack], extent.data_at, extent.start
            first = (extent.lengths_at - pack.footer.lengths_at) // 4
            part = pack.index().part(first, first + extent.messages)
            for length, at_ms, position in zip(
                part.lengths, part.timestamps, part.positions, strict=True
            ):
                end += length
                if end > start:
                    found.append((self.memory.read(extent.pack, at, length), at_ms, position))
                at += length
        return found

    def dump(self):
        """What the catalog says, but for the names and numbers of packs."""
        read = self.writer.read
        return {
            "facts": read("SELECT * FROM facts ORDER BY name"),
            "streams": read("SELECT * FROM streams ORDER BY number"),
            "documents": read("SELECT * FROM documents ORDER BY key"),
            "times": read("SELECT * FROM times"),
            "extents": read(
                "SELECT stream, start, length, messages, first_position, last_position "
                "FROM extents ORDER BY stream, start"
            ),
            "packs": read(
                "SELECT size_bytes, data_bytes, dead_bytes, messages, rows, has_delta, after, "
                "through FROM packs WHERE retired_ms IS NULL ORDER BY after, has_delta, data_bytes"
            ),
            "bytes": {
                number: self.stored(number) for (number,) in read("SELECT number FROM streams")
            },
        }

    def verify(self):
        """Every pack in use is sound, and the catalog has what it says."""
        for row in self.packs:
            assert sum(self.open_pack(row).verify()) == row.size_bytes
        for (number,) in self.writer.read("SELECT number FROM streams"):
            row = self.catalog.find_number(number)
            assert len(self.stored(number)) == row.tail - row.start
        totals = self.catalog.totals()
        (streams,) = self.writer.read("SELECT count(*) FROM streams")[0]
        (stored,) = self.writer.read("SELECT coalesce(sum(length), 0) FROM extents")[0]
        assert (totals.streams, totals.stored_bytes) == (streams, stored)
        for row in self.packs:
            (live,) = self.writer.read(
                "SELECT coalesce(sum(length), 0) FROM extents WHERE pack = ?", (row.id,)
            )[0]
            assert row.dead_bytes == row.data_bytes - live

    def read_cold(self, request):
        """The answer to a cold read."""
        answers = []
        run(self.cold.read(request), answers.append)
        self.clock.run()
        (answer,) = answers
        return answer


def snapshot_of(name, offset, body=b"a snapshot"):
    """A snapshot of this body, which is the object `name`."""
    return Snapshot(offset, name, TEXT, len(body), xxh3_64_intdigest(body))


def failing_at(name, error):
    """A hook for failpoints that raises when it gets there."""

    def hook(passed):
        if passed == name:
            raise error

    return hook


def calls(function, *arguments):
    """Calls of one function with each of these arguments, for `flush_each`."""
    return [partial(function, *each) for each in arguments]
