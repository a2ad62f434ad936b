"""Reading the catalog: which streams there are, and which packs hold their bytes."""

from __future__ import annotations

from contextlib import closing
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from holdfast.format.packs import HEADER_BYTES, PackExtent, PackInfo, ScanRange, padded
from holdfast.format.rows import StreamRow
from holdfast.protocol.content import JSON, media_type
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.protocol.producer import ProducerState
from holdfast.storage.catalog_scan import CatalogScan, Scanned, after_name, after_prefix
from holdfast.storage.catalog_schema import CatalogFile, open_for_reading
from holdfast.storage.catalog_writer import PACK_COLUMNS, pack_info
from holdfast.storage.pending import ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.format.rows import StreamRow
    from holdfast.storage.pending import Pending

    # A statement and its values.
    Look = tuple[str, tuple[object, ...]]


T = TypeVar("T")
# Nobody reads a deleted stream that is kept for its forks.
NAME_OF: Final = f"SELECT name FROM streams WHERE number = ? AND visible_from < {OFFSET_MAX}"  # noqa: S608 (a number)
BY_NAME: Final = "SELECT row FROM streams WHERE name = ?"
_EXTENTS: Final = (
    "SELECT packs.name, packs.salt, packs.data_bytes, extents.start, extents.length, "
    "extents.data_at, extents.message_at, extents.messages, extents.sums "
    "FROM extents JOIN packs ON packs.id = extents.pack "
)
_PRODUCER: Final = (
    "SELECT streams.producers, epoch, seq, used_ms, digest FROM streams LEFT JOIN producers "
    "ON producers.stream = number AND producers.id = ? WHERE number = ?"
)
# Extents that are read in one step.
_EXTENTS_PER_STEP: Final = 1000
_PACKS: Final = (
    f"SELECT {PACK_COLUMNS} FROM packs WHERE retired_ms IS NULL ORDER BY after, through, id"  # noqa: S608 (ours)
)
_SUPERSEDED: Final = "SELECT retired_by, name FROM packs WHERE retired_ms IS NOT NULL ORDER BY id"
_USED_EXTENTS: Final = (
    "SELECT extents.stream, extents.start, length, data_at, message_at, extents.messages, "
    "first_position, last_position, sums, row "
    "FROM packs CROSS JOIN extents INDEXED BY extents_by_pack ON extents.pack = packs.id "
    "CROSS JOIN streams ON streams.number = extents.stream "
    "WHERE packs.name = ? AND packs.retired_ms IS NULL "
    "AND (extents.stream, extents.start) > (?, ?) "
    "ORDER BY extents.stream, extents.start LIMIT ?"
)


class Located(NamedTuple):
    """An extent with everything needed to read and verify it."""

    pack: str
    salt: int
    start: int
    length: int
    data_at: int
    lengths_at: int
    messages: int
    index_sum: bytes
    sums: bytes

    @property
    def end(self) -> int:
        return self.start + self.length


class CatalogTotals(NamedTuple):
    flushed: int
    streams: int
    stored_bytes: int
    packs: int
    pack_bytes: int
    dead_bytes: int
    retired_packs: int


class Due(NamedTuple):
    """A stream whose recorded deadline has passed."""

    deadline_ms: int
    number: int


class Catalog(CatalogFile):
    """A catalog open for reading; every call sees the last commit."""

    # Whether look-ups may have to wait for the disk; see `warm_catalog`.
    may_wait = False

    def __init__(self, path: Path) -> None:
        super().__init__(path, open_for_reading(path))

    async def look_up(self, call: Callable[[], T]) -> T:
        """Make a call that reads the catalog, once that does not have to wait for the disk.

        The call may be made several times: it must not change anything before its last look-up.
        """
        return call()

    def expect(self, looks: Iterable[Look]) -> None:
        """Wait for these look-ups now, within `look_up`, and for none after them.

        For calls that change something between their look-ups.
        """

    def warm(self, job: Callable[[Catalog], T]) -> Pending[T | None]:
        """Run a job that only reads, perhaps in a thread and with another catalog."""
        return ready(job(self))

    def find_name(self, name: str) -> StreamRow | None:
        return self._find(BY_NAME, name)

    def find_sources(self, row: StreamRow | None) -> None:
        """Look up the stream that a fork comes from, and what that comes from, and so on."""
        while row is not None and row.meta.fork is not None:
            self.find_name(row.meta.fork.name)
            row = self.find_number(row.meta.fork.source)

    def find_producer(self, stream: int, producer_id: bytes) -> tuple[int, ProducerState | None]:
        """How many producers a stream has, and the state of one of them."""
        found = self.read(_PRODUCER, (producer_id, stream))
        if not found:
            return 0, None
        ((count, epoch, *state),) = found
        return count, None if epoch is None else ProducerState(epoch, *state)

    def oldest_producer_ms(self, stream: int) -> int | None:
        """When the producer of a stream wrote that has been idle for longest."""
        ((used_ms,),) = self.read("SELECT min(used_ms) FROM producers WHERE stream = ?", (stream,))
        return None if used_ms is None else int(used_ms)

    def name_of(self, number: int) -> str | None:
        found = self.read(NAME_OF, (number,))
        return str(found[0][0]) if found else None

    def documents(self) -> Iterator[tuple[str, bytes]]:
        yield from self.read("SELECT key, value FROM documents")

    def page(self, prefix: str, after: str, limit: int) -> list[StreamRow]:
        """Streams with this prefix whose names come after `after`, sorted by name."""
        rows = self.read(
            "SELECT row FROM streams WHERE name >= ? AND name < ? ORDER BY name LIMIT ?",
            # One lower bound: of two, SQLite would start at the first, and skip from there.
            (max(prefix, after_name(after)), after_prefix(prefix), limit),
        )
        return [self.decoded(row) for (row,) in rows]

    def extents(self, stream: int, offset: int, extents_max: int) -> list[Located]:
        """The extent that holds `offset` and those after it."""
        rows = self.read(
            _EXTENTS + "WHERE extents.stream = ?1 AND extents.start >= coalesce((SELECT max(start) "
            "FROM extents WHERE stream = ?1 AND start <= ?2), ?2) ORDER BY extents.start LIMIT ?3",
            (stream, offset, extents_max),
        )
        return [_located(row) for row in rows]

    def due(self, now_ms: int, after: Due, limit: int) -> list[Due]:
        """Streams whose recorded deadline has passed, earliest first, after `after`."""
        rows = self.read(
            "SELECT deadline_ms, number FROM streams WHERE deadline_ms IS NOT NULL "
            "AND deadline_ms <= ? AND (deadline_ms, number) > (?, ?) "
            "ORDER BY deadline_ms, number LIMIT ?",
            (now_ms, *after, limit),
        )
        return [Due(*row) for row in rows]

    def totals(self) -> CatalogTotals:
        """Reads every pack's row."""
        ((*packs,),) = self.read(
            "SELECT count(*) FILTER (WHERE retired_ms IS NULL), "
            "coalesce(sum(size_bytes) FILTER (WHERE retired_ms IS NULL), 0), "
            "coalesce(sum(dead_bytes) FILTER (WHERE retired_ms IS NULL), 0), "
            "count(retired_ms) FROM packs"
        )
        return CatalogTotals(self.flushed, self.fact("streams"), self.fact("stored_bytes"), *packs)

    def is_used(self, pack: str) -> bool:
        return bool(self.read("SELECT 1 FROM packs WHERE name = ? AND retired_ms IS NULL", (pack,)))

    def scan(self, scanned: Scanned) -> Iterator[ScanRange]:
        """Where the records are that readers can see.

        Packs outside the range are never looked at. A range may also hold records outside (after,
        until]: the pack's message index has every position.
        """
        return CatalogScan(self.path, scanned).ranges()


def _located(row: tuple[Any, ...]) -> Located:
    pack, salt, data_bytes, start, length, data_at, message_at, messages, sums = row
    lengths_at = padded(HEADER_BYTES + data_bytes) + 4 * message_at
    return Located(
        intern(pack),
        int.from_bytes(salt, "little"),
        start,
        length,
        data_at,
        lengths_at,
        messages,
        sums[:8],
        sums[8:],
    )


def used_packs(path: Path) -> list[PackInfo]:
    """The packs in use, in the order of the log."""
    with closing(Catalog(path)) as catalog:
        # One transaction: a swap may come between the two.
        catalog.read("BEGIN")
        packs, retired = catalog.read(_PACKS), catalog.read(_SUPERSEDED)
    superseded: dict[str, list[str]] = {}
    for successor, name in retired:
        superseded.setdefault(successor, []).append(name)
    return [pack_info(pack, superseded.get(pack[0], ())) for pack in packs]


def used_extents(path: Path, pack: str) -> Iterator[PackExtent]:
    """The extents in use of a pack, by stream and offset; no lock is held between two steps."""
    stream, start = 0, -1
    with closing(Catalog(path)) as catalog:
        while True:
            rows = catalog.read(_USED_EXTENTS, (pack, stream, start, _EXTENTS_PER_STEP))
            for *columns, row in rows:
                yield pack_extent(columns, catalog.decoded(row))
            if len(rows) < _EXTENTS_PER_STEP:
                return
            stream, start = rows[-1][:2]


def pack_extent(columns: Sequence[Any], row: StreamRow | None) -> PackExtent:
    """An extent from its columns, the last of which is `sums`, and its stream's row."""
    *places, sums = columns
    sums = bytes(sums)
    values = [*places, sums[:8].hex(), sums[8:].hex()]
    if row is None:
        values += [0, "", False, 0]
    else:
        values += [row.start, row.meta.name, media_type(row.meta.content_type) == JSON, row.tail]
    return PackExtent(*values)
