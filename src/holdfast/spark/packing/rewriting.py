"""Rewriting a group of packs on an executor: read what is in use, write one pack, have it swapped.

Whatever happens meanwhile, nothing can be lost: the new pack holds every byte of the old ones that
was in use when their extents were read, and the server puts it into use only if all of the old ones
are in use still and it holds exactly those of their bytes that are needed. A crash leaves an object
at most that nothing refers to, which the server collects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.clock import SystemClock
from holdfast.errors import (
    NotFoundError,
    ObjectMissingError,
    PackCorruptError,
    StoreError,
    UnknownFormatError,
)
from holdfast.failpoints import failpoint
from holdfast.format.packs import Extent, PackExtent
from holdfast.objects.pack_merge import Merge, merge_packs
from holdfast.objects.pack_reader import Pack
from holdfast.objects.place import StorePlace
from holdfast.objects.store import ObjectStore
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.packing.committing import in_use, swap
from holdfast.spark.packing.plan import Group
from holdfast.spark.reading.packs import reachable_store

__all__ = ["Outcome", "Rewrite", "extents_of", "merge_of", "rewrite"]


@dataclass(frozen=True)
class Rewrite:
    """A group of packs, and all that an executor needs to know to rewrite it."""

    group: Group
    connection: SparkConnection
    place: StorePlace
    store_id: str


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    `done`: the new pack is in use. `refused`: somebody else was faster. `unknown`: nobody could say
    in time. `spoilt`: a pack cannot be read.
    """

    result: Literal["done", "refused", "unknown", "spoilt"]
    words: str = ""
    # Of messages, that the old packs had and the new one does not.
    dropped_bytes: int = 0


def rewrite(task: Rewrite) -> Outcome:
    """Put one pack in place of a group."""
    store = reachable_store(task.place, task.store_id)
    if isinstance(store, str):
        raise StoreError(f"{store} Packs can be rewritten only where executors reach their store.")
    with SparkClient(task.connection) as server:
        return _rewrite(server, store, task.group)


def _rewrite(server: SparkClient, store: ObjectStore, group: Group) -> Outcome:
    try:
        plan = merge_of(server, store, group)
        if plan is None:
            return Outcome("refused", "Its packs are not in use any more.")
        made = merge_packs(store, SystemClock(), plan)
    except (ObjectMissingError, PackCorruptError, UnknownFormatError) as error:
        if in_use(server, group.names):
            return Outcome("spoilt", error.message)
        return Outcome("refused", error.message)
    failpoint("compact.uploaded")
    answer = swap(server, made.name, group.names)
    if answer == "refused" and group.has_delta:
        # What has no delta may have been in use and out of it again, unseen: the server knows.
        store.remove(made.name)
    failpoint("compact.swapped")
    before = sum(pack.data_bytes for pack in group.packs)
    return Outcome(answer, dropped_bytes=before - made.info.data_bytes)


def merge_of(server: SparkClient, store: ObjectStore, group: Group) -> Merge | None:
    """What is to be merged, as the server has it now; None if a pack is not in use any more.

    The extents come one after the other while streams are trimmed and deleted. So the last word on
    where a stream starts counts for all of them, and what ends before that is left behind.
    """
    found: list[tuple[int, Extent]] = []
    starts: dict[int, int] = {}
    for at, pack in enumerate(group.packs):
        try:
            extents = extents_of(server, pack.name)
        except NotFoundError:
            return None
        for each in extents:
            starts[each.stream] = max(each.needed_from, starts.get(each.stream, 0))
            found.append((at, each.extent))
    needed = [each for each in found if each[1].end > starts[each[1].stream]]
    return Merge(
        group.packs,
        sorted(needed, key=lambda each: each[1][:2]),
        _superseded(store, group),
        group.companions,
        {stream: start for stream, start in starts.items() if start},
    )


def _superseded(store: ObjectStore, group: Group) -> list[str]:
    """What the packs have taken the place of.

    A rebuild finds a pack without a delta by the names that others know it by, and these may be
    older than anything that the server still knows of.
    """
    known = [name for pack in group.packs for name in pack.superseded]
    if group.has_delta:
        return known
    (pack,) = group.packs
    said = Pack(store, pack.name, pack.size_bytes).delta().meta.supersedes
    return list(dict.fromkeys([*known, *said]))


def extents_of(server: SparkClient, pack: str) -> list[PackExtent]:
    """The extents in use of a pack; NotFoundError if it is not in use any more."""
    return server.collect(lambda client: client.storage.extents(pack))
