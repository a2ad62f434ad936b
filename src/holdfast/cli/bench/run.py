"""One run from the making of its streams to their deletion, whatever happens in between."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from holdfast.cli.bench.fleet import Fleet
from holdfast.cli.bench.messages import Job, Progress, Work
from holdfast.cli.bench.result import Measurement, Result
from holdfast.cli.bench.streams import Cleanup, Setup
from holdfast.cli.bench.target import Target
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError

__all__ = ["Plan", "Watcher", "run"]

# Between the word to begin and the beginning, for it to reach every process.
LEAD_S = 0.1
# How long a run may take beyond what it is planned for before its processes are given up.
BEYOND_S = 30.0

T = TypeVar("T")


class Plan(NamedTuple):
    """What is to be measured, and how."""

    scenario: str
    target: Target
    setup: Setup
    work: Work
    parameters: dict[str, Any]
    processes: int
    warmup_s: float
    duration_s: float
    rate: float | None
    timeout_s: float
    seed: int

    def jobs(self) -> list[Job]:
        """The part of each process."""
        return [
            Job(
                target=self.target,
                share=share,
                shares=self.processes,
                warmup_s=self.warmup_s,
                duration_s=self.duration_s,
                rate=self.rate,
                timeout_s=self.timeout_s,
                seed=self.seed,
                work=self.work,
            )
            for share in range(self.processes)
        ]


class Watcher(Protocol):
    """Who is told how a run goes."""

    def phase(self, what: str) -> None:
        """Something else is being done now."""

    def measured(self, measurement: Measurement) -> None:
        """There is more than before."""


class _InterruptedError(Exception):
    """Somebody pressed Ctrl-C."""


class _Interruption(AbstractContextManager["_Interruption"]):
    """Ctrl-C and SIGTERM: the first time the run ends early, the second time at once."""

    def __init__(self) -> None:
        self.once = asyncio.Event()
        self.twice = asyncio.Event()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _signalled(self) -> None:
        (self.twice if self.once.is_set() else self.once).set()


async def run(plan: Plan, watcher: Watcher) -> Result:
    """Make the streams, measure, delete the streams; what was measured."""
    clock = SystemClock()
    measurement = Measurement()

    def add(progress: Progress) -> None:
        measurement.add(progress)
        watcher.measured(measurement)

    fleet = Fleet(add)
    cleanup = Cleanup(0, len(plan.setup.paths))
    started_at_ms = clock.now_ms()
    with _Interruption() as interruption:
        try:
            with suppress(_InterruptedError):
                watcher.phase("making streams")
                await _unless(interruption.once, plan.setup.create())
                watcher.phase("connecting")
                await _unless(interruption.once, fleet.start(plan.jobs()))
                watcher.phase("warming up" if plan.warmup_s else "measuring")
                started_at_ms = clock.now_ms()
                await _drive(plan, fleet, interruption, clock)
        finally:
            watcher.phase("deleting streams")
            await fleet.close()
            with suppress(_InterruptedError):
                cleanup = await _unless(interruption.twice, plan.setup.delete())
        return measurement.result(
            scenario=plan.scenario,
            url=plan.target.url,
            started_at_ms=started_at_ms,
            parameters=plan.parameters,
            interrupted=interruption.once.is_set(),
            unsent=fleet.unsent,
            delivered=fleet.delivered,
            cleanup=cleanup,
        )


async def _drive(plan: Plan, fleet: Fleet, interruption: _Interruption, clock: SystemClock) -> None:
    """Measure until the end, or until somebody has had enough."""
    planned_s = LEAD_S + plan.warmup_s + plan.duration_s + plan.timeout_s + BEYOND_S
    fleet.begin(clock.monotonic_s() + LEAD_S)
    try:
        async with asyncio.timeout(planned_s):
            try:
                await _unless(interruption.once, fleet.finish())
            except _InterruptedError:
                fleet.stop()
                await _unless(interruption.twice, fleet.finish())
    except TimeoutError:
        raise HoldfastError(
            f"The load processes did not end within {planned_s:.0f} s, and were ended."
        ) from None


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Do something, unless an event comes first: then it is cancelled."""
    doing = asyncio.create_task(work)
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([doing, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise _InterruptedError
        return await doing
    finally:
        waiting.cancel()
        doing.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)
