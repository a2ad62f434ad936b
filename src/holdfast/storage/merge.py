"""Merging in the server: which packs to merge next, and the swap that ends a merge.

Merges are size-tiered, over neighbours in the log:

- Only packs with a delta are merged, and only runs without a gap in the log, so that the merged
  pack covers one range with one delta.
- A run is merged once it has `merge_packs` packs of one tier. Smaller packs between them are merged
  too, so none gets stuck, but do not count, so a large pack is not rewritten for a few small ones.
- A pack that is half dead is rewritten by itself.
- The memory of a merge is bounded: a run that would exceed the limits is cut shorter.

A swap retires packs and puts others into use, by compare-and-set. Jobs that rewrite packs elsewhere
end with one too. It is refused if a pack to be removed is not in use any more, or if the added
packs do not hold exactly the needed bytes of the removed ones. Bytes before a stream's start, and
all of a stream that is gone, may or may not be included.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    ObjectMissingError,
    PackCorruptError,
    SwapRefusedError,
    UnknownFormatError,
)
from holdfast.failpoints import failpoint
from holdfast.format.packs import Extent, NewPack
from holdfast.objects.pack_merge import MergePlan
from holdfast.objects.pack_reader import Pack
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.storage.catalog_writer import PackRow, add_to_fact, insert_pack

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from holdfast.objects.store import ObjectStore
    from holdfast.storage.catalog_writer import CatalogWriter, PackRow

    Ranges = dict[int, list[tuple[int, int]]]

DATA_BYTES_MAX: Final = 512 * 1024 * 1024
MESSAGES_MAX: Final = 4_000_000
ROWS_MAX: Final = 262_144
_TIER_BYTES: Final = (1 << 20, 8 << 20, 64 << 20, 512 << 20)
_DEAD_BYTES_MIN: Final = 1 << 20


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


def plan_merge(catalog: CatalogWriter, sources: list[PackRow]) -> MergePlan:
    """Read everything that a merge needs to know from the catalog."""
    places = {row.id: index for index, row in enumerate(sources)}
    rows = catalog.read(
        "SELECT pack, stream, start, length, data_at, message_at, messages, first_position, "  # noqa: S608 (only marks)
        f"last_position, sums FROM extents WHERE pack IN ({_marks(places)}) "
        "ORDER BY stream, start",
        list(places),
    )
    extents = [
        (places[pack], Extent._make((*fields, int.from_bytes(sums[:8], "little"), sums[8:])))
        for pack, *fields, sums in rows
    ]
    names = [row.name for row in sources]
    superseded = catalog.packs(f"retired_by IN ({_marks(names)})", names)
    companions = catalog.packs(
        "retired_ms IS NULL AND NOT has_delta AND after < ? AND through > ?",
        (sources[-1].through, sources[0].after),
    )
    return MergePlan(
        sources,
        extents,
        [row.name for row in superseded],
        frozenset(row.name for row in companions),
        _starts(catalog, places),
    )


def _starts(catalog: CatalogWriter, packs: Iterable[int]) -> dict[int, int]:
    """Where the needed bytes start, for streams whose first extent is partly dead."""
    rows = catalog.read(
        "SELECT number, streams.start FROM streams JOIN extents ON extents.stream = number "  # noqa: S608 (only marks)
        f"AND extents.start < streams.start WHERE pack IN ({_marks(packs)})",
        list(packs),
    )
    return dict(rows)


def swap(
    catalog: CatalogWriter, added: Sequence[NewPack], removed: Sequence[str], now_ms: int
) -> None:
    """Put `added` into use and retire `removed`, or raise and change nothing."""
    with catalog.transaction() as connection:
        going = catalog.packs(f"retired_ms IS NULL AND name IN ({_marks(removed)})", removed)
        if not removed or len(going) != len(set(removed)):
            missing = sorted(set(removed) - {row.name for row in going})
            raise SwapRefusedError(f"Not in use any more: {', '.join(missing) or 'no pack named'}.")
        _check_deltas(going, added)
        _check_names(catalog, added)
        live = _live_ranges(connection, going)
        starts = _check_contents(connection, live, added)
        before = sum(row.data_bytes - row.dead_bytes for row in going)
        _retire(connection, going, added[0].name if added else "", now_ms)
        in_use = sum(_put_into_use(connection, pack, starts) for pack in added)
        add_to_fact(connection, "stored_bytes", in_use - before)
    failpoint("merge.committed")
    catalog.checkpoint()


def _put_into_use(connection: sqlite3.Connection, pack: NewPack, starts: dict[int, int]) -> int:
    """Insert a pack with the extents that are needed; returns their size."""
    in_use = [extent for extent in pack.extents if extent.end > starts.get(extent.stream, 0)]
    size_bytes = sum(extent.length for extent in in_use)
    insert_pack(connection, pack.info, in_use, pack.info.data_bytes - size_bytes)
    return size_bytes


def verified_packs(store: ObjectStore, names: Iterable[str]) -> list[NewPack]:
    """Packs uploaded by a job, after reading them completely."""
    packs = []
    for name in names:
        try:
            pack = Pack(store, name)
            for _ in pack.verify():
                pass
            packs.append(pack.describe())
        except (ObjectMissingError, PackCorruptError, UnknownFormatError) as error:
            # The job's fault: the packs in use are not affected.
            raise SwapRefusedError(error.message) from None
    # The pack with the delta first: retired packs are recorded as replaced by it.
    return sorted(packs, key=lambda pack: not pack.info.has_delta)


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def _check_names(catalog: CatalogWriter, added: Sequence[NewPack]) -> None:
    names = [pack.name for pack in added]
    if len(set(names)) != len(names) or catalog.packs(f"name IN ({_marks(names)})", names):
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


def _live_ranges(connection: sqlite3.Connection, going: Sequence[PackRow]) -> Ranges:
    rows = connection.execute(
        f"SELECT stream, start, start + length FROM extents WHERE pack IN ({_marks(going)})",  # noqa: S608 (only marks)
        [row.id for row in going],
    )
    return _coalesced(rows)


def _coalesced(extents: Iterable[tuple[int, int, int]]) -> Ranges:
    """The byte ranges of each stream, with adjacent ones joined."""
    ranges: Ranges = {}
    for stream, start, end in sorted(extents):
        known = ranges.setdefault(stream, [])
        if known and known[-1][1] == start:
            known[-1] = (known[-1][0], end)
        else:
            known.append((start, end))
    return ranges


def _check_contents(
    connection: sqlite3.Connection, live: Ranges, added: Sequence[NewPack]
) -> dict[int, int]:
    """Where the needed bytes start, for streams whose ranges differ.

    Raises if a needed byte is lost or doubled.
    """
    coming = _coalesced(
        (extent.stream, extent.start, extent.end) for pack in added for extent in pack.extents
    )
    starts: dict[int, int] = {}
    for stream in sorted(live.keys() | coming.keys()):
        old, new = live.get(stream, []), coming.get(stream, [])
        if new == old:
            continue
        start = starts[stream] = _start(connection, stream)
        # Dead bytes may be included, but not twice: a rebuild could not tell which ones to use.
        is_doubled = any(first[1] > second[0] for first, second in pairwise(new))
        if is_doubled or _from(old, start) != _from(new, start):
            raise SwapRefusedError(
                f"Stream {stream:x} has {_words(old)} in the packs that are to go, "
                f"and {_words(new)} in those that are to come."
            )
    return starts


def _start(connection: sqlite3.Connection, stream: int) -> int:
    """Where the needed bytes start: after everything if the stream is gone."""
    found = connection.execute("SELECT start FROM streams WHERE number = ?", (stream,)).fetchone()
    return OFFSET_MAX if found is None else int(found[0])


def _from(ranges: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """The parts of these ranges at or after `start`."""
    return [(max(first, start), end) for first, end in ranges if end > start]


def _words(ranges: list[tuple[int, int]]) -> str:
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
