"""Rewriting packs at scale: which packs become one, and how an executor rewrites them.

Rules of planning:

- Packs with a delta are merged with their neighbours in the log, up to a size, so that the merged
  pack stands for one range of the log. A pack that has half of that size already is left alone.
- A pack of which too large a share is dead is rewritten by itself, if it is not merged.
- A pack without a delta holds one large stream, and is only ever rewritten by itself: one that
  stood for several packs and was left over after a crash would confuse a rebuild of the catalog.
  The server itself drops such a pack when all of it is dead.
- A merge needs memory for a window of each pack, so their number is limited. Lists of extents, rows
  and message indexes wait in temporary files.

No data can be lost, whatever happens during a rewrite. The new pack holds every byte of the old
ones that was in use when their extents were read, each verified when it was read. The executor
reads the new pack back from the store, and verifies it from end to end. The server puts it into use
only if all old packs are still in use, its directory has exactly those of their bytes that are
needed, and some blocks from all over it match their checksums. A crash leaves at most an
unreferenced object, which the server collects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from heapq import merge
from threading import Event, Thread
from typing import Final, Literal, NamedTuple

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import (
    HoldfastError,
    NotFoundError,
    ObjectMissingError,
    PackCorruptError,
    StoreError,
    SwapRefusedError,
    UnknownFormatError,
)
from holdfast.failpoints import failpoint
from holdfast.format.packs import Extent, NewPack, PackExtent, PackInfo
from holdfast.objects.locations import StoreLocation
from holdfast.objects.pack_merge import LiveExtent, MergePlan, merge_packs
from holdfast.objects.pack_reader import Pack
from holdfast.objects.spool import FileSpool
from holdfast.objects.store import ObjectStore
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.reading.packs import reachable_store

ROWS_MAX: Final = 1 << 24
# Extents that are encoded together, and bytes of them that are held before they go to a file.
_EXTENTS_PER_PART: Final = 1000
_EXTENT_BYTES_HELD: Final = 1024 * 1024
# Each pack takes up to 4 MiB while it is read.
PACKS_MAX: Final = 100
# How long the pin of a killed job lasts.
PIN_TTL_S: Final = 900.0
# The server reads the new pack's lists and some of its data before it responds to a swap, which may
# take longer than a client waits for a response.
_SWAP_TIMEOUT_S: Final = 600
_SWAP_POLL_S: Final = 2

SwapResult = Literal["done", "refused", "unknown"]


class CompactionLimits(NamedTuple):
    """What is worth a rewrite, and how large a rewrite may be."""

    target_bytes: int
    dead_share: float
    min_packs: int
    messages_max: int
    rows_max: int = ROWS_MAX
    packs_max: int = PACKS_MAX


@dataclass(frozen=True)
class PackGroup:
    """Packs that become one, in the order of the log."""

    packs: tuple[PackInfo, ...]
    # Packs without a delta that are in use for the same range of the log.
    companions: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        return [pack.name for pack in self.packs]

    @property
    def has_delta(self) -> bool:
        """Whether it stands for a range of the log, and not for one large stream."""
        return self.packs[0].has_delta

    @property
    def live_bytes(self) -> int:
        return sum(map(_live_bytes, self.packs))

    @property
    def dead_bytes(self) -> int:
        return sum(pack.dead_bytes for pack in self.packs)


def _live_bytes(pack: PackInfo) -> int:
    return pack.data_bytes - pack.dead_bytes


def plan_groups(
    packs: Sequence[PackInfo], limits: CompactionLimits, unreadable: Collection[str] = frozenset()
) -> list[PackGroup]:
    """Plan what to rewrite, the most work first.

    `packs` are all packs in use, in the order of the log. Those named in `unreadable` are left
    alone.
    """
    groups = []
    for run in _runs([pack for pack in packs if pack.has_delta], limits, unreadable):
        if len(run) >= limits.min_packs:
            groups.append(_group(run, packs))
        else:
            groups += [_group([pack], packs) for pack in run if _is_dead(pack, limits)]
    groups += [
        PackGroup((pack,))
        for pack in packs
        if not pack.has_delta
        and pack.name not in unreadable
        and _live_bytes(pack)
        and _is_dead(pack, limits)
    ]
    return sorted(groups, key=lambda group: group.live_bytes, reverse=True)


def _runs(
    packs: Iterable[PackInfo], limits: CompactionLimits, unreadable: Collection[str]
) -> Iterator[list[PackInfo]]:
    """Neighbours that fit together; a pack that is large enough is a run of its own."""
    run: list[PackInfo] = []
    for pack in packs:
        if pack.name in unreadable:
            yield run
            run = []
            continue
        is_full = 2 * _live_bytes(pack) >= limits.target_bytes
        if run and (is_full or run[-1].through != pack.after or not _fits([*run, pack], limits)):
            yield run
            run = []
        run.append(pack)
        if is_full:
            yield run
            run = []
    yield run


def _fits(run: Sequence[PackInfo], limits: CompactionLimits) -> bool:
    return (
        len(run) <= limits.packs_max
        and sum(map(_live_bytes, run)) <= limits.target_bytes
        and sum(pack.messages for pack in run) <= limits.messages_max
        and sum(pack.rows for pack in run) <= limits.rows_max
    )


def _is_dead(pack: PackInfo, limits: CompactionLimits) -> bool:
    return bool(pack.dead_bytes) and pack.dead_bytes >= limits.dead_share * pack.data_bytes


def _group(run: Sequence[PackInfo], packs: Iterable[PackInfo]) -> PackGroup:
    after, through = run[0].after, run[-1].through
    companions = frozenset(
        pack.name
        for pack in packs
        if not pack.has_delta and pack.after < through and pack.through > after
    )
    return PackGroup(tuple(run), companions)


@contextmanager
def pinned(server: SparkClient, name: str) -> Iterator[None]:
    """Keep the server from removing packs that are in use now."""

    def pin(ttl_s: float) -> None:
        server.storage.pin_packs(name, ttl_s)

    def renew() -> None:
        while not over.wait(PIN_TTL_S / 6):
            # If the server is away for longer than the pin lasts, a pack may be removed while it is
            # read. That is noticed, and costs no more than a rewrite in vain.
            with suppress(HoldfastError):
                pin(PIN_TTL_S)

    pin(PIN_TTL_S)
    over = Event()
    renewing = Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield
    finally:
        over.set()
        renewing.join()
        # A pin that is not removed expires: that is no reason to fail a job that is done.
        with suppress(HoldfastError):
            pin(0)


@dataclass(frozen=True)
class Rewrite:
    """A group of packs, and all that an executor needs to rewrite it."""

    group: PackGroup
    connection: SparkConnection
    place: StoreLocation
    store_id: str


@dataclass(frozen=True)
class RewriteOutcome:
    """What came of a rewrite.

    `done`: the new pack is in use. `refused`: the packs were merged otherwise in the meantime.
    `unknown`: the server did not tell in time. `unreadable`: a pack cannot be read.
    """

    result: Literal["done", "refused", "unknown", "unreadable"]
    message: str = ""
    # Bytes of messages that the old packs had and the new one does not.
    dropped_bytes: int = 0


def rewrite(task: Rewrite) -> RewriteOutcome:
    """Replace a group of packs by one pack."""
    store = reachable_store(task.place, task.store_id)
    if isinstance(store, str):
        raise StoreError(f"{store} Packs can be rewritten only where executors reach their store.")
    with SparkClient(task.connection) as server:
        return _rewrite(server, store, task.group)


def _rewrite(server: SparkClient, store: ObjectStore, group: PackGroup) -> RewriteOutcome:
    try:
        plan = _plan_merge(server, store, group)
        if plan is None:
            return RewriteOutcome("refused", "Its packs are no longer in use.")
        made = merge_packs(store, SystemClock(), plan)
    except (ObjectMissingError, PackCorruptError, UnknownFormatError) as error:
        in_use = _are_in_use(server, group)
        return RewriteOutcome("unreadable" if in_use else "refused", error.message)
    failpoint("compact.uploaded")
    _read_back(store, made)
    result = _swap(server, made.name, group.names)
    if result == "refused" and group.has_delta:
        # A pack without a delta may have been in use meanwhile, so it is left to the server.
        store.remove(made.name)
    failpoint("compact.swapped")
    before = sum(pack.data_bytes for pack in group.packs)
    return RewriteOutcome(result, dropped_bytes=before - made.info.data_bytes)


def _read_back(store: ObjectStore, made: NewPack) -> None:
    """Verify what the store has of a pack that was just written; nothing uses the pack yet."""
    try:
        for _ in Pack(store, made.name, made.info.size_bytes).verify():
            pass
    except (ObjectMissingError, PackCorruptError) as error:
        store.remove(made.name)
        raise StoreError(
            f"{store.url} does not return what was written to it, and nothing was replaced: "
            f"{error.message}"
        ) from None


def _plan_merge(server: SparkClient, store: ObjectStore, group: PackGroup) -> MergePlan | None:
    """What is to be merged, as the server has it now; None if a pack is no longer in use.

    Extents are listed pack by pack while streams are trimmed and deleted, and a merge copes with
    that.
    """
    listed = []
    for at, pack in enumerate(group.packs):
        try:
            listed.append(_listed(server, at, pack.name))
        except NotFoundError:
            return None
    if not _are_in_use(server, group):
        # The last lists may have been cut short.
        return None
    extents = merge(*listed, key=lambda each: each.extent[:2])
    return MergePlan(group.packs, extents, _superseded(store, group), group.companions)


class _ListedExtents:
    """A pack's extents in use, kept in a temporary file if there are many."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._spool = FileSpool(_EXTENT_BYTES_HELD)
        self._sizes: list[int] = []
        self._held: list[tuple[Extent, int]] = []

    def append(self, each: PackExtent) -> None:
        self._held.append((each.extent, each.needed_from))
        if len(self._held) == _EXTENTS_PER_PART:
            data = msgspec.msgpack.encode(self._held)
            self._spool.write(data)
            self._sizes.append(len(data))
            self._held.clear()

    def __iter__(self) -> Iterator[LiveExtent]:
        at = 0
        for size in self._sizes:
            for extent, needed_from in _decode_extents(self._spool.read(at, size)):
                yield LiveExtent(self._source, extent, needed_from)
            at += size
        for extent, needed_from in self._held:
            yield LiveExtent(self._source, extent, needed_from)


_decode_extents: Final = msgspec.msgpack.Decoder(list[tuple[Extent, int]]).decode


def _listed(server: SparkClient, source: int, pack: str) -> _ListedExtents:
    return server.collect_into(
        partial(_ListedExtents, source), lambda client: client.storage.extents(pack)
    )


def _superseded(store: ObjectStore, group: PackGroup) -> list[str]:
    """The names of all packs that these have replaced.

    A rebuild finds a pack without a delta by the names that other packs know it by, and those may
    be older than anything the server still knows.
    """
    known = [name for pack in group.packs for name in pack.superseded]
    if group.has_delta:
        return known
    (pack,) = group.packs
    stored = Pack(store, pack.name, pack.size_bytes).delta().meta.supersedes
    return list(dict.fromkeys([*known, *stored]))


def _are_in_use(server: SparkClient, group: PackGroup) -> bool:
    return {pack.name for pack in _packs(server)}.issuperset(group.names)


def _packs(server: SparkClient) -> list[PackInfo]:
    return server.collect(lambda client: client.storage.packs())


def _swap(server: SparkClient, new: str, old: Sequence[str]) -> SwapResult:
    """Put a pack into use in place of others.

    `refused` is final: the pack is not in use, and never will be. Errors of the request itself,
    such as a token without the right, are raised.
    """
    try:
        server.storage.swap_packs([new], old)
    except SwapRefusedError:
        # The response to an earlier attempt may have been lost.
        return "done" if _has_come(new, _packs(server)) else "refused"
    except HoldfastError as error:
        if error.status < 500:
            raise
        return _await_swap(server, new, old)
    return "done"


def _await_swap(server: SparkClient, new: str, old: Sequence[str]) -> SwapResult:
    """Find out what became of a swap whose response was lost."""
    pause = Event()
    for _ in range(_SWAP_TIMEOUT_S // _SWAP_POLL_S):
        packs = _packs(server)
        if _has_come(new, packs):
            return "done"
        if not {pack.name for pack in packs}.issuperset(old):
            # A pack that went out of use never comes back, so the swap cannot happen any more.
            return "refused"
        pause.wait(_SWAP_POLL_S)
    return "unknown"


def _has_come(new: str, packs: Sequence[PackInfo]) -> bool:
    """Whether the pack is in use, or was and has been merged into another one."""
    return any(new == pack.name or new in pack.superseded for pack in packs)
