"""The swap: packs go out of use and others come in, by compare-and-set.

Merging ends with one, and so may any job that rewrites packs: it uploads its packs, and asks for
the swap. It is refused if a pack that is to go is not in use any more, or if what comes does not
hold exactly the bytes of what goes that are needed. Bytes before a stream's start, and all of a
stream that is gone, may come along or not.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.errors import (
    ObjectMissingError,
    PackCorruptError,
    SwapRefusedError,
    UnknownFormatError,
)
from holdfast.failpoints import failpoint
from holdfast.format.packs import Extent, NewPack
from holdfast.objects.pack_merge import Merge
from holdfast.objects.pack_reader import Pack
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.storage.catalog_writer import PackRow, add_to_fact, insert_pack

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from holdfast.objects.store import ObjectStore
    from holdfast.storage.catalog_writer import CatalogWriter

    Ranges = dict[int, list[tuple[int, int]]]


def plan_merge(catalog: CatalogWriter, sources: list[PackRow]) -> Merge:
    """Everything a merge needs to know of the catalog, read at once."""
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
    return Merge(
        sources,
        extents,
        [row.name for row in superseded],
        frozenset(row.name for row in companions),
        _starts(catalog, places),
    )


def _starts(catalog: CatalogWriter, packs: Iterable[int]) -> dict[int, int]:
    """Where the bytes that are needed start, of streams whose first extent here is in part dead."""
    rows = catalog.read(
        "SELECT number, streams.start FROM streams JOIN extents ON extents.stream = number "  # noqa: S608 (only marks)
        f"AND extents.start < streams.start WHERE pack IN ({_marks(packs)})",
        list(packs),
    )
    return dict(rows)


def swap(
    catalog: CatalogWriter, added: Sequence[NewPack], removed: Sequence[str], now_ms: int
) -> None:
    """Put `added` into use and take `removed` out of it, or raise and change nothing."""
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
    """Insert a pack with those of its extents that hold something needed; their bytes."""
    in_use = [extent for extent in pack.extents if extent.end > starts.get(extent.stream, 0)]
    size_bytes = sum(extent.length for extent in in_use)
    insert_pack(connection, pack.info, in_use, pack.info.data_bytes - size_bytes)
    return size_bytes


def verified_packs(store: ObjectStore, names: Iterable[str]) -> list[NewPack]:
    """Packs that somebody else uploaded, read in full and found sound."""
    packs = []
    for name in names:
        try:
            pack = Pack(store, name)
            for _ in pack.verify():
                pass
            packs.append(pack.describe())
        except (ObjectMissingError, PackCorruptError, UnknownFormatError) as error:
            # The job's fault, not the store's: what is in use is as good as ever.
            raise SwapRefusedError(error.message) from None
    # The pack with the delta first: it is the one that the others' names are kept with.
    return sorted(packs, key=lambda pack: not pack.info.has_delta)


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def _check_names(catalog: CatalogWriter, added: Sequence[NewPack]) -> None:
    names = [pack.name for pack in added]
    if len(set(names)) != len(names) or catalog.packs(f"name IN ({_marks(names)})", names):
        raise SwapRefusedError("A pack that is to come is known already.")


def _check_deltas(going: Sequence[PackRow], added: Sequence[NewPack]) -> None:
    """What goes and what comes stand for the same range of the log."""
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
    """The byte ranges of each stream, adjacent ones joined."""
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
    """Where the bytes that are needed start, of streams for which that makes a difference.

    Raises if a byte that is needed is lost or doubled.
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
        # Dead bytes may come along, but not twice: a rebuild would not know which ones to take.
        is_doubled = any(first[1] > second[0] for first, second in pairwise(new))
        if is_doubled or _from(old, start) != _from(new, start):
            raise SwapRefusedError(
                f"Stream {stream:x} has {_words(old)} in the packs that are to go, "
                f"and {_words(new)} in those that are to come."
            )
    return starts


def _start(connection: sqlite3.Connection, stream: int) -> int:
    """Where the bytes that are needed start: behind everything if the stream is gone."""
    found = connection.execute("SELECT start FROM streams WHERE number = ?", (stream,)).fetchone()
    return OFFSET_MAX if found is None else int(found[0])


def _from(ranges: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """What of these ranges lies behind a stream's start."""
    return [(max(first, start), end) for first, end in ranges if end > start]


def _words(ranges: list[tuple[int, int]]) -> str:
    """Ranges as a message names them."""
    if not ranges:
        return "no bytes"
    return "bytes " + ", ".join(f"{first} to {end}" for first, end in ranges)


def _retire(
    connection: sqlite3.Connection, going: Sequence[PackRow], successor: str, now_ms: int
) -> None:
    ids, names = [row.id for row in going], [row.name for row in going]
    connection.execute(f"DELETE FROM extents WHERE pack IN ({_marks(ids)})", ids)  # noqa: S608 (only marks)
    # What these had superseded is superseded by their successor now.
    connection.execute(
        f"UPDATE packs SET retired_by = ? WHERE retired_by IN ({_marks(names)})",  # noqa: S608 (only marks)
        (successor, *names),
    )
    connection.execute(
        f"UPDATE packs SET retired_ms = ?, retired_by = ? WHERE id IN ({_marks(ids)})",  # noqa: S608 (only marks)
        (now_ms, successor, *ids),
    )
