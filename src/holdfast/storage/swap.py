"""The swap: packs go out of use and others come in, by compare-and-set.

Merging ends with one, and so may any job that rewrites packs: it uploads its packs, and asks for
the swap. It is refused if a pack that is to go is not in use any more, or if what comes is not
exactly the live bytes of what goes.
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
from holdfast.format.packs import Extent
from holdfast.protocol.offsets import OFFSET_MAX
from holdfast.storage.catalog_writer import PackRow, insert_pack
from holdfast.storage.merge import Merge
from holdfast.storage.pack_reader import Pack

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from holdfast.storage.catalog_writer import CatalogWriter, NewPack
    from holdfast.storage.objects import ObjectStore

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
    )


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
        dead = _check_contents(connection, live, added)
        _retire(connection, going, added[0].name if added else "", now_ms)
        for pack in added:
            in_use = [extent for extent in pack.extents if extent.end > dead.get(extent.stream, 0)]
            dead_bytes = pack.data_bytes - sum(extent.length for extent in in_use)
            insert_pack(connection, pack, in_use, dead_bytes)
    failpoint("merge.committed")
    catalog.checkpoint()


def verified_packs(store: ObjectStore, names: Iterable[str]) -> list[NewPack]:
    """Packs that somebody else uploaded, read in full and found sound."""
    packs = []
    for name in names:
        try:
            pack = Pack(store, name)
            for _ in pack.verify():
                pass
            packs.append(pack.as_new())
        except (ObjectMissingError, PackCorruptError, UnknownFormatError) as error:
            # The job's fault, not the store's: what is in use is as good as ever.
            raise SwapRefusedError(error.message) from None
    # The pack with the delta first: it is the one that the others' names are kept with.
    return sorted(packs, key=lambda pack: not pack.has_delta)


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def _check_names(catalog: CatalogWriter, added: Sequence[NewPack]) -> None:
    names = [pack.name for pack in added]
    if len(set(names)) != len(names) or catalog.packs(f"name IN ({_marks(names)})", names):
        raise SwapRefusedError("A pack that is to come is known already.")


def _check_deltas(going: Sequence[PackRow], added: Sequence[NewPack]) -> None:
    """What goes and what comes stand for the same range of the log."""
    old = [(row.after, row.through) for row in going if row.has_delta]
    new = [(pack.after, pack.through) for pack in added if pack.has_delta]
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
    """Streams of the new packs with bytes that nobody needs by now, and where those end.

    Raises if any other byte is lost or doubled.
    """
    coming = _coalesced(
        (extent.stream, extent.start, extent.end) for pack in added for extent in pack.extents
    )
    dead: dict[int, int] = {}
    for stream in live.keys() | coming.keys():
        ranges, new = live.get(stream, []), coming.get(stream, [])
        if new == ranges:
            continue
        start = _start(connection, stream)
        if [each for each in ranges if each[1] > start] != _from(new, start, ranges):
            raise SwapRefusedError(
                f"Stream {stream:x} has {ranges} in the packs that are to go, "
                f"and {new} in those that are to come."
            )
        dead[stream] = start
    return dead


def _start(connection: sqlite3.Connection, stream: int) -> int:
    """Where the bytes that are needed start: behind everything if the stream is gone."""
    found = connection.execute("SELECT start FROM streams WHERE number = ?", (stream,)).fetchone()
    return OFFSET_MAX if found is None else int(found[0])


def _from(
    new: list[tuple[int, int]], start: int, live: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """What comes, without what lies before the first live byte and is not needed any more."""
    first = min((each[0] for each in live if each[1] > start), default=start)
    first = min(first, start)
    return [(max(each[0], first), each[1]) for each in new if each[1] > first]


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
