"""Merging in the server: which packs to merge next, and the swap that ends a merge.

Merges are size-tiered, over neighbours in the log:

- Only packs with a delta are merged, and only runs without a gap in the log, so that the merged
  pack covers one range with one delta.
- A run is merged once it has `merge_packs` packs of one tier. Smaller packs between them are merged
  too, so none gets stuck, but do not count, so a large pack is not rewritten for a few small ones.
- A pack that is half dead is rewritten by itself.
- A merge needs little memory whatever its size. The limits bound its work, and the time for which a
  flush waits for the swap: a run that would exceed them is cut shorter.

A swap retires packs and puts others into use, by compare-and-set. Jobs that rewrite packs elsewhere
end with one too. It is refused if a pack to be removed is not in use any more, or if the added
packs do not hold exactly the needed bytes of the removed ones. Bytes before a stream's start, and
all of a stream that is gone, may or may not be included.

Contents are compared beforehand, in a thread. That is enough: as long as the packs to be removed
are in use, a flush only moves the starts of streams and ends streams. Then the same bytes are
needed no more on both sides.
"""

from __future__ import annotations

from contextlib import closing
from heapq import merge
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    ObjectMissingError,
    PackCorruptError,
    SwapRefusedError,
    UnknownFormatError,
)
from holdfast.failpoints import failpoint
from holdfast.format.packs import Extent, NewPack
from holdfast.objects.pack_check import merge_join
from holdfast.objects.pack_merge import LiveExtent, MergePlan
from holdfast.objects.pack_reader import Pack
from holdfast.objects.spool import FileSpool
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.storage.catalog_schema import CatalogFile, open_for_reading
from holdfast.storage.catalog_writer import (
    PackRow,
    add_to_fact,
    extent_values,
    insert_pack,
    pack_rows,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.objects.store import ObjectStore
    from holdfast.storage.catalog_writer import CatalogWriter, PackRow

    Ranges = list[tuple[int, int]]

DATA_BYTES_MAX: Final = 512 * 1024 * 1024
MESSAGES_MAX: Final = 1 << 26
ROWS_MAX: Final = 1 << 24
_TIER_BYTES: Final = (1 << 20, 8 << 20, 64 << 20, 512 << 20)
_DEAD_BYTES_MIN: Final = 1 << 20
_EXTENTS_PER_STEP: Final = 1000
_COPY_BYTES_HELD: Final = 1 << 20
# Data that is read of a pack that a job has uploaded.
SPOT_BYTES_MAX: Final = 8 << 20
_LIVE_EXTENTS: Final = (
    "SELECT extents.stream, extents.start, length, data_at, message_at, messages, first_position, "
    "last_position, sums, streams.start FROM extents INDEXED BY extents_by_pack "
    "CROSS JOIN streams ON streams.number = extents.stream "
    "WHERE pack = ? AND (extents.stream, extents.start) > (?, ?) "
    "ORDER BY extents.stream, extents.start LIMIT ?"
)
_LIVE_RANGES: Final = (
    "SELECT stream, start, start + length FROM extents INDEXED BY extents_by_pack "
    "WHERE pack = ? ORDER BY stream, start"
)
# The second condition matters only if the clock was set back.
_FORGOTTEN: Final = (
    "SELECT number, min(forgotten_ms, coalesce((SELECT min(used_ms) FROM producers "
    "WHERE stream = number), forgotten_ms)) FROM streams WHERE forgotten_ms IS NOT NULL"
)


def next_merge(packs: Sequence[PackRow], merge_packs: int, spoilt: set[str]) -> list[PackRow]:
    """The packs to merge into one, if any. `packs` are in the order of the log.

    Packs in `spoilt` could not be read and are skipped.
    """
    mains = [pack for pack in packs if pack.has_delta]
    for least, most in pairwise((0, *_TIER_BYTES)):
        run: list[PackRow] = []
        for pack in mains:
            if pack.size_bytes >= most or pack.name in spoilt:
                run = []
                continue
            if run and run[-1].through != pack.after:
                run = []
            if run and not _fits([*run, pack]):
                # The run cannot grow: merge it if it has half of the wanted packs, or packs of
                # similar sizes, since doubling a size costs little in the long run.
                if _count(run, least) >= max(2, merge_packs // 2) or _are_alike(run):
                    return run
                while run and not _fits([*run, pack]):
                    run = run[1:]
            run.append(pack)
            if _count(run, least) >= merge_packs:
                return run
    return _half_dead(mains, spoilt)


def _count(run: Sequence[PackRow], least: int) -> int:
    return sum(pack.size_bytes >= least for pack in run)


def _are_alike(run: Sequence[PackRow]) -> bool:
    sizes = [pack.size_bytes for pack in run]
    return len(sizes) > 1 and 2 * min(sizes) > max(sizes)


def _fits(run: Sequence[PackRow]) -> bool:
    return (
        sum(pack.data_bytes - pack.dead_bytes for pack in run) <= DATA_BYTES_MAX
        and sum(pack.messages for pack in run) <= MESSAGES_MAX
        and sum(pack.rows for pack in run) <= ROWS_MAX
    )


def _half_dead(mains: Sequence[PackRow], spoilt: set[str]) -> list[PackRow]:
    for pack in mains:
        if (
            pack.dead_bytes >= _DEAD_BYTES_MIN
            and 2 * pack.dead_bytes >= pack.data_bytes
            and pack.name not in spoilt
        ):
            return [pack]
    return []


class _Extents:
    """Extents in use of some packs, by stream and start, as they are when they are read.

    No lock is held between two steps. An extent that is gone before its turn is dead, unless its
    pack went out of use. That is an error, since a pack that lacks bytes must not be finished: a
    rebuild could take it for the latest one of its range.
    """

    def __init__(self, path: Path, sources: Sequence[PackRow]) -> None:
        self._path = path
        self._sources = sources

    def __iter__(self) -> Iterator[LiveExtent]:
        with closing(CatalogFile(self._path, open_for_reading(self._path))) as catalog:
            found = merge(
                *(_of_source(catalog, at, row.id) for at, row in enumerate(self._sources))
            )
            yield from (live for _, live in found)
            _in_use(catalog, [row.name for row in self._sources])


def _of_source(
    catalog: CatalogFile, source: int, pack: int
) -> Iterator[tuple[tuple[int, int], LiveExtent]]:
    last = -1, -1
    while rows := catalog.read(_LIVE_EXTENTS, (pack, *last, _EXTENTS_PER_STEP)):
        for *fields, sums, needed_from in rows:
            extent = Extent._make((*fields, int.from_bytes(sums[:8], "little"), sums[8:]))
            last = extent.stream, extent.start
            yield last, LiveExtent(source, extent, needed_from)


def plan_merge(catalog: CatalogWriter, sources: list[PackRow]) -> MergePlan:
    """What a merge needs to know from the catalog."""
    names = [row.name for row in sources]
    superseded = catalog.packs(f"retired_by IN ({_marks(names)})", names)
    companions = catalog.packs(
        "retired_ms IS NULL AND NOT has_delta AND after < ? AND through > ?",
        (sources[-1].through, sources[0].after),
    )
    return MergePlan(
        sources,
        _Extents(catalog.path, sources),
        [row.name for row in superseded],
        frozenset(row.name for row in companions),
        dict(catalog.read(_FORGOTTEN)),
    )


def swap(
    catalog: CatalogWriter, added: Sequence[NewPack], removed: Sequence[str], now_ms: int
) -> None:
    """Put `added` into use and retire `removed`, or raise and change nothing."""
    check_swap(catalog.path, added, removed)
    commit_swap(catalog, added, removed, now_ms)


def check_swap(path: Path, added: Sequence[NewPack], removed: Sequence[str]) -> None:
    """Raise unless `added` may replace `removed`; may run in any thread."""
    with closing(CatalogFile(path, open_for_reading(path))) as catalog:
        catalog.read("BEGIN")
        _check_contents(catalog, _going(catalog, added, removed), added)


def commit_swap(
    catalog: CatalogWriter, added: Sequence[NewPack], removed: Sequence[str], now_ms: int
) -> None:
    """Swap packs that `check_swap` has passed, or raise and change nothing."""
    with catalog.transaction() as connection:
        going = _going(catalog, added, removed)
        before = sum(row.data_bytes - row.dead_bytes for row in going)
        _retire(connection, going, added[0].name if added else "", now_ms)
        in_use = sum(_put_into_use(connection, pack) for pack in added)
        add_to_fact(connection, "stored_bytes", in_use - before)
    failpoint("merge.committed")
    catalog.checkpoint()


def _going(catalog: CatalogFile, added: Sequence[NewPack], removed: Sequence[str]) -> list[PackRow]:
    """The packs to be removed, which must be in use and cover what the added ones do."""
    going = _in_use(catalog, removed)
    _check_deltas(going, added)
    _check_names(catalog, added)
    return going


def _in_use(catalog: CatalogFile, names: Sequence[str]) -> list[PackRow]:
    """The packs of these names; raises unless all of them are in use."""
    found = pack_rows(catalog, f"retired_ms IS NULL AND name IN ({_marks(names)})", names)
    if not names or len(found) != len(set(names)):
        missing = sorted(set(names) - {row.name for row in found})
        raise SwapRefusedError(f"Not in use any more: {', '.join(missing) or 'no pack named'}.")
    return found


def _put_into_use(connection: sqlite3.Connection, pack: NewPack) -> int:
    """Insert a pack with the extents that are needed; returns their size."""
    number = insert_pack(connection, pack.info, ())
    connection.executemany(
        "INSERT INTO extents SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 "
        "WHERE EXISTS (SELECT 1 FROM streams WHERE number = ?1 AND start < ?2 + ?3)",
        extent_values(number, pack.extents),
    )
    (size_bytes,) = connection.execute(
        "SELECT coalesce(sum(length), 0) FROM extents WHERE pack = ?", (number,)
    ).fetchone()
    connection.execute(
        "UPDATE packs SET dead_bytes = data_bytes - ? WHERE id = ?", (size_bytes, number)
    )
    return int(size_bytes)


def verified_packs(store: ObjectStore, names: Iterable[str], directory: Path) -> list[NewPack]:
    """Packs uploaded by a job, with everything that the catalog takes from them checked.

    The job has read what it wrote, so that the bytes of large packs need not all go through this
    process: some of their blocks are checked. Extents are copied to temporary files, so that the
    swap need not wait for the store.
    """
    packs = []
    for name in names:
        try:
            pack = Pack(store, name)
            described = pack.describe(FileSpool(_COPY_BYTES_HELD, directory))
            pack.spot_check(described.extents, SPOT_BYTES_MAX)
            packs.append(described)
        except (ObjectMissingError, PackCorruptError, UnknownFormatError) as error:
            # The job's fault: the packs in use are not affected.
            raise SwapRefusedError(error.message) from None
    # The pack with the delta first: retired packs are recorded as replaced by it.
    return sorted(packs, key=lambda pack: not pack.info.has_delta)


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def _check_names(catalog: CatalogFile, added: Sequence[NewPack]) -> None:
    names = [pack.name for pack in added]
    if len(set(names)) != len(names) or pack_rows(catalog, f"name IN ({_marks(names)})", names):
        raise SwapRefusedError("A pack that is to come is known already.")


def _check_deltas(going: Sequence[PackRow], added: Sequence[NewPack]) -> None:
    """Removed and added packs cover the same range of the log."""
    old = [(row.after, row.through) for row in going if row.has_delta]
    new = [(pack.info.after, pack.info.through) for pack in added if pack.info.has_delta]
    if any(first[1] != second[0] for first, second in pairwise(old)):
        raise SwapRefusedError("The packs that are to go are not neighbours in the log.")
    expected = [(old[0][0], old[-1][1])] if old else []
    if new != expected:
        raise SwapRefusedError(
            f"The packs that are to come have deltas for {new}, those that go for {expected}."
        )


def _check_contents(
    catalog: CatalogFile, going: Sequence[PackRow], added: Sequence[NewPack]
) -> None:
    """Raise if a needed byte is lost or doubled."""
    live = merge(*(catalog.iterate(_LIVE_RANGES, (row.id,)) for row in going))
    coming = merge(*map(_in_order, added))
    pairs = merge_join(_coalesced(live), _coalesced(coming), itemgetter(0), itemgetter(0))
    for before, after in pairs:
        stream = (before or after or (0,))[0]
        old = [] if before is None else before[1]
        new = [] if after is None else after[1]
        if new == old:
            continue
        start = _start(catalog, stream)
        # Dead bytes may be included, but not twice: a rebuild could not tell which ones to use.
        is_doubled = any(first[1] > second[0] for first, second in pairwise(new))
        if is_doubled or _from(old, start) != _from(new, start):
            raise SwapRefusedError(
                f"Stream {stream:x} has {_words(old)} in the packs that are to go, "
                f"and {_words(new)} in those that are to come."
            )


def _in_order(pack: NewPack) -> Iterator[tuple[int, int, int]]:
    """The ranges of a pack's extents, which must be sorted: they are compared side by side."""
    last = -1, -1
    for extent in pack.extents:
        if extent[:2] < last:
            raise SwapRefusedError(f"The extents of {pack.name} are not in order.")
        last = extent.stream, extent.start
        yield extent.stream, extent.start, extent.end


def _coalesced(extents: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, Ranges]]:
    """The byte ranges of each stream, with adjacent ones joined."""
    for stream, of_stream in groupby(extents, key=itemgetter(0)):
        ranges: Ranges = []
        for _, start, end in of_stream:
            if ranges and ranges[-1][1] == start:
                ranges[-1] = ranges[-1][0], end
            else:
                ranges.append((start, end))
        yield stream, ranges


def _start(catalog: CatalogFile, stream: int) -> int:
    """Where the needed bytes start: after everything if the stream is gone."""
    found = catalog.read("SELECT start FROM streams WHERE number = ?", (stream,))
    return int(found[0][0]) if found else OFFSET_MAX


def _from(ranges: Ranges, start: int) -> Ranges:
    """The parts of these ranges at or after `start`."""
    return [(max(first, start), end) for first, end in ranges if end > start]


def _words(ranges: Ranges) -> str:
    if not ranges:
        return "no bytes"
    return "bytes " + ", ".join(f"{first} to {end}" for first, end in ranges)


def _retire(
    connection: sqlite3.Connection, going: Sequence[PackRow], successor: str, now_ms: int
) -> None:
    ids, names = [row.id for row in going], [row.name for row in going]
    connection.execute(f"DELETE FROM extents WHERE pack IN ({_marks(ids)})", ids)  # noqa: S608 (only marks)
    # The successor now also supersedes what these superseded.
    connection.execute(
        f"UPDATE packs SET retired_by = ? WHERE retired_by IN ({_marks(names)})",  # noqa: S608 (only marks)
        (successor, *names),
    )
    connection.execute(
        f"UPDATE packs SET retired_ms = ?, retired_by = ? WHERE id IN ({_marks(ids)})",  # noqa: S608 (only marks)
        (now_ms, successor, *ids),
    )
