"""The storage process in a simulation: the same work, on a fake clock, with deaths on command.

A round of work is one command, or one of the three steps of a merge, or a collection of garbage;
rounds take some time and which one comes next is left to chance, so merges are planned, written and
swapped around whatever else is asked for. An answer takes a while to arrive, so that the server
does not know yet what the catalog shows already.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast import failpoints
from holdfast.errors import HoldfastError, StoreError
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.commands import SwapPacks, WorkCounters
from holdfast.storage.worker import StorageWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.clock import Clock, Timer
    from holdfast.format.packs import NewPack
    from holdfast.objects.pack_merge import MergePlan
    from holdfast.objects.store import ObjectStore
    from holdfast.storage.commands import Command
    from holdfast.storage.garbage import HeldOf

    Reply = Callable[[int | HoldfastError], None]
    Action = Callable[[StorageWorker], None]

_log = logging.getLogger(__name__)
_ROUND_US: Final = (200, 20_000)
_MESSAGE_US: Final = (50, 20_000)
_RESTART_S_MIN: Final = 0.1
_RESTART_S_MAX: Final = 5.0
_MERGE_RETRY_S: Final = 10.0
# What is asked for comes first, most of the time.
_COMMAND_SHARE: Final = 3
# One in so many merges, or verifications of a swap, takes long enough for garbage to be collected.
_SLOW_MERGES: Final = 15
_SLOW_SWAPS: Final = 3


class WorkerKilledError(BaseException):
    """Raise this from `on_failpoint` to kill the storage process there."""


class _Job:
    """A command on its way; a swap's packs are verified before it is carried out."""

    def __init__(self, command: Command, done: Reply) -> None:
        self.command = command
        self.done = done
        self.packs: list[NewPack] | HoldfastError | None = None
        self.answer: int | HoldfastError = 0


class SimWorker:
    """A `Worker` that runs a `StorageWorker` in a clock's time.

    `on_failpoint` is called with the name of every failpoint that the work passes; what it raises
    is how the work ends there.
    """

    def __init__(
        self,
        clock: Clock,
        catalog_path: Path,
        store: ObjectStore,
        *,
        merge_packs: int,
        garbage_grace_s: float,
        collect_s: float,
        read_file: Callable[[str], bytes],
        held_snapshots: HeldOf,
        on_failpoint: Callable[[str], None] | None = None,
    ) -> None:
        self._clock = clock
        self._catalog_path = catalog_path
        self._store = store
        self._merge_packs = merge_packs
        self._garbage_grace_s = garbage_grace_s
        self._collect_s = collect_s
        self._read_file = read_file
        self._held_snapshots = held_snapshots
        self._on_failpoint = on_failpoint
        self._catalog: CatalogWriter | None = None
        self._worker: StorageWorker | None = None
        # Everything that was not answered; of that, what waits for its turn, swaps whose packs are
        # being read, and answers on their way.
        self._asked: list[_Job] = []
        self._inbox: deque[_Job] = deque()
        self._verifying: deque[_Job] = deque()
        self._outbox: deque[_Job] = deque()
        self._is_running = False
        self._timer: Timer | None = None
        self._is_waiting = False
        self._restart_s = _RESTART_S_MIN
        self._collect_at_s = self._merge_at_s = self._merged_at_s = 0.0
        self._may_merge = True
        self._plan: MergePlan | None = None
        self._merged: NewPack | HoldfastError | None = None
        self._past = WorkCounters()
        self.restarts = 0

    @property
    def counters(self) -> WorkCounters:
        """What all incarnations have done together."""
        present = WorkCounters() if self._worker is None else self._worker.counters
        return self._past + present

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked for, and nothing is left to merge."""
        working = self._asked or self._may_merge or self._plan is not None
        return self._worker is not None and not working

    def start(self) -> None:
        """Start the process."""
        self._catalog = CatalogWriter(self._catalog_path)
        self._worker = StorageWorker(
            self._catalog,
            self._store,
            self._clock,
            merge_packs=self._merge_packs,
            garbage_grace_s=self._garbage_grace_s,
            read_file=self._read_file,
            held_snapshots=self._held_snapshots,
            between_ranges=self._between_ranges,
        )
        self._is_running, self._may_merge = True, True
        self._collect_at_s = self._merge_at_s = self._clock.monotonic_s()
        self._schedule()

    def submit(self, command: Command, done: Reply) -> None:
        """Ask the process; at once an error if there is none."""
        if not self._is_running:
            done(StoreError("The storage process is not running; it is being started again."))
            return
        job = _Job(command, done)
        self._asked.append(job)
        self._inbox.append(job)
        self._schedule()

    def kill(self) -> None:
        """Kill the process at this moment; another one is started after a while."""
        if self._worker is None:
            return
        self._past = self.counters
        self._let_go()
        self._clock.call_later(self._clock.random_int(*_MESSAGE_US) / 1e6, self._died)

    def end(self) -> None:
        """End for good, as the server does it with its own end: nothing is answered."""
        self._let_go()
        self._is_running = False

    # One process after the other.

    def _let_go(self) -> None:
        for queue in (self._inbox, self._verifying, self._outbox):
            queue.clear()
        self._worker = self._plan = self._merged = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _died(self) -> None:
        """The server notices."""
        self._is_running = False
        self.restarts += 1
        self._inbox.clear()
        asked, self._asked = self._asked, []
        for job in asked:
            job.done(StoreError("The storage process was killed."))
        self._clock.call_later(self._restart_s, self.start)
        self._restart_s = min(2 * self._restart_s, _RESTART_S_MAX)

    # Work.

    def _schedule(self) -> None:
        if self._timer is not None and self._is_waiting:
            self._timer.cancel()
            self._timer = None
        if self._worker is None or self._timer is not None:
            return
        delay_s = self._clock.random_int(*_ROUND_US) / 1e6
        self._is_waiting = not self._actions()
        if self._is_waiting:
            due_s = [self._collect_at_s]
            if self._merged is not None:
                due_s.append(self._merged_at_s)
            elif self._may_merge:
                due_s.append(self._merge_at_s)
            delay_s += max(0.0, min(due_s) - self._clock.monotonic_s())
        elif not self._inbox:
            # Merging has time.
            delay_s *= 2
        self._timer = self._clock.call_later(delay_s, self._round)

    def _actions(self) -> list[Action]:
        now_s = self._clock.monotonic_s()
        actions: list[Action] = []
        if self._inbox:
            actions += [self._handle] * _COMMAND_SHARE
        if self._verifying:
            actions.append(self._verify)
        if self._merged is not None:
            if now_s >= self._merged_at_s:
                actions.append(self._finish_merge)
        elif self._plan is not None:
            actions.append(self._write_merge)
        elif self._may_merge and now_s >= self._merge_at_s:
            actions.append(self._plan_merge)
        if now_s >= self._collect_at_s:
            actions.append(self._collect)
        return actions

    def _round(self) -> None:
        self._timer = None
        worker, actions = self._worker, self._actions()
        if worker is not None and actions:
            action = actions[self._clock.random_int(0, len(actions) - 1)]
            try:
                with self._failpoints():
                    action(worker)
            except WorkerKilledError:
                self.kill()
                return
        self._schedule()

    @contextmanager
    def _failpoints(self) -> Iterator[None]:
        before, failpoints.hook = failpoints.hook, self._on_failpoint
        try:
            yield
        finally:
            failpoints.hook = before

    def _handle(self, worker: StorageWorker) -> None:
        """The next command. Defects are let through: a simulation is to fail of them."""
        job = self._inbox.popleft()
        try:
            if not isinstance(job.command, SwapPacks):
                worker.handle(job.command)
            elif job.packs is None:
                self._verifying.append(job)
                return
            else:
                worker.finish_swap(job.command, job.packs)
            job.answer = worker.flushed
        except HoldfastError as error:
            job.answer = error
        except OSError as error:
            job.answer = HoldfastError(f"OSError: {error}")
        self._restart_s = _RESTART_S_MIN
        self._may_merge = True
        self._outbox.append(job)
        self._clock.call_later(self._clock.random_int(*_MESSAGE_US) / 1e6, self._deliver, worker)

    def _verify(self, worker: StorageWorker) -> None:
        """What a thread beside the others does: its result comes in like a command."""
        job = self._verifying.popleft()
        assert isinstance(job.command, SwapPacks)
        job.packs = worker.verify_swap(job.command)
        is_slow = self._clock.random_int(1, _SLOW_SWAPS) == 1
        self._clock.call_later(self._collect_s if is_slow else 0, self._verified, worker, job)

    def _verified(self, worker: StorageWorker, job: _Job) -> None:
        if self._worker is worker:
            self._inbox.append(job)
            self._schedule()

    def _deliver(self, worker: StorageWorker) -> None:
        """The oldest answer arrives, unless its process is dead: answers keep their order."""
        if self._worker is worker:
            job = self._outbox.popleft()
            self._asked.remove(job)
            job.done(job.answer)

    def _plan_merge(self, worker: StorageWorker) -> None:
        self._plan = worker.plan_merge()
        self._may_merge = self._plan is not None

    def _write_merge(self, worker: StorageWorker) -> None:
        assert self._plan is not None
        self._merged = worker.write_merge(self._plan)
        self._merged_at_s = self._clock.monotonic_s()
        if self._clock.random_int(1, _SLOW_MERGES) == 1:
            self._merged_at_s += 2 * self._garbage_grace_s

    def _finish_merge(self, worker: StorageWorker) -> None:
        assert self._merged is not None
        result, self._merged, self._plan = self._merged, None, None
        self._may_merge = True
        if not worker.finish_merge(result, 0.0):
            self._merge_at_s = self._clock.monotonic_s() + _MERGE_RETRY_S

    def _between_ranges(self) -> None:
        """A flush of several packs lets a merge that is written come into use."""
        if self._worker is not None and self._merged is not None:
            self._finish_merge(self._worker)

    def _collect(self, worker: StorageWorker) -> None:
        self._collect_at_s = self._clock.monotonic_s() + self._collect_s
        try:
            worker.collect()
        except HoldfastError as error:
            _log.warning("garbage could not be collected: %s", error.message)
