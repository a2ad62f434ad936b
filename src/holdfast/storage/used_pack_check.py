"""Checking packs in use: that they are sound, and that the catalog says of them what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import ObjectMissingError, PackCorruptError
from holdfast.format.rows import decode_row
from holdfast.objects.pack_reader import Pack
from holdfast.protocol.content import JSON, SEPARATOR, media_type
from holdfast.storage.catalog_check import CATALOG
from holdfast.storage.delta_check import DeltaCheck
from holdfast.storage.live_packs import what_is_wrong

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from holdfast.format.packs import Extent
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
        self._findings = findings
        self._advance = advance
        self.deltas = DeltaCheck(connection, findings)
        self.spoilt: set[str] = set()

    def check(self, row: PackRow, size_bytes: int | None) -> None:
        """Look at one pack, which has this size if it is there; in the order of the log."""
        try:
            pack = Pack(self._store, row.name, size_bytes)
            delta = pack.delta()
            self._compare_pack(row, pack, delta.meta.created_ms, delta.meta.has_delta)
            self.deltas.take(row, delta)
            pack.check_frame()
            self._check_extents(row, pack)
        except ObjectMissingError:
            self._spoil(row.name, f"it is in use, and {self._store.url} does not have it")
        except PackCorruptError as error:
            self._spoil(row.name, what_is_wrong(row.name, error))

    def _spoil(self, name: str, what: str) -> None:
        self._findings.damage(name, what)
        self.spoilt.add(name)

    def _compare_pack(self, row: PackRow, pack: Pack, created_ms: int, has_delta: bool) -> None:
        footer = pack.footer
        said = {
            "size_bytes": footer.size_bytes,
            "data_bytes": sum(extent.length for extent in pack.directory()),
            "messages": footer.messages,
            "rows": footer.rows,
            "has_delta": has_delta,
            "after": footer.after,
            "through": footer.through,
            "salt": footer.salt.to_bytes(8, "little"),
            "created_ms": created_ms,
        }
        wrong = [name for name, value in said.items() if getattr(row, name) != value]
        if wrong:
            self._findings.damage(
                CATALOG, f"it does not say the same as {row.name} of its {', '.join(wrong)}"
            )

    def _check_extents(self, row: PackRow, pack: Pack) -> None:
        """What the directory has and what the catalog has, side by side, both by stream."""
        known = self._connection.execute(
            "SELECT stream, start, length, data_at, message_at, messages, first_position, "
            "last_position, sums FROM extents WHERE pack = ? ORDER BY stream, start",
            (row.id,),
        )
        expected = next(known, None)
        used = 0
        for extent, data in pack.contents():
            while expected is not None and expected[:2] < extent[:2]:
                self._not_in_pack(row.name, expected)
                expected = next(known, None)
            if expected is not None and expected[:2] == extent[:2]:
                self._check_extent(row.name, extent, data, expected)
                used += extent.length
                expected = next(known, None)
            else:
                self._check_dead(row.name, extent, data)
            self._advance(extent.length)
        while expected is not None:
            self._not_in_pack(row.name, expected)
            expected = next(known, None)
        if row.dead_bytes != row.data_bytes - used:
            self._findings.damage(
                CATALOG,
                f"it says that {row.dead_bytes} bytes of {row.name} are dead, "
                f"and {row.data_bytes - used} are",
            )

    def _not_in_pack(self, pack: str, expected: Any) -> None:
        self._findings.damage(
            CATALOG, f"stream {expected[0]:x} has no bytes at {expected[1]} in {pack}"
        )

    def _check_extent(
        self, pack: str, extent: Extent, data: bytes | PackCorruptError, expected: Any
    ) -> None:
        if isinstance(data, PackCorruptError):
            self._spoil(pack, what_is_wrong(pack, data))
        elif self._is_json(extent.stream) and not data.endswith(SEPARATOR):
            self._spoil(
                pack, f"stream {extent.stream:x} is JSON, and no message ends at {extent.end}"
            )
        *fields, index_sum, sums = extent
        if expected != (*fields, index_sum.to_bytes(8, "little") + sums):
            self._findings.damage(
                CATALOG,
                f"the extent of stream {extent.stream:x} at {extent.start} is not as in {pack}",
            )

    def _check_dead(self, pack: str, extent: Extent, data: bytes | PackCorruptError) -> None:
        """Nobody reads what the catalog does not know, unless its stream is still there."""
        row = self._row(extent.stream)
        if row is not None and decode_row(row).start < extent.end:
            self._findings.damage(
                CATALOG,
                f"bytes {extent.start} to {extent.end} of stream {extent.stream:x} are in {pack}, "
                "and it does not know them there",
            )
        elif isinstance(data, PackCorruptError):
            self._findings.note(pack, f"{what_is_wrong(pack, data)}; the stream is gone")

    def _row(self, number: int) -> bytes | None:
        found = self._connection.execute("SELECT row FROM streams WHERE number = ?", (number,))
        return next((row for (row,) in found), None)

    def _is_json(self, number: int) -> bool:
        row = self._row(number)
        try:
            return row is not None and media_type(decode_row(row).meta.content_type) == JSON
        except msgspec.DecodeError:
            # That is said where all rows are looked at.
            return False
