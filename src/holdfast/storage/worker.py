"""The storage worker: carries out commands one at a time, and merges in between.

The child process runs it, and the simulation runs it on a fake clock. A merge has three steps
(plan, write, swap), so that the slow writing can run beside flushes. A flush of many streams calls
`between_ranges` after each of its packs, so that merging keeps up with it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    HoldfastError,
    ObjectMissingError,
    PackCorruptError,
    SwapRefusedError,
    UnknownFormatError,
)
from holdfast.objects.pack_merge import MergeBuffers, MergePlan, merge_packs
from holdfast.storage.commands import (
    CollectGarbage,
    Command,
    FlushLog,
    PinPacks,
    SwapPacks,
    WorkCounters,
)
from holdfast.storage.flush import Flush
from holdfast.storage.garbage import OrphanSweep, collect, pin, unpin
from holdfast.storage.merge import (
    check_swap,
    commit_swap,
    next_merge,
    plan_merge,
    verified_packs,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.format.packs import NewPack
    from holdfast.objects.store import ObjectStore
    from holdfast.storage.catalog_writer import CatalogWriter
    from holdfast.storage.garbage import HeldOf

_log = logging.getLogger(__name__)
# Errors that a retry will not fix.
_UNREADABLE: Final = (ObjectMissingError, PackCorruptError, UnknownFormatError)


class StorageWorker:
    """Flush, merge and garbage over one catalog and one store."""

    def __init__(
        self,
        catalog: CatalogWriter,
        store: ObjectStore,
        clock: Clock,
        *,
        merge_packs: int,
        garbage_grace_s: float,
        producers_max: int = 0,
        producer_idle_s: float = 0,
        read_file: Callable[[str], bytes],
        held_snapshots: HeldOf,
        between_ranges: Callable[[], None] = lambda: None,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._merge_packs = merge_packs
        self._grace_ms = int(garbage_grace_s * 1000)
        self._flush = Flush(
            catalog,
            store,
            clock,
            read_file,
            producers_max=producers_max,
            producer_idle_s=producer_idle_s,
        )
        self._between_ranges = between_ranges
        self._sweep = OrphanSweep(store, held_snapshots)
        # Packs that could not be read: merging them would fail again.
        self._spoilt: set[str] = set()
        self.counters = WorkCounters()
        # Set while a merge is written: its object is not in the catalog yet.
        self.merging: MergePlan | None = None

    @property
    def flushed(self) -> int:
        """The position that the catalog covers."""
        return self._catalog.flushed

    def handle(self, command: Command) -> None:
        """Carry out a command, or raise and change nothing."""
        match command:
            case FlushLog():
                self._run_flush(command)
            case SwapPacks():
                self.finish_swap(command, self.verify_swap(command))
            case PinPacks():
                self._pin(command)
            case CollectGarbage():
                self.collect()

    def verify_swap(self, command: SwapPacks) -> list[NewPack] | HoldfastError:
        """Check the packs to be added, and the swap; may run in any thread."""
        try:
            path = self._catalog.path
            packs = verified_packs(self._store, command.add, path.parent)
            check_swap(path, packs, command.remove)
            return packs
        except HoldfastError as error:
            return error

    def finish_swap(self, command: SwapPacks, packs: list[NewPack] | HoldfastError) -> None:
        """Put verified packs into use, or raise."""
        if isinstance(packs, HoldfastError):
            raise packs
        for pack in packs:
            # While it was read nothing used it, so it may have been collected as garbage.
            try:
                self._store.size(pack.name)
            except ObjectMissingError as error:
                raise SwapRefusedError(error.message) from None
        commit_swap(self._catalog, packs, command.remove, self._clock.now_ms())
        self.counters.swaps += 1

    def _pin(self, command: PinPacks) -> None:
        if command.ttl_s:
            ttl_ms = int(command.ttl_s * 1000)
            pin(self._catalog, command.name, self._clock.now_ms(), ttl_ms)
        else:
            unpin(self._catalog, command.name)

    def _run_flush(self, command: FlushLog) -> None:
        started_s = self._clock.monotonic_s()
        done = self._flush.run(command.segments, self._between_ranges)
        counters = self.counters
        counters.flushes += 1
        counters.flush_us += int((self._clock.monotonic_s() - started_s) * 1e6)
        counters.packs += done.packs
        counters.pack_bytes += done.pack_bytes
        counters.data_bytes += done.data_bytes
        _log.debug("flushed through position %d: %d packs", done.through, done.packs)

    def plan_merge(self) -> MergePlan | None:
        """The next merge, if one is due; `write_merge` and `finish_merge` follow."""
        if self.merging is not None:
            return None
        sources = next_merge(self._catalog.packs(), self._merge_packs, self._spoilt)
        if not sources:
            return None
        self.merging = plan_merge(self._catalog, sources)
        return self.merging

    def write_merge(self, plan: MergePlan) -> NewPack | HoldfastError:
        """Write the merged pack and check the swap; may run in any thread."""
        path = self._catalog.path
        try:
            buffers = MergeBuffers(directory=path.parent)
            made = merge_packs(self._store, self._clock, plan, buffers)
            check_swap(path, [made], [source.name for source in plan.sources])
            return made
        except HoldfastError as error:
            return error

    def finish_merge(self, result: NewPack | HoldfastError, seconds: float) -> bool:
        """Put the merged pack into use unless a source was retired; returns whether it is."""
        plan, self.merging = self.merging, None
        assert plan is not None, "a merge is planned before it is finished"
        names = [source.name for source in plan.sources]
        try:
            if isinstance(result, HoldfastError):
                raise result
            commit_swap(self._catalog, [result], names, self._clock.now_ms())
        except HoldfastError as error:
            if not {row.name for row in self._catalog.packs()}.issuperset(names):
                _log.info("%d packs were replaced while they were merged", len(names))
                return False
            self.counters.merge_failures += 1
            if isinstance(error, _UNREADABLE):
                self._spoilt.update(name for name in names if name in error.message)
            _log.error("merging %d packs failed: %s", len(names), error.message)
            return False
        self.counters.merges += 1
        self.counters.merge_us += int(seconds * 1e6)
        self.counters.merged_bytes += result.info.size_bytes
        self.counters.pack_bytes += result.info.size_bytes
        self.counters.packs += 1
        _log.info("merged %d packs into %s", len(names), result.name)
        return True

    def collect(self) -> bool:
        """Remove garbage, sparing the pack of a running merge, which no row names yet.

        Returns whether there is more, so that another collection should follow soon.
        """
        done = collect(
            self._catalog,
            self._store,
            self._clock.now_ms(),
            self._grace_ms,
            self._sweep,
            merging=self.merging is not None,
        )
        self.counters.objects_removed += done.objects
        self.counters.removed_bytes += done.size_bytes
        return done.is_cut
