"""One load process: `python -m holdfast.cli.bench.worker`, with commands on stdin.

Rules:
- It makes connections and says `Ready`. It starts at the time that `Begin` names.
- Once a second, and at the end, it says what it has measured since the last time.
- When its stdin ends, the command is gone, and it ends at once.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from holdfast.cli.bench.append import AppendRequests
from holdfast.cli.bench.bootstrap import BootstrapRequests
from holdfast.cli.bench.fanout import FanoutLoad
from holdfast.cli.bench.messages import (
    Answer,
    AppendWork,
    Begin,
    BootstrapWork,
    Broken,
    Command,
    Expect,
    FanoutWork,
    Final,
    Job,
    Ready,
    Stop,
    Written,
    commands,
    jobs,
    to_line,
)
from holdfast.cli.bench.recorder import Recorder
from holdfast.cli.bench.requests import RequestLoad
from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError

__all__ = ["DRAIN_INTERRUPTED_S", "LINE_BYTES_MAX", "main", "run_loop"]

LINE_BYTES_MAX = 64 * 1024 * 1024
DRAIN_INTERRUPTED_S = 2.0
RECEIVE_S = 10.0
# Files that a load process needs besides those of its load.
FILES_BESIDES = 32


class Load(Protocol):
    """What one scenario does in one process."""

    recorder: Recorder
    complete: asyncio.Event

    async def connect(self) -> None: ...

    def begin(self, start_s: float, measure_from_s: float, end_s: float) -> None: ...

    def end(self) -> None: ...

    async def drain(self, deadline_s: float) -> None: ...

    def written(self) -> Written | None: ...

    async def receive(self, expected: Expect, deadline_s: float) -> None: ...

    def final(self) -> Final: ...

    def close(self) -> None: ...


def make_load(job: Job, clock: Clock) -> Load:
    """The load of a job's scenario."""
    match job.work:
        case AppendWork() as work:
            return RequestLoad(job, AppendRequests(job, work), clock)
        case BootstrapWork() as work:
            return RequestLoad(job, BootstrapRequests(job, work), clock)
        case FanoutWork() as work:
            return FanoutLoad(job, work, clock)


class _Run:
    """One job from its first to its last word."""

    def __init__(self, job: Job, load: Load, clock: Clock, say: Callable[[Answer], None]) -> None:
        self._job = job
        self._load = load
        self._clock = clock
        self._say = say
        self._begun: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()
        self._expected: asyncio.Future[Expect] = asyncio.get_running_loop().create_future()
        self._stopped = asyncio.Event()

    def command(self, command: Command) -> None:
        """What the command wants."""
        match command:
            case Begin():
                self._begun.set_result(command)
            case Expect():
                self._expected.set_result(command)
            case Stop():
                self._stopped.set()

    async def go(self) -> None:
        """All of it."""
        load, job = self._load, self._job
        await load.connect()
        # What is there now stays: looking for garbage in it would only delay what is measured.
        gc.collect()
        gc.freeze()
        self._say(Ready())
        start_s = (await self._begun).at_s
        from_s = start_s + job.warmup_s
        end_s = from_s + job.duration_s
        # Event loops count in milliseconds, and may be early by one: then the first requests would
        # not be of the measurement.
        await asyncio.sleep(max(0.0, start_s - self._clock.monotonic_s()) + 0.001)
        load.begin(start_s, from_s, end_s)
        reports = asyncio.create_task(self._report(from_s, end_s))
        await self._until(end_s)
        load.end()
        await load.drain(DRAIN_INTERRUPTED_S if self._stopped.is_set() else job.timeout_s + 1)
        if written := load.written():
            self._say(written)
            await load.receive(await self._expected, RECEIVE_S)
        reports.cancel()
        self._say(load.recorder.report())
        self._say(load.final())
        load.close()

    async def _until(self, end_s: float) -> None:
        """Wait for the end, for everything to be done, or to be stopped."""
        stopped = asyncio.create_task(self._stopped.wait())
        complete = asyncio.create_task(self._load.complete.wait())
        while (left_s := end_s - self._clock.monotonic_s()) > 0:
            done, _ = await asyncio.wait(
                [stopped, complete], timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                break
        stopped.cancel()
        complete.cancel()

    async def _report(self, from_s: float, end_s: float) -> None:
        due_s = from_s + 1
        # What is left for the end is a second or more, so that no report is of a moment only.
        while due_s + 0.5 < end_s:
            await asyncio.sleep(max(0.0, due_s - self._clock.monotonic_s()))
            self._say(self._load.recorder.report())
            due_s += 1


def say(answer: Answer) -> None:
    """Tell the command something."""
    sys.stdout.buffer.write(to_line(answer))
    sys.stdout.buffer.flush()


async def work() -> None:
    """Do the job that the first line of stdin describes."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = await reader.readline()
    if not line:
        return
    job = jobs.decode(line)
    check_files(job)
    clock = SystemClock()
    run = _Run(job, make_load(job, clock), clock, say)
    going = asyncio.create_task(run.go())
    listening = asyncio.create_task(_listen(reader, run))
    await asyncio.wait([going, listening], return_when=asyncio.FIRST_COMPLETED)
    if not going.done():
        # The command is gone: nobody is left to tell anything.
        os._exit(1)
    listening.cancel()
    await going


def check_files(job: Job) -> None:
    """Refuse a job with more connections than this process may have files."""
    match job.work:
        case AppendWork(connections=connections):
            needed = connections
        case BootstrapWork(clients=clients):
            needed = clients // job.shares
        case FanoutWork(readers=readers, connections=connections):
            needed = readers // job.shares + connections
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed + FILES_BESIDES > allowed:
        raise HoldfastError(
            f"{needed:,} connections in one process are more than the {allowed:,} open files that "
            "it may have (ulimit -n): raise that, or use more --processes."
        )


async def _listen(reader: asyncio.StreamReader, run: _Run) -> None:
    while line := await reader.readline():
        run.command(commands.decode(line))


def run_loop(main: Coroutine[Any, Any, Any]) -> Any:
    """Run on uvloop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def main() -> None:
    """The whole life of a load process."""
    # Ctrl-C is for the command, which then says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        run_loop(work())
    except HoldfastError as error:
        say(Broken(error.message))
    except TimeoutError:
        say(Broken("The server did not begin to answer every reader in time."))


if __name__ == "__main__":
    main()
