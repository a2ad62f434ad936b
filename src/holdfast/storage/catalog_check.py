"""Checking a catalog by itself: whether its streams, extents and packs fit together."""

from __future__ import annotations

import sqlite3
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import CatalogError
from holdfast.format.records import INDEX_BITS
from holdfast.format.rows import StreamRow, decode_row
from holdfast.storage.catalog_writer import ROW_COLUMNS, PackRow, pack_row, row_change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.storage.findings import Findings

CATALOG: Final = "catalog.sqlite"
_FAULTS_MAX: Final = 5


def fact(connection: sqlite3.Connection, name: str) -> Any:
    """One of the catalog's own numbers and names."""
    found = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    if found is None:
        raise CatalogError(f"The catalog does not say what its {name!r} is.")
    return found[0]


def pack_rows(connection: sqlite3.Connection) -> list[PackRow]:
    """Every pack the catalog knows, in the order of the log."""
    return [
        pack_row(row)
        for row in connection.execute(
            f"SELECT {ROW_COLUMNS} FROM packs ORDER BY after, through, id"  # noqa: S608 (ours)
        )
    ]


def check_file(connection: sqlite3.Connection) -> None:
    """Have SQLite look over its file; raises if nothing in it can be relied on."""
    faults = connection.execute(f"PRAGMA integrity_check({_FAULTS_MAX})").fetchall()
    if faults != [("ok",)]:
        words = "; ".join(" ".join(str(fault).split()) for (fault,) in faults)
        raise CatalogError(f"SQLite finds the file damaged: {words}.")


def check_tiling(in_use: Sequence[PackRow], flushed: int, findings: Findings) -> None:
    """The packs with a delta stand for (0, flushed] without a gap, and none twice."""
    at = 0
    for pack in in_use:
        if not pack.has_delta:
            continue
        if pack.after > at:
            findings.damage(
                CATALOG,
                f"positions {at + 1} to {pack.after} are in no pack: {pack.name} comes next",
            )
        elif pack.after < at:
            findings.damage(
                CATALOG, f"{pack.name} overlaps with the pack before it, which ends at {at}"
            )
        at = max(at, pack.through)
    if at != flushed:
        findings.damage(
            CATALOG, f"it says that packs reach position {flushed}, and they reach {at}"
        )


def check_streams(connection: sqlite3.Connection, findings: Findings) -> None:
    """Every stream's extents lead from its start to its tail, and nothing else is there.

    Both tables are read in the order of stream numbers side by side, a stream at a time.
    """
    flushed = int(fact(connection, "flushed"))
    rows = connection.execute(
        "SELECT number, name, deadline_ms, start, snapshot, row FROM streams ORDER BY number"
    )
    extents = connection.execute("SELECT stream, start, length FROM extents ORDER BY stream, start")
    streams = stored = 0
    groups = groupby(extents, key=lambda extent: extent[0])
    stream, of_stream = next(groups, (None, iter(())))
    for number, *columns, encoded in rows:
        streams += 1
        while stream is not None and stream < number:
            stored += _unknown(stream, of_stream, findings)
            stream, of_stream = next(groups, (None, iter(())))
        row = _checked_row(number, columns, encoded, flushed, findings)
        ours: Iterable[Any] = ()
        if stream == number:
            ours = list(of_stream)
            stream, of_stream = next(groups, (None, iter(())))
        stored += sum(length for _, _, length in ours)
        if row is not None:
            _check_contiguous(row, ours, findings)
    while stream is not None:
        stored += _unknown(stream, of_stream, findings)
        stream, of_stream = next(groups, (None, iter(())))
    for what, counted in (("streams", streams), ("stored_bytes", stored)):
        said = fact(connection, what)
        if said != counted:
            findings.damage(CATALOG, f"its {what!r} is {said}, and counting gives {counted}")


def _unknown(stream: int, extents: Iterator[Any], findings: Findings) -> int:
    size_bytes = sum(int(length) for _, _, length in extents)
    findings.damage(
        CATALOG, f"{size_bytes} bytes belong to stream {stream:x}, which does not exist"
    )
    return size_bytes


def _checked_row(
    number: int, columns: Sequence[Any], encoded: bytes, flushed: int, findings: Findings
) -> StreamRow | None:
    """The decoded row, if it is one."""
    name = columns[0]
    try:
        row = decode_row(encoded)
    except msgspec.DecodeError as error:
        findings.damage(CATALOG, f"the row of stream {number:x} cannot be decoded: {error}")
        return None
    if row_change(row, b"")[:-1] != (number, *columns):
        findings.damage(CATALOG, f"the row of stream {number:x} ({name}) is not the one it is for")
    if number >> INDEX_BITS > flushed:
        findings.damage(CATALOG, f"stream {number:x} ({name}) was created after {flushed}")
    return row


def _check_contiguous(row: StreamRow, extents: Iterable[Any], findings: Findings) -> None:
    at = row.start
    who = f"stream {row.number:x} ({row.meta.name})"
    for number, (_, start, length) in enumerate(extents):
        # Extents go as a whole: the first may start before what is needed.
        if start != at and (number or not start <= at < start + length):
            fault = f"misses bytes {at} to {start}" if start > at else f"has byte {start} twice"
            findings.damage(CATALOG, f"{who} {fault}")
        at = max(at, start + length)
    if at < row.tail:
        findings.damage(CATALOG, f"{who} misses bytes {at} to {row.tail}, its end")
    elif at > row.tail:
        findings.damage(CATALOG, f"{who} ends at {row.tail}, and has bytes up to {at}")
