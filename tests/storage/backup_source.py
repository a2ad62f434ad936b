"""A data directory without a server: records are written and flushed by hand."""

from pathlib import Path

from holdfast.format.records import Kind, Record, StreamMeta, encode, stream_number
from holdfast.format.segments import SegmentHeader, encode_batch, encode_header
from holdfast.log.export import ExportedSegment
from holdfast.protocol.producer import Producer
from holdfast.storage.backup import Backup
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.commands import FlushLog
from holdfast.storage.flush import SegmentRef
from holdfast.storage.open_objects import claim
from holdfast.storage.worker import StorageWorker

SALT = 4711


def log_segment(number, first_position, last_position, text=b"a segment", records=()):
    """A segment of a copied log with one batch."""
    salt = 42
    records = records or (Record(Kind.APPEND, 1, 0, text),)
    data = encode_header(SegmentHeader(salt, first_position, 0, 0))
    data += encode_batch(salt, first_position, b"".join(map(encode, records)))
    return ExportedSegment(number, first_position, last_position, data)


class Source:
    """A catalog, a store of packs, and what writes both."""

    def __init__(self, directory: Path, store, clock, *, garbage_grace_s=0.0):
        self.path = directory / "catalog.sqlite"
        self.store = store
        self.clock = clock
        self._directory = directory
        self.catalog = CatalogWriter(self.path)
        self.catalog.set_fact("store", claim(store, "mark-of-source"))
        self.worker = StorageWorker(
            self.catalog,
            store,
            clock,
            merge_packs=2,
            garbage_grace_s=garbage_grace_s,
            read_file=lambda path: Path(path).read_bytes(),
            held_snapshots=lambda _: (),
        )
        self.position = 0
        self._numbers = {}
        self._tails = {}

    def flush(self, **contents: bytes) -> None:
        """Append to streams, made where there are none, and flush that."""
        self.position += 1
        body = b""
        for index, (name, data) in enumerate(contents.items()):
            kind, meta = Kind.APPEND, None
            if name not in self._numbers:
                self._numbers[name] = stream_number(self.position, index)
                kind, meta = Kind.CREATE, StreamMeta(name, "text/plain")
            record = Record(kind, self._numbers[name], self.clock.now_ms(), data, meta=meta)
            record.producer = Producer(b"writer", self.position, 0)
            body += encode(record)
        segment = encode_header(SegmentHeader(SALT, self.position, 0, 0))
        segment += encode_batch(SALT, self.position, body)
        path = self._directory / "flushed.seg"
        path.write_bytes(segment)
        self.worker.handle(FlushLog([SegmentRef(str(path), len(segment), self.position)]))

    def merge(self) -> None:
        """Merge two packs or more, which are garbage then."""
        plan = self.worker.plan_merge()
        assert plan is not None
        assert self.worker.finish_merge(self.worker.write_merge(plan), 0)

    @property
    def packs(self) -> set[str]:
        """The packs in use."""
        return {row.name for row in self.catalog.packs()}

    @property
    def pins(self) -> list[str]:
        """The names of all pins."""
        return [name for (name,) in self.catalog.read("SELECT name FROM pins")]

    def backup(self, place) -> Backup:
        """A backup of this, not begun yet."""
        return Backup(self.path, self.store, place, self.clock)

    def back_up(self, place, log=()):
        """Make a backup; what it consists of."""
        with self.backup(place) as running:
            running.copy_log(log, ignore)
            running.copy_catalog(ignore)
            running.find_missing()
            running.copy_packs(ignore)
            running.copy_snapshots(ignore)
            return running.finish()


def ignore(_: object) -> None:
    """Nobody wants to know how far it is."""


def pack_names(store) -> set[str]:
    """The packs in a store."""
    return {info.name for info in store.list("packs/")}
