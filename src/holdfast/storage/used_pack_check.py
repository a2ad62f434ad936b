"""Checking packs in use: that they are sound, and that the catalog says of them what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import ObjectMissingError, PackCorruptError
from holdfast.format.rows import decode_row
from holdfast.objects.pack_check import check_pack, fault_of
from holdfast.objects.pack_reader import Pack
from holdfast.storage.catalog_check import CATALOG
from holdfast.storage.catalog_packs import pack_extent
from holdfast.storage.delta_check import DeltaCheck

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

    from holdfast.format.packs import Extent, PackExtent
    from holdfast.format.rows import StreamRow
    from holdfast.objects.store import ObjectStore
    from holdfast.storage.catalog_writer import PackRow
    from holdfast.storage.findings import Findings


class UsedPackCheck:
    """Checks one pack after the other; `spoilt` are those that are missing or damaged."""

    def __init__(
        self,
        store: ObjectStore,
        connection: sqlite3.Connection,
        findings: Findings,
        advance: Callable[[int], None],
    ) -> None:
        self._store = store
        self._connection = connection
        self.findings = findings
        self._advance = advance
        self.deltas = DeltaCheck(connection, findings)
        self.spoilt: set[str] = set()

    def check(self, row: PackRow, size_bytes: int | None) -> None:
        """Look at one pack, which has this size if it is there; in the order of the log."""
        try:
            pack = Pack(self._store, row.name, size_bytes)
            self.deltas.take(row, pack.delta())
            self._check_contents(row, pack)
        except ObjectMissingError:
            self.spoil(row.name, f"it is in use, and {self._store.url} does not have it")
        except PackCorruptError as error:
            self.spoil(row.name, fault_of(error))

    def spoil(self, name: str, what: str) -> None:
        self.findings.damage(name, what)
        self.spoilt.add(name)

    def _check_contents(self, row: PackRow, pack: Pack) -> None:
        of_pack = _OfPack(self, row.name)
        for extent in check_pack(pack, row, self._extents(row), of_pack):
            self._advance(extent.length)
        dead_bytes = of_pack.unused_bytes
        if row.dead_bytes != dead_bytes:
            self.findings.damage(
                CATALOG,
                f"it says that {row.dead_bytes} bytes of {row.name} are dead, and {dead_bytes} are",
            )

    def find_row(self, number: int) -> StreamRow | None:
        found = self._connection.execute("SELECT row FROM streams WHERE number = ?", (number,))
        return next((_decoded(row) for (row,) in found), None)

    def _extents(self, row: PackRow) -> Iterator[PackExtent]:
        known = self._connection.execute(
            "SELECT stream, extents.start, length, data_at, message_at, messages, first_position, "
            "last_position, sums, row FROM extents LEFT JOIN streams ON number = stream "
            "WHERE pack = ? ORDER BY stream, extents.start",
            (row.id,),
        )
        for *columns, encoded in known:
            yield pack_extent(columns, _decoded(encoded))


class _OfPack:
    """Takes what the check of one pack finds."""

    def __init__(self, check: UsedPackCheck, pack: str) -> None:
        self._check = check
        self._pack = pack
        self.unused_bytes = 0

    def pack_damaged(self, what: str) -> None:
        self._check.spoil(self._pack, what)

    def catalog_wrong(self, what: str) -> None:
        self._check.findings.damage(CATALOG, what)

    def unused(self, extent: Extent, fault: str) -> None:
        """Nobody reads what the catalog does not list, unless its stream still needs it."""
        self.unused_bytes += extent.length
        row = self._check.find_row(extent.stream)
        if row is not None and row.start < extent.end:
            self.catalog_wrong(
                f"bytes {extent.start} to {extent.end} of stream {extent.stream:x} are in "
                f"{self._pack}, and it does not list them there"
            )
        elif fault:
            self._check.findings.note(self._pack, f"{fault}; the stream is gone")


def _decoded(row: bytes | None) -> StreamRow | None:
    try:
        return None if row is None else decode_row(row)
    except msgspec.DecodeError:
        # Reported by the check of all rows.
        return None
