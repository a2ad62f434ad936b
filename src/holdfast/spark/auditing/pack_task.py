"""An executor's part of an audit: read packs one by one, and collect what they say about streams.

A pack that has gone out of use is no fault: its bytes are in other packs now. What those say about
their streams is used instead, so that no stream seems to miss bytes. The driver has these packs
audited themselves, once. If they are gone by then too, the task follows the bytes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from holdfast.errors import (
    HoldfastError,
    NotFoundError,
    ObjectMissingError,
    PackCorruptError,
    StoreError,
    UnknownFormatError,
)
from holdfast.format.packs import Delta, PackExtent, PackInfo
from holdfast.format.rows import decode_row
from holdfast.objects.locations import StoreLocation
from holdfast.objects.pack_check import check_pack, fault_of
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import ObjectStore
from holdfast.spark.auditing.checks import ENDED, EXTENT, STATE, PackReport, StreamFact
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.reading.packs import reachable_store

_PART_BYTES: Final = 8 * 1024 * 1024
_FACTS_HELD: Final = 4096


@dataclass(frozen=True)
class AuditTask:
    """Packs to audit, each with its number in the list.

    `deep`: read their bytes, too. `follows`: audit those that have replaced them, too.
    """

    connection: SparkConnection
    place: StoreLocation
    store_id: str
    via: str
    packs: tuple[tuple[int, PackInfo], ...] = ()
    deep: bool = False
    follows: bool = False


class PackAuditor:
    """Audits packs. Iterate once: it yields facts about streams, and a report on each pack."""

    def __init__(self, task: AuditTask, server: SparkClient) -> None:
        self._task = task
        self._server = server
        self._objects = _objects(task, server)

    def __iter__(self) -> Iterator[list[StreamFact] | PackReport]:
        for at, info in self._task.packs:
            yield from self._pack(at, info)

    def _pack(self, at: int, info: PackInfo) -> Iterator[list[StreamFact] | PackReport]:
        report = PackReport(info)
        known = _KnownExtents(self._server, info, at)
        try:
            yield from self._contents(info, known, report)
            yield from known.rest()
            report.used_bytes = known.used_bytes
            self._check_complete(info, known)
        except NotFoundError:
            report = PackReport(info, gone=True)
            for other in self._successors(info):
                yield from self._pack(-1, other) if self._task.follows else self._facts(other)
        yield report

    def _check_complete(self, info: PackInfo, known: _KnownExtents) -> None:
        """Raise NotFoundError if the pack went out of use while its extents were listed."""
        if known.used_bytes != info.data_bytes - info.dead_bytes:
            # Or streams were deleted meanwhile.
            self._check_used(info)

    def _check_used(self, info: PackInfo) -> None:
        """Raise NotFoundError if the pack is no longer in use."""
        extents = self._server.iterate(lambda client: client.storage.extents(info.name))
        try:
            next(extents, None)
        finally:
            extents.close()

    def _contents(
        self, info: PackInfo, known: _KnownExtents, report: PackReport
    ) -> Iterator[list[StreamFact]]:
        try:
            pack = open_pack(self._objects, info)
            delta = pack.delta()
            yield _delta_facts(info, delta)
            report.is_whole = True
            report.companions = frozenset(delta.meta.companions)
            report.supersedes = frozenset(delta.meta.supersedes)
            if self._task.deep:
                for _ in check_pack(pack, info, known, report):
                    report.extents += 1
                    yield from known.facts()
        except ObjectMissingError:
            self._check_used(info)
            report.pack_damaged("it is in use, but not in the store")
        except PackCorruptError as error:
            self._check_used(info)
            report.pack_damaged(fault_of(error))
        except UnknownFormatError as error:
            report.pack_damaged(error.message)
        except msgspec.DecodeError as error:
            report.pack_damaged(f"a row in its delta cannot be decoded: {error}")

    def _successors(self, gone: PackInfo) -> list[PackInfo]:
        """The packs in use whose ranges overlap that of one that is gone."""
        packs = self._server.collect(lambda client: client.storage.packs())
        return [each for each in packs if each.after < gone.through and each.through > gone.after]

    def _facts(self, info: PackInfo) -> Iterator[list[StreamFact]]:
        """What a pack says about streams, without a report."""
        try:
            known = _KnownExtents(self._server, info, -1)
            yield from known.rest()
            self._check_complete(info, known)
            yield _delta_facts(info, open_pack(self._objects, info).delta())
        except NotFoundError:
            for other in self._successors(info):
                yield from self._facts(other)
        except (ObjectMissingError, PackCorruptError, UnknownFormatError):
            # Reported where the pack itself is audited.
            return


def _objects(task: AuditTask, server: SparkClient) -> ObjectStore:
    reason = ""
    if task.via != "server":
        found = reachable_store(task.place, task.store_id)
        if not isinstance(found, str):
            return found
        if task.via == "store":
            raise StoreError(found)
        reason = found
    # Only reads are needed.
    return cast("ObjectStore", _ServerObjects(server, reason))


class _ServerObjects:
    """Reads a store's objects through the server."""

    def __init__(self, server: SparkClient, reason: str) -> None:
        self._server = server
        self._reason = reason

    def read(self, name: str, at: int, size: int) -> bytes:
        """At most `size` bytes from `at` on; fewer if the object ends first."""
        parts = []
        for done in range(0, size, _PART_BYTES):
            wanted = min(_PART_BYTES, size - done)
            parts.append(self._part(name, at + done, wanted))
            if len(parts[-1]) < wanted:
                break
        return b"".join(parts)

    def _part(self, name: str, at: int, size: int) -> bytes:
        try:
            return self._server.run(lambda client: client.storage.pack_data(name, at, size))
        except NotFoundError as error:
            raise ObjectMissingError(error.message) from None
        except HoldfastError as error:
            if self._reason:
                error.message = (
                    f"{self._reason} Reading through the server failed, too: {error.message}"
                )
            raise


class _KnownExtents:
    """The extents of a pack that the catalog lists, in order; iterating leaves facts behind.

    They are asked for while the pack is read, so memory holds some thousand of them. NotFoundError
    if the pack is no longer in use.
    """

    def __init__(self, server: SparkClient, info: PackInfo, at: int) -> None:
        self._extents = server.iterate_ahead(lambda client: client.storage.extents(info.name))
        self._at = at
        self._facts: list[StreamFact] = []
        self.used_bytes = 0

    def __iter__(self) -> Iterator[PackExtent]:
        for each in self._extents:
            end = each.start + each.length
            self._facts.append(
                StreamFact(
                    each.stream, EXTENT, each.start, end, each.needed_from, each.tail, self._at
                )
            )
            self.used_bytes += each.length
            yield each

    def facts(self, least: int = _FACTS_HELD) -> Iterator[list[StreamFact]]:
        """The facts so far, if there are enough of them."""
        if len(self._facts) >= least:
            facts, self._facts = self._facts, []
            yield facts

    def rest(self) -> Iterator[list[StreamFact]]:
        """All other facts: a pack that is damaged is not read to its end."""
        for _ in self:
            yield from self.facts()
        yield from self.facts(1)


def _delta_facts(info: PackInfo, delta: Delta) -> list[StreamFact]:
    rows = ((number, decode_row(encoded)) for number, encoded in delta.items())
    return [
        *(
            StreamFact(number, STATE, info.through, row.tail, row.start, name=row.meta.name)
            for number, row in rows
        ),
        *(StreamFact(number, ENDED, info.through) for number in delta.meta.removed),
    ]


def open_pack(objects: ObjectStore, info: PackInfo) -> Pack:
    """Open a pack, and check that it has the size in the catalog."""
    end = objects.read(info.name, max(0, info.size_bytes - 1), 2)
    if len(end) != 1:
        fault = "longer" if end else "shorter"
        raise PackCorruptError(
            f"The pack {info.name} is damaged: it is {fault} than the {info.size_bytes} bytes "
            "that the catalog says."
        )
    return Pack(objects, info.name, info.size_bytes)
