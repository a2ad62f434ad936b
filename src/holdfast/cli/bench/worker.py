"""One load process: `python -m holdfast.cli.bench.worker`, with commands on stdin.

Rules:
- It connects and sends `Ready`. It starts at the time that `Begin` gives.
- Once a second, and at the end, it reports what it has measured since the last report.
- When its stdin ends, the command is gone, and it exits at once.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import uvloop

from holdfast.cli.bench.fanout import FanoutLoad
from holdfast.cli.bench.loads import AppendLoad, BenchLoad, BootstrapLoad
from holdfast.cli.bench.messages import (
    AppendWork,
    Begin,
    BootstrapWork,
    Broken,
    Command,
    Expect,
    FanoutWork,
    Job,
    Message,
    Ready,
    Stop,
    decode_command,
    decode_job,
    to_line,
)
from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError

__all__ = ["LINE_BYTES_MAX", "main", "run_loop"]

LINE_BYTES_MAX = 64 * 1024 * 1024
DRAIN_INTERRUPTED_S = 2.0
RECEIVE_S = 10.0
# Open files that a load process needs besides its connections.
OTHER_FILES = 32


def make_load(job: Job, clock: Clock) -> BenchLoad:
    match job.work:
        case AppendWork() as work:
            return AppendLoad(job, work, clock)
        case BootstrapWork() as work:
            return BootstrapLoad(job, work, clock)
        case FanoutWork() as work:
            return FanoutLoad(job, work, clock)


class _JobRun:
    """One job from start to end."""

    def __init__(self, job: Job, clock: Clock) -> None:
        self._job = job
        self._load = make_load(job, clock)
        self._clock = clock
        self._begun: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()
        self._expected: asyncio.Future[Expect] = asyncio.get_running_loop().create_future()
        self._stopped = asyncio.Event()

    def handle(self, command: Command) -> None:
        match command:
            case Begin():
                self._begun.set_result(command)
            case Expect():
                self._expected.set_result(command)
            case Stop():
                self._stopped.set()

    async def run(self) -> None:
        load, job = self._load, self._job
        await load.connect()
        # Everything so far lives until the end: looking for garbage in it would cause pauses.
        gc.collect()
        gc.freeze()
        say(Ready())
        start_s = (await self._begun).at_s
        from_s = start_s + job.warmup_s
        end_s = from_s + job.duration_s
        # Event loops count in milliseconds and may be one too early, which would put the first
        # requests before the start of the measurement.
        await asyncio.sleep(max(0.0, start_s - self._clock.monotonic_s()) + 0.001)
        load.begin(start_s, from_s, end_s)
        reports = asyncio.create_task(self._report(from_s, end_s))
        await self._until(end_s)
        load.end()
        await load.drain(DRAIN_INTERRUPTED_S if self._stopped.is_set() else job.timeout_s + 1)
        if written := load.written():
            say(written)
            await load.receive(await self._expected, RECEIVE_S)
        reports.cancel()
        say(load.recorder.report())
        say(load.final())
        load.close()

    async def _until(self, end_s: float) -> None:
        """Wait for the end, for `Stop`, or until there is nothing left to do."""
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
        # The last report covers at least half a second.
        while due_s + 0.5 < end_s:
            await asyncio.sleep(max(0.0, due_s - self._clock.monotonic_s()))
            say(self._load.recorder.report())
            due_s += 1


def say(message: Message) -> None:
    sys.stdout.buffer.write(to_line(message))
    sys.stdout.buffer.flush()


async def work() -> None:
    """Run the job on the first line of stdin."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = await reader.readline()
    if not line:
        return
    job = decode_job(line)
    check_files(job)
    run = _JobRun(job, SystemClock())
    running = asyncio.create_task(run.run())
    listening = asyncio.create_task(_listen(reader, run))
    await asyncio.wait([running, listening], return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        # The command is gone, and with it the reader of our reports.
        os._exit(1)
    listening.cancel()
    await running


def check_files(job: Job) -> None:
    """Refuse a job with more connections than the limit on open files allows."""
    match job.work:
        case AppendWork(connections=connections):
            needed = connections
        case BootstrapWork(clients=clients):
            needed = clients // job.shares
        case FanoutWork(readers=readers, connections=connections):
            needed = readers // job.shares + connections
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed + OTHER_FILES > allowed:
        raise HoldfastError(
            f"{needed:,} connections in one process exceed the limit of {allowed:,} open files "
            "(ulimit -n): raise the limit, or use more --processes."
        )


async def _listen(reader: asyncio.StreamReader, run: _JobRun) -> None:
    while line := await reader.readline():
        run.handle(decode_command(line))


def run_loop(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def main() -> None:
    # Ctrl-C is handled by the command, which then sends `Stop`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        run_loop(work())
    except HoldfastError as error:
        say(Broken(error.message))
    except TimeoutError:
        say(Broken("The server did not respond to every reader in time."))


if __name__ == "__main__":
    main()
