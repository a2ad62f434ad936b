"""A log, a store and a catalog, filled by the real storage worker without a server."""

from contextlib import closing, contextmanager

import pytest
from xxhash import xxh3_64_intdigest

from holdfast import failpoints
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
from holdfast.format.segments import HEADER_BYTES, SegmentHeader, encode_batch, encode_header
from holdfast.objects.store import MemoryObjects
from holdfast.protocol.producer import Producer
from holdfast.storage.catalog_check import Findings
from holdfast.storage.catalog_schema import open_for_reading
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.check import Published, verify_catalog, verify_store
from holdfast.storage.commands import CollectGarbage, FlushLog
from holdfast.storage.flush import SegmentRef
from holdfast.storage.merge import swap, verified_packs
from holdfast.storage.open_objects import claim
from holdfast.storage.worker import StorageWorker
from holdfast.testing import FakeClock
from tests.simulation.files import KilledError

GRACE_S = 3600.0
IDENTITY = "feedfacecafebeef"


class Filled:
    """Each write is a batch of its own; `flush` and `merge` are what the storage process does."""

    def __init__(self, directory, clock=None, store=None, **options):
        self.clock = clock or FakeClock()
        self.store = store or MemoryObjects(self.clock)
        self.path = directory / "catalog.sqlite"
        claim(self.store, IDENTITY)
        self._catalog = CatalogWriter(self.path)
        if not self._catalog.fact("store"):
            self._catalog.set_fact("store", IDENTITY)
        self._files = {}
        self.worker = StorageWorker(
            self._catalog,
            self.store,
            self.clock,
            merge_packs=2,
            garbage_grace_s=GRACE_S,
            read_file=self._files.__getitem__,
            held_snapshots=lambda _: (),
            **options,
        )
        self.position = 0
        self.published = []
        self._names = {}
        self._segments = []
        self._bodies = []

    @classmethod
    def over(cls, other):
        """Another process over the same data, whose log goes on where the other's ended."""
        new = cls(other.path.parent, other.clock, other.store)
        new.position = other.position
        return new

    def close(self):
        self._catalog.close()

    # What clients do.

    def create(self, name, payload=b"", content_type="text/plain", **meta):
        number = stream_number(self.position + 1, 0)
        self._names[number] = name if "/" in name else f"_default/{name}"
        about = StreamMeta(self._names[number], content_type, **meta)
        self._batch(Record(Kind.CREATE, number, self._now(), payload, meta=about))
        return number

    def fork(self, name, source, offset, payload=b""):
        return self.create(name, payload, fork=Fork(source, self._names[source], offset))

    def snapshot(self, number, offset, body=b"a snapshot"):
        """Store a body and publish it; the name of its object."""
        name = f"snapshots/{number:016x}/{offset:020d}-{self.clock.random_u64():016x}"
        self.store.put(name, body)
        snapshot = Snapshot(offset, name, "text/plain", len(body), xxh3_64_intdigest(body))
        self._batch(Record(Kind.SNAPSHOT, number, self._now(), encode_snapshot(snapshot)))
        self.published.append(Published(self.position, number, snapshot))
        return name

    def create_bucket(self, name):
        self._batch(Record(Kind.CREATE_BUCKET, 0, self._now(), name.encode()))

    def delete_bucket(self, name):
        self._batch(Record(Kind.DELETE_BUCKET, 0, self._now(), name.encode()))

    def documents(self, changes):
        self._batch(Record(Kind.DOCUMENTS, 0, self._now(), encode_documents(changes)))

    def append(self, number, payload, *, producer=None, closes=False):
        record = Record(Kind.APPEND, number, self._now(), payload, closes)
        record.producer = None if producer is None else Producer(*producer)
        self._batch(record)

    def delete(self, number):
        self._batch(Record(Kind.DELETE, number, self._now()))

    def _now(self):
        self.clock.advance(0.001)
        return self.clock.now_ms()

    def _batch(self, record):
        self._bodies.append(encode(record))
        self.position += 1

    # What the storage process does.

    def seal(self):
        """Everything written so far as a sealed segment."""
        first = self.position - len(self._bodies) + 1
        salt = self.clock.random_u64()
        data = encode_header(SegmentHeader(salt, first, 0, 0)) + b"".join(
            encode_batch(salt, first + at, body) for at, body in enumerate(self._bodies)
        )
        assert len(data) > HEADER_BYTES, "there is nothing to flush"
        self._bodies = []
        name = f"{len(self._files):010d}.seg"
        self._files[name] = data
        self._segments.append(SegmentRef(name, len(data), self.position))

    def flush(self):
        """Flush everything, and return the names of the new packs."""
        self.seal()
        return self.flush_again()

    def flush_again(self):
        """Flush what is sealed, which an attempt before this one may have uploaded."""
        before = set(self.store.objects)
        self.worker.handle(FlushLog(list(self._segments)))
        return sorted(set(self.store.objects) - before)

    def upload_only(self):
        """A flush that is killed before its commit; the names of the packs it leaves behind."""
        self.seal()
        before = set(self.store.objects)
        with killed_at("flush.uploaded"), pytest.raises(KilledError):
            self.worker.handle(FlushLog(list(self._segments)))
        return sorted(set(self.store.objects) - before)

    def merge(self):
        """One merge; the name of the merged pack."""
        result = self.write_merge()
        assert self.worker.finish_merge(result, 0.0)
        return result.name

    def write_merge(self):
        """A merged pack that is not in use yet."""
        plan = self.worker.plan_merge()
        assert plan is not None, "there is nothing to merge"
        return self.worker.write_merge(plan)

    def swap(self, added, removed):
        """What a job asks for that has rewritten packs."""
        packs = verified_packs(self.store, added, self._catalog.path.parent)
        swap(self._catalog, packs, removed, self.clock.now_ms())

    def collect(self):
        """Remove garbage after the grace period."""
        self.clock.advance(GRACE_S + 1)
        self.worker.handle(CollectGarbage())

    # What is checked.

    def change(self, statement, *values):
        """Alter the catalog behind its writer's back."""
        with self._catalog.transaction() as connection:
            connection.execute(statement, values)

    def in_use(self):
        return [row.name for row in self._catalog.packs()]

    def flip(self, name, at):
        """Turn one bit of an object over; it keeps its age."""
        data, modified_ms = self.store.objects[name]
        changed = bytearray(data)
        changed[at] ^= 1
        self.store.objects[name] = (bytes(changed), modified_ms)

    def verify(self):
        findings, seen = Findings(), []
        verified = verify_catalog(
            self.store, self.path, findings, lambda *done: seen.append(done), self.published
        )
        assert not seen or seen[-1] == (verified.size_bytes, verified.size_bytes)
        assert all(done <= total for done, total in seen)
        return findings

    def verify_store(self):
        findings = Findings()
        verify_store(self.store, findings, lambda done, total: None)
        return findings

    def state(self, path=None):
        """Everything in the catalog but the packs' ids, and packs that nothing is in any more."""
        with closing(open_for_reading(path or self.path)) as connection:
            return {
                "facts": connection.execute("SELECT * FROM facts ORDER BY name").fetchall(),
                "streams": connection.execute("SELECT * FROM streams ORDER BY number").fetchall(),
                "producers": connection.execute("SELECT * FROM producers").fetchall(),
                "documents": connection.execute("SELECT * FROM documents").fetchall(),
                "times": connection.execute("SELECT * FROM times").fetchall(),
                "packs": connection.execute(
                    "SELECT name, size_bytes, data_bytes, dead_bytes, messages, rows, has_delta, "
                    "after, through, salt, created_ms FROM packs WHERE retired_ms IS NULL "
                    "AND (has_delta OR dead_bytes < data_bytes) ORDER BY name"
                ).fetchall(),
                "extents": connection.execute(
                    "SELECT stream, start, length, name, data_at, message_at, extents.messages, "
                    "first_position, last_position, sums FROM extents "
                    "JOIN packs ON packs.id = extents.pack ORDER BY stream, start"
                ).fetchall(),
            }


@contextmanager
def killed_at(name):
    """Have whatever comes to this failpoint end there."""

    def kill(reached):
        if reached == name:
            raise KilledError(name)

    failpoints.hook = kill
    try:
        yield
    finally:
        failpoints.hook = None
