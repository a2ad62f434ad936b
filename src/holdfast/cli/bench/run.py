"""One run: create the streams, run the load processes, delete the streams whatever happens."""

import asyncio
import signal
import ssl
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, Self, TypeVar

from msgspec.structs import replace

from holdfast.cli.bench.connection import BenchConnection, BenchTarget, connect
from holdfast.cli.bench.loads import payload
from holdfast.cli.bench.messages import (
    Begin,
    Broken,
    Command,
    Delivered,
    Expect,
    Final,
    Job,
    ProgressReport,
    Ready,
    Stop,
    StreamWritten,
    Written,
    decode_message,
    to_line,
)
from holdfast.cli.bench.report import RunDisplay
from holdfast.cli.bench.result import BenchResult, Cleanup, Measurement
from holdfast.cli.bench.worker import LINE_BYTES_MAX
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError

__all__ = ["BenchPlan", "BenchStreams", "BootstrapStreams", "run"]

# Time for `Begin` to reach every process before they begin.
LEAD_S = 0.1
# How long a run may take beyond its plan before its processes are killed.
OVERTIME_S = 30.0
STOP_TIMEOUT_S = 5.0
DELETE_TIMEOUT_S = 15.0
RESPONSE_TIMEOUT_S = 60.0
CONNECTIONS = 32
EXAMPLE_CHARACTERS_MAX = 200
SNAPSHOT_TYPE = "application/octet-stream"
# Responses of servers that have no snapshots; any other error is reported as it is.
NOT_OFFERED = frozenset({400, 404, 405, 501})
WORKER = ("-m", "holdfast.cli.bench.worker")

T = TypeVar("T")


class _Call(NamedTuple):
    """A request that prepares a run or cleans up after it."""

    method: str
    path: str
    body: bytes = b""
    content_type: str | None = None

    def request(self, target: BenchTarget) -> bytes:
        head = target.head(self.method, self.path)
        if self.content_type is not None:
            head += f"Content-Type: {self.content_type}\r\n".encode()
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(self.body), self.body)


class _Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    """Names are in lower case."""
    body: bytes


class _Caller(BenchConnection):
    """Sends one request at a time and keeps the whole response."""

    def __init__(self) -> None:
        super().__init__()
        self._reply: asyncio.Future[_Reply] | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    async def call(self, request: bytes) -> _Reply:
        self._reply = asyncio.get_running_loop().create_future()
        self.send(request)
        async with asyncio.timeout(RESPONSE_TIMEOUT_S):
            return await self._reply

    def on_message_begin(self) -> None:
        self._headers, self._body = {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200 and self._reply is not None and not self._reply.done():
            self.close_unless_kept_alive()
            self._reply.set_result(_Reply(status, self._headers, b"".join(self._body)))

    def lost(self, kind: str) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionError(kind.replace("_", " ")))


async def _call_all(target: BenchTarget, calls: Sequence[_Call]) -> list[_Reply]:
    """Send requests over a few connections; return the responses in the order of the requests."""
    context = target.tls_context()
    replies: dict[int, _Reply] = {}
    waiting = iter(enumerate(calls))

    async def work() -> None:
        caller: _Caller | None = None
        try:
            for number, call in waiting:
                if caller is None or not caller.usable:
                    caller = await connect(target, context, _Caller)
                replies[number] = await caller.call(call.request(target))
        finally:
            if caller is not None:
                caller.abort()

    workers = [asyncio.create_task(work()) for _ in range(min(CONNECTIONS, len(calls)))]
    try:
        await asyncio.gather(*workers)
    except OSError as error:
        raise HoldfastError(f"{target.url} cannot be reached: {_why(error)}.") from None
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [replies[number] for number in range(len(calls))]


def _why(error: OSError) -> str:
    match error:
        case TimeoutError():
            return "it does not respond"
        case ConnectionRefusedError():
            return "nothing listens there"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted: {error.verify_message}"
        case _:
            return (error.strerror or str(error) or type(error).__name__).lower()


def _expect(call: _Call, reply: _Reply, statuses: set[int]) -> None:
    if reply.status not in statuses:
        text = " ".join(reply.body.decode(errors="replace").split())[:EXAMPLE_CHARACTERS_MAX]
        detail = f": {text.removesuffix('.')}" if text else ""
        raise HoldfastError(f"{call.method} {call.path} was answered with {reply.status}{detail}.")


class BenchStreams:
    """The empty streams of a run."""

    def __init__(self, target: BenchTarget, paths: list[str], content_type: str) -> None:
        self.paths = paths
        self._target = target
        self._content_type = content_type
        self._begun = False

    async def create(self) -> None:
        calls = [_Call("PUT", path, content_type=self._content_type) for path in self.paths]
        # A problem with the first one is a problem with all.
        await self._call(calls[:1], {200, 201})
        self._begun = True
        await self._call(calls[1:], {200, 201})

    async def delete(self) -> Cleanup:
        """Delete as many streams as possible within the timeout."""
        return await self._delete(self.paths) if self._begun else Cleanup(0, 0)

    async def _call(self, calls: Sequence[_Call], statuses: set[int]) -> list[_Reply]:
        replies = await _call_all(self._target, calls)
        for call, reply in zip(calls, replies, strict=True):
            _expect(call, reply, statuses)
        return replies

    async def _delete(self, paths: Sequence[str]) -> Cleanup:
        replies: list[_Reply] = []
        with suppress(TimeoutError, HoldfastError):
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                replies = await _call_all(self._target, [_Call("DELETE", path) for path in paths])
        deleted = sum(reply.status in {200, 202, 204} for reply in replies)
        # The run may have ended before they were created.
        missing = sum(reply.status in {404, 410} for reply in replies)
        return Cleanup(deleted, len(paths) - deleted - missing)


class BootstrapStreams(BenchStreams):
    """Streams in one bucket, each with a snapshot and messages after it."""

    def __init__(
        self, target: BenchTarget, paths: list[str], sizes: tuple[int, int, int], seed: int
    ) -> None:
        super().__init__(target, paths, SNAPSHOT_TYPE)
        self._bucket = paths[0].rpartition("/")[0]
        self._bucket_made = False
        self._snapshot_bytes, self._messages, self._message_bytes = sizes
        self._seed = seed
        self._snapshots: list[str] = []

    async def create(self) -> None:
        # A bucket that exists already is used, and not deleted later.
        (made,) = await self._call_snapshot_api([_Call("PUT", self._bucket)], {200, 201, 409})
        self._bucket_made = made.status != 409
        self._begun = True
        await super().create()
        message = payload(self._seed, SNAPSHOT_TYPE, self._message_bytes)
        # A snapshot replaces what is before it: one message.
        appends = [_Call("POST", path, message, SNAPSHOT_TYPE) for path in self.paths]
        replies = await self._call(appends, {200, 204})
        offsets = [reply.headers.get("stream-next-offset", "") for reply in replies]
        self._snapshots = [
            f"{path}/snapshot/{offset}" for path, offset in zip(self.paths, offsets, strict=True)
        ]
        body = payload(self._seed + 1, SNAPSHOT_TYPE, self._snapshot_bytes)
        snapshots = [_Call("PUT", path, body, SNAPSHOT_TYPE) for path in self._snapshots]
        await self._call_snapshot_api(snapshots, {200, 201, 204})
        await self._call(appends * self._messages, {200, 204})
        # Bootstrap once: a server without snapshots may have taken all of this for streams.
        (reply,) = await self._call_snapshot_api(
            [_Call("GET", f"{self.paths[0]}/bootstrap")], {200}
        )
        if not reply.headers.get("content-type", "").startswith("multipart/"):
            raise self._not_offered()

    async def _call_snapshot_api(self, calls: Sequence[_Call], statuses: set[int]) -> list[_Reply]:
        replies = await _call_all(self._target, calls)
        for call, reply in zip(calls, replies, strict=True):
            if reply.status in NOT_OFFERED:
                raise self._not_offered()
            _expect(call, reply, statuses)
        return replies

    def _not_offered(self) -> HoldfastError:
        return HoldfastError(
            f"{self._target.url} has no buckets, snapshots and bootstrap, "
            "which this scenario measures."
        )

    async def delete(self) -> Cleanup:
        cleanup = await super().delete()
        if self._begun:
            # On a server without snapshots these are streams; elsewhere deleting them does no harm.
            await self._delete([*self._snapshots, *([self._bucket] if self._bucket_made else [])])
        return cleanup


class _Fleet:
    """All load processes; `progress` is called with their reports."""

    def __init__(self, progress: Callable[[ProgressReport], None]) -> None:
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
            _send(process, job)
        self._following = asyncio.gather(*(self._follow(each) for each in self._processes))
        # A process that fails before it is ready also ends the waiting.
        self._following.add_done_callback(lambda _: self._all_ready.set())
        await self._all_ready.wait()
        if self._following.done():
            await self._following

    def tell(self, command: Command) -> None:
        for process in self._processes:
            _send(process, command)

    async def finish(self) -> None:
        """Wait until all have reported everything."""
        assert self._following is not None
        await asyncio.shield(self._following)

    async def close(self) -> None:
        """Make sure that no process is left."""
        for process in self._processes:
            if process.stdin is not None:
                # A process exits when its stdin ends.
                process.stdin.close()
        for process in self._processes:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._following is not None:
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            match decode_message(line):
                case Ready():
                    self._ready += 1
                    if self._ready == len(self._processes):
                        self._all_ready.set()
                case ProgressReport() as progress:
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
        raise HoldfastError(f"A load process ended unexpectedly: {await _last_line(process)}.")

    def _collect(self, streams: dict[int, StreamWritten]) -> None:
        """Once all have reported what they wrote, tell all what to expect."""
        self._written.append(streams)
        if len(self._written) == len(self._processes):
            together = {number: each for part in self._written for number, each in part.items()}
            self.tell(Expect(together))


def _send(process: Process, message: Job | Command) -> None:
    assert process.stdin is not None
    if not process.stdin.is_closing():
        process.stdin.write(to_line(message))


async def _last_line(process: Process) -> str:
    assert process.stderr is not None
    lines = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {await process.wait()}"


class BenchPlan(NamedTuple):
    """What is to be measured, and how."""

    scenario: str
    streams: BenchStreams
    job: Job
    """The job of the first process; the others differ in their share."""
    parameters: dict[str, Any]

    def jobs(self) -> list[Job]:
        return [replace(self.job, share=share) for share in range(self.job.shares)]


class _InterruptedError(Exception):
    """Ctrl-C was pressed."""


class _Interruption(AbstractContextManager["_Interruption"]):
    """Ctrl-C and SIGTERM: the first one ends the run early, the second one at once."""

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


async def run(plan: BenchPlan, display: RunDisplay) -> BenchResult:
    """Create the streams, measure, and delete the streams."""
    clock = SystemClock()
    measurement = Measurement()

    def add(progress: ProgressReport) -> None:
        measurement.add(progress)
        display.phase("measuring", measurement)

    fleet = _Fleet(add)
    cleanup = Cleanup(0, len(plan.streams.paths))
    started_at_ms = clock.now_ms()
    with _Interruption() as interruption:
        try:
            with suppress(_InterruptedError):
                display.phase("creating streams")
                await _unless(interruption.once, plan.streams.create())
                display.phase("connecting")
                await _unless(interruption.once, fleet.start(plan.jobs()))
                display.phase("warming up" if plan.job.warmup_s else "measuring")
                started_at_ms = clock.now_ms()
                await _measure(plan, fleet, interruption, clock)
        finally:
            display.phase("deleting streams")
            await fleet.close()
            with suppress(_InterruptedError):
                cleanup = await _unless(interruption.twice, plan.streams.delete())
        return measurement.result(
            scenario=plan.scenario,
            url=plan.job.target.url,
            started_at_ms=started_at_ms,
            parameters=plan.parameters,
            interrupted=interruption.once.is_set(),
            unsent=fleet.unsent,
            delivered=fleet.delivered,
            cleanup=cleanup,
        )


async def _measure(
    plan: BenchPlan, fleet: _Fleet, interruption: _Interruption, clock: SystemClock
) -> None:
    job = plan.job
    planned_s = LEAD_S + job.warmup_s + job.duration_s + job.timeout_s + OVERTIME_S
    fleet.tell(Begin(clock.monotonic_s() + LEAD_S))
    try:
        async with asyncio.timeout(planned_s):
            try:
                await _unless(interruption.once, fleet.finish())
            except _InterruptedError:
                fleet.tell(Stop())
                await _unless(interruption.twice, fleet.finish())
    except TimeoutError:
        raise HoldfastError(
            f"The load processes did not end within {planned_s:.0f} s and were killed."
        ) from None


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, unless the event comes first: then cancel it."""
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
