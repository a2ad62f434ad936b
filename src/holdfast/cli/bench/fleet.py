"""The load processes of a run: started, told when to begin and to stop, never left behind."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence

from holdfast.cli.bench.messages import (
    Begin,
    Broken,
    Command,
    Delivered,
    Expect,
    Final,
    Job,
    Progress,
    Ready,
    Stop,
    StreamWritten,
    Written,
    answers,
    to_line,
)
from holdfast.cli.bench.worker import LINE_BYTES_MAX
from holdfast.errors import HoldfastError

__all__ = ["Fleet"]

WORKER = ("-m", "holdfast.cli.bench.worker")
STOP_DEADLINE_S = 5.0


class Fleet:
    """All load processes; `progress` is called with whatever one of them reports."""

    def __init__(self, progress: Callable[[Progress], None]) -> None:
        self.unsent = 0
        self.delivered: list[Delivered] = []
        self._progress = progress
        self._processes: list[Process] = []
        self._following: asyncio.Future[list[None]] | None = None
        self._ready = 0
        self._all_ready = asyncio.Event()
        self._written: list[dict[int, StreamWritten]] = []

    async def start(self, jobs: Sequence[Job]) -> None:
        """Start a process for each job, and wait until all are connected."""
        for job in jobs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *WORKER,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=LINE_BYTES_MAX,
                # Ctrl-C reaches the command alone.
                start_new_session=True,
            )
            self._processes.append(process)
            _send(process, to_line(job))
        self._following = asyncio.gather(*(self._follow(each) for each in self._processes))
        # Whoever breaks off before it is ready ends the waiting, too.
        self._following.add_done_callback(lambda _: self._all_ready.set())
        await self._all_ready.wait()
        if self._following.done():
            await self._following

    def begin(self, at_s: float) -> None:
        """Let all begin at this time."""
        self._tell(Begin(at_s))

    def stop(self) -> None:
        """Let all end now, and report."""
        self._tell(Stop())

    async def finish(self) -> None:
        """Wait until all have reported everything."""
        assert self._following is not None
        await asyncio.shield(self._following)

    async def close(self) -> None:
        """Make sure that no process is left."""
        for process in self._processes:
            if process.stdin is not None:
                # At the end of its input a process ends by itself.
                process.stdin.close()
        for process in self._processes:
            try:
                async with asyncio.timeout(STOP_DEADLINE_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._following is not None:
            await asyncio.gather(self._following, return_exceptions=True)

    def _tell(self, command: Command) -> None:
        for process in self._processes:
            _send(process, to_line(command))

    async def _follow(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            match answers.decode(line):
                case Ready():
                    self._ready += 1
                    if self._ready == len(self._processes):
                        self._all_ready.set()
                case Progress() as progress:
                    self._progress(progress)
                case Written(streams):
                    self._collect(streams)
                case Final(unsent, delivered):
                    self.unsent += unsent
                    if delivered is not None:
                        self.delivered.append(delivered)
                    return
                case Broken(message):
                    raise HoldfastError(message)
        raise HoldfastError(f"A load process ended before its time: {await _last_words(process)}.")

    def _collect(self, streams: dict[int, StreamWritten]) -> None:
        """Once all have said what they wrote, tell all what to expect."""
        self._written.append(streams)
        if len(self._written) == len(self._processes):
            together = {number: each for part in self._written for number, each in part.items()}
            self._tell(Expect(together))


def _send(process: Process, line: bytes) -> None:
    assert process.stdin is not None
    if not process.stdin.is_closing():
        process.stdin.write(line)


async def _last_words(process: Process) -> str:
    assert process.stderr is not None
    said = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"exit status {await process.wait()}"
