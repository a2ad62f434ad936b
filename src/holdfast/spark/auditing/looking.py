"""What an executor does of an audit: some packs, one after the other, and what they say of streams.

A pack that went out of use meanwhile is no fault: its bytes are in others now. What those say of
their streams is taken in its place, so that no stream seems to miss something; the packs as such
are left to the driver, which has them looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from holdfast.client.types import PackExtent, PackInfo
from holdfast.errors import (
    NotFoundError,
    ObjectMissingError,
    PackCorruptError,
    StoreError,
    UnknownFormatError,
)
from holdfast.format.packs import Delta
from holdfast.format.rows import decode_row
from holdfast.objects.place import StorePlace
from holdfast.objects.store import ObjectStore
from holdfast.spark.auditing.findings import PackReport
from holdfast.spark.auditing.one_pack import PackAudit, open_pack, what_is_wrong
from holdfast.spark.auditing.streams import ENDED, EXTENT, STATE, Place
from holdfast.spark.connection import Connection, Waiting
from holdfast.spark.packing.rewriting import extents_of
from holdfast.spark.reading.store import ServerPacks, reachable_store

__all__ = ["Look", "Looking"]


@dataclass(frozen=True)
class Look:
    """Packs to look at, each with its number in the list; not `deep`: not at their bytes."""

    packs: tuple[tuple[int, PackInfo], ...]
    connection: Connection
    place: StorePlace
    store_id: str
    via: str
    deep: bool


class Looking:
    """Looks at packs. Use it as an iterator once: places of streams, and a report on each pack."""

    def __init__(self, look: Look, server: Waiting) -> None:
        self._look = look
        self._server = server
        self._objects = _objects(look, server)

    def __iter__(self) -> Iterator[list[Place] | PackReport]:
        for at, info in self._look.packs:
            yield from self._pack(at, info)

    def _pack(self, at: int, info: PackInfo) -> Iterator[list[Place] | PackReport]:
        report = PackReport(info.name)
        try:
            known = self._extents(info)
            yield _extent_places(at, known)
            report.data_bytes = info.data_bytes
            report.used_bytes = sum(each.length for each in known)
            yield from self._contents(info, known, report)
        except NotFoundError:
            report = PackReport(info.name, gone=True)
            yield from self._successors(info)
        yield report

    def _extents(self, info: PackInfo) -> list[PackExtent]:
        """The extents in use; NotFoundError if the pack is not in use any more."""
        known = extents_of(self._server, info.name)
        if sum(each.length for each in known) != info.data_bytes - info.dead_bytes:
            # Streams went meanwhile, or the pack did while it was told of.
            self._check_used(info)
        return known

    def _check_used(self, info: PackInfo) -> None:
        """Raise a NotFoundError if the pack is not in use any more."""
        extents = self._server.items(lambda client: client.storage.extents(info.name))
        try:
            next(extents, None)
        finally:
            extents.close()  # type: ignore[attr-defined]

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
                PackAudit(info, known, report).run(pack, delta)
        except ObjectMissingError:
            self._check_used(info)
            report.damage("it is in use, and the store does not have it")
        except PackCorruptError as error:
            self._check_used(info)
            report.damage(what_is_wrong(info.name, error))
        except UnknownFormatError as error:
            report.damage(error.message)
        except msgspec.DecodeError as error:
            report.damage(f"a row in its delta cannot be decoded: {error}")

    def _successors(self, gone: PackInfo) -> Iterator[list[Place]]:
        """What the packs say of their streams that have the bytes of one that is gone."""
        for info in self._server.collect(lambda client: client.storage.packs()):
            if info.after >= gone.through or info.through <= gone.after:
                continue
            try:
                yield _extent_places(-1, extents_of(self._server, info.name))
                yield _delta_places(info, open_pack(self._objects, info).delta())
            except NotFoundError:
                yield from self._successors(info)
            except (ObjectMissingError, PackCorruptError, UnknownFormatError):
                # It is looked at by itself, and said there.
                continue


def _objects(look: Look, server: Waiting) -> ObjectStore:
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

    def __init__(self, server: Waiting, reason: str) -> None:
        self._packs = ServerPacks(server, reason)
        self._reason = reason

    def read(self, name: str, at: int, size: int) -> bytes:
        """At most `size` bytes from byte `at` on; fewer if the object ends first."""
        try:
            (found,) = self._packs.read_ranges(name, [(at, size)])
        except NotFoundError as error:
            raise ObjectMissingError(error.message) from None
        return bytes(found)


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
