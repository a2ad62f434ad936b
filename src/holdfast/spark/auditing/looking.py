"""What an executor does of an audit: some packs, one after the other, and what they say of streams.

A pack that went out of use meanwhile is no fault: its bytes are in others now. What those say of
their streams is taken in its place, so that no stream seems to miss something; the packs as such
are left to the driver, which has them looked at once. If they, too, are gone by then, whoever
finds out follows the bytes at once to where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from holdfast.objects.pack_check import fault_of
from holdfast.objects.store import ObjectStore
from holdfast.spark.auditing.findings import PackReport
from holdfast.spark.auditing.one_pack import PackAudit, open_pack
from holdfast.spark.auditing.streams import ENDED, EXTENT, STATE, Place
from holdfast.spark.compaction import pack_extents
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.reading.packs import reachable_store

__all__ = ["Look", "Looking"]

_PART_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class Look:
    """Packs to look at, each with its number in the list.

    `deep` is at their bytes, too. `follows`: and at those that have taken their place.
    """

    packs: tuple[tuple[int, PackInfo], ...]
    connection: SparkConnection
    place: StoreLocation
    store_id: str
    via: str
    deep: bool
    follows: bool = False


class Looking:
    """Looks at packs. Use it as an iterator once: places of streams, and a report on each pack."""

    def __init__(self, look: Look, server: SparkClient) -> None:
        self._look = look
        self._server = server
        self._objects = _objects(look, server)

    def __iter__(self) -> Iterator[list[Place] | PackReport]:
        for at, info in self._look.packs:
            yield from self._pack(at, info)

    def _pack(self, at: int, info: PackInfo) -> Iterator[list[Place] | PackReport]:
        report = PackReport(info)
        try:
            known = self._extents(info)
            yield _extent_places(at, known)
            report.used_bytes = sum(each.length for each in known)
            yield from self._contents(info, known, report)
        except NotFoundError:
            report = PackReport(info, gone=True)
            for other in self._successors(info):
                yield from self._pack(-1, other) if self._look.follows else self._places(other)
        yield report

    def _extents(self, info: PackInfo) -> list[PackExtent]:
        """The extents in use; NotFoundError if the pack is not in use any more."""
        known = pack_extents(self._server, info.name)
        if sum(each.length for each in known) != info.data_bytes - info.dead_bytes:
            # Streams went meanwhile, or the pack did while it was told of.
            self._check_used(info)
        return known

    def _check_used(self, info: PackInfo) -> None:
        """Raise a NotFoundError if the pack is not in use any more."""
        extents = self._server.iterate(lambda client: client.storage.extents(info.name))
        try:
            next(extents, None)
        finally:
            extents.close()

    def _contents(
        self, info: PackInfo, known: Sequence[PackExtent], report: PackReport
    ) -> Iterator[list[Place]]:
        try:
            pack = open_pack(self._objects, info)
            delta = pack.delta()
            yield _delta_places(info, delta)
            report.is_whole = True
            report.companions = frozenset(delta.meta.companions)
            report.supersedes = frozenset(delta.meta.supersedes)
            if self._look.deep:
                PackAudit(info, known, report).run(pack)
        except ObjectMissingError:
            self._check_used(info)
            report.damage("it is in use, and the store does not have it")
        except PackCorruptError as error:
            self._check_used(info)
            report.damage(fault_of(error))
        except UnknownFormatError as error:
            report.damage(error.message)
        except msgspec.DecodeError as error:
            report.damage(f"a row in its delta cannot be decoded: {error}")

    def _successors(self, gone: PackInfo) -> list[PackInfo]:
        """The packs that have the bytes of one that is gone, among others."""
        packs = self._server.collect(lambda client: client.storage.packs())
        return [each for each in packs if each.after < gone.through and each.through > gone.after]

    def _places(self, info: PackInfo) -> Iterator[list[Place]]:
        """What a pack says of streams, and nothing of itself."""
        try:
            yield _extent_places(-1, self._extents(info))
            yield _delta_places(info, open_pack(self._objects, info).delta())
        except NotFoundError:
            for other in self._successors(info):
                yield from self._places(other)
        except (ObjectMissingError, PackCorruptError, UnknownFormatError):
            # Others look at the pack as such, and say so.
            return


def _objects(look: Look, server: SparkClient) -> ObjectStore:
    reason = ""
    if look.via != "server":
        found = reachable_store(look.place, look.store_id)
        if not isinstance(found, str):
            return found
        if look.via == "store":
            raise StoreError(found)
        reason = found
    # Reading is all that is asked of it.
    return cast("ObjectStore", _ServerObjects(server, reason))


class _ServerObjects:
    """The objects of a store as the server hands them out."""

    def __init__(self, server: SparkClient, reason: str) -> None:
        self._server = server
        self._reason = reason

    def read(self, name: str, at: int, size: int) -> bytes:
        """At most `size` bytes from byte `at` on; fewer if the object ends first."""
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
                error.message = f"{self._reason} The server was asked instead: {error.message}"
            raise


def _extent_places(at: int, extents: Sequence[PackExtent]) -> list[Place]:
    return [
        Place(
            each.stream,
            EXTENT,
            each.start,
            each.start + each.length,
            each.needed_from,
            each.tail,
            at,
        )
        for each in extents
    ]


def _delta_places(info: PackInfo, delta: Delta) -> list[Place]:
    rows = ((number, decode_row(encoded)) for number, encoded in delta.items())
    return [
        *(
            Place(number, STATE, info.through, row.tail, row.start, name=row.meta.name)
            for number, row in rows
        ),
        *(Place(number, ENDED, info.through) for number in delta.meta.removed),
    ]
