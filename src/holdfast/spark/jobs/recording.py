"""Runs of jobs: one at a time for each pipeline, with a history on the server.

A pipeline is a job with its bucket and its target, or what `name` calls so. On the server that the
job works on it has two streams:

- `_jobs/NAME` is the history: JSON messages, one when a run begins and one when it ends.
- `_jobs/NAME.lock` is the lock. Whoever creates it holds it. It has a TTL, which reads renew and
  HEAD does not: the run that holds it reads it, others ask for its metadata. So the lock of a run
  that was killed ends by itself, by the clock of the server. Its content type tells the holder.

Jobs are safe to run twice at the same time; the lock saves the work, and conflicts between commits.
So a run that cannot be locked or recorded goes on, and its result says why.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from threading import Event, Thread
from typing import Any, Final, TypeVar

import msgspec

from holdfast.client.sync import SyncStream
from holdfast.clock import Clock, SystemClock
from holdfast.errors import (
    ForbiddenError,
    HoldfastError,
    MethodNotAllowedError,
    OutboundError,
    PipelineBusyError,
    StreamExistsError,
    StreamNotFoundError,
    UnauthorizedError,
)
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.jobs.options import JobOptions, SelectionOptions
from holdfast.spark.jobs.progress import UNSEEN, Progress
from holdfast.spark.jobs.result import JobResult
from holdfast.spark.session import as_holdfast_error

__all__ = [
    "JOBS_BUCKET",
    "LOCK_TTL_S",
    "job_name",
    "last_results",
    "pipeline_name",
    "recorded",
]

JOBS_BUCKET: Final = "_jobs"
LOCK_TTL_S: Final = 60
_RENEW_S: Final = 10.0
_WAIT_S: Final = 2.0
_LISTED_MAX: Final = 20
_TEXT_MAX: Final = 1000
# Messages of the history that are looked at; a run has two.
_LAST_MAX: Final = 20
_PACKAGES: Final = {"holdfast": "holdfast-streams", "spark": "pyspark"}
# The options that tell one pipeline from another, besides the bucket.
_TARGETS: Final = ("to", "source", "table", "target_bucket", "target")
R = TypeVar("R", bound=JobResult)


def job_name(job: Any) -> str:
    """`archive` for an `Archive`."""
    return type(job).__name__.lower()


def pipeline_name(job: Any) -> str:
    """The name that is given, or one made of the job, its bucket and its target."""
    if job.name:
        return str(job.name)
    parts = [job_name(job)]
    if bucket := getattr(job, "bucket", ""):
        parts.append(bucket)
    if targets := [text for each in _TARGETS if (text := _target(getattr(job, each, "")))]:
        parts.append(hashlib.sha256("\n".join(targets).encode()).hexdigest()[:8])
    return "-".join(parts)


def _target(value: object) -> str:
    if isinstance(value, SparkConnection):
        return value.url
    text = str(value)
    return text if not text or "://" in text else os.path.abspath(text)  # noqa: PTH100 (no ~)


def recorded(
    job: Any, work: Callable[[], R], progress: Progress = UNSEEN, clock: Clock | None = None
) -> R:
    """Do the work of a job as a run of its pipeline; return the result, which names the run.

    Raises PipelineBusyError if another run of the pipeline is in progress.
    """
    clock = clock or SystemClock()
    run = Run(clock)
    if not isinstance(job, JobOptions) or not job.record:
        return run.completed(job, work())
    run.name = pipeline_name(job)
    _check_bucket(job)
    with SparkClient(job.server) as server, _locked(server, run, job, progress) as locked:
        history = _History(server, run, job_name(job)) if locked else None
        if history is not None:
            history.begin(job)
        run.restart()
        try:
            result = run.completed(job, work())
        except BaseException as error:
            run.is_cut_off = isinstance(as_holdfast_error(error), OutboundError)
            if history is not None:
                history.fail(error)
            raise
        if history is not None:
            history.end(result)
        return result


def _check_bucket(job: JobOptions) -> None:
    """Raise if the bucket that a job reads is not there, before Spark is started for it."""
    if isinstance(job, SelectionOptions):
        bucket = str(vars(job)["bucket"])
        with SparkClient(job.server) as server, suppress(ForbiddenError, MethodNotAllowedError):
            server.run(lambda client: client.bucket(bucket).info())


class Run:
    """One run: its id, when it began, and what the user should know about it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.id = f"{clock.random_u64():016x}"
        self.name = ""
        # Whether the server could not be reached: then nothing more is sent to it.
        self.is_cut_off = False
        # The result has this list, so what is added later is in it, too.
        self.warnings: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Begin to count the time, after another run was waited for."""
        self.started_at = _time(self.clock.now_ms())
        self._started_s = self.clock.monotonic_s()

    @property
    def seconds(self) -> float:
        return round(self.clock.monotonic_s() - self._started_s, 3)

    def completed(self, job: Any, result: R) -> R:
        self.warnings += result.warnings
        return replace(
            result,
            job=job_name(job),
            name=self.name,
            run=self.id if self.name else "",
            started_at=self.started_at,
            seconds=self.seconds,
            warnings=self.warnings,
        )

    @contextmanager
    def warning(self, done: str, raising: tuple[type[HoldfastError], ...] = ()) -> Iterator[None]:
        """Turn errors of the lock and the history into warnings, except those for `raising`."""
        try:
            yield
        except raising:
            raise
        except HoldfastError as error:
            hint = ""
            if isinstance(error, UnauthorizedError | ForbiddenError):
                hint = f" The token needs write:{JOBS_BUCKET} for that; --no-record does without."
            self.warnings.append(f"The run is not {done}: {error.message}{hint}")


def last_results(server: SparkClient, name: str) -> list[dict[str, Any]]:
    """The figures of the last runs of a pipeline that ended well, the latest first."""
    try:
        history = server.stream(f"{JOBS_BUCKET}/{name}").read(last=_LAST_MAX)
        found = [each.json for each in history]
    except HoldfastError:
        # None was recorded, or it may not be read.
        return []
    ended = [each for each in found if each.get("event") == "finished" and each.get("ok")]
    return [each["result"] for each in reversed(ended)]


class _History:
    """The stream with the runs of a pipeline."""

    def __init__(self, server: SparkClient, run: Run, job: str) -> None:
        self._stream = server.stream(f"{JOBS_BUCKET}/{run.name}")
        self._run = run
        self._job = job

    def begin(self, job: Any) -> None:
        with self._run.warning("recorded"):
            self._stream.create("application/json")
            self._append("started", **_who(), versions=_versions(), options=_options(job))

    def end(self, result: JobResult) -> None:
        figures = {key: _shortened(value) for key, value in result.figures().items()}
        figures["store_requests"] = result.store_requests
        with self._run.warning("recorded"):
            self._append("finished", seconds=result.seconds, ok=result.ok, result=figures)

    def fail(self, error: BaseException) -> None:
        if self._run.is_cut_off:
            return
        said = {"code": "interrupted", "message": "The run was interrupted."}
        if isinstance(error, Exception):
            found = as_holdfast_error(error)
            said = {"code": found.code, "message": found.message[:_TEXT_MAX]}
        # The error itself is what the user has to see.
        with suppress(HoldfastError):
            self._append("failed", seconds=self._run.seconds, ok=False, error=said)

    def _append(self, event: str, **more: object) -> None:
        at = _time(self._run.clock.now_ms())
        record = {"event": event, "run": self._run.id, "job": self._job, "at": at, **more}
        self._stream.append(record)


@contextmanager
def _locked(server: SparkClient, run: Run, job: JobOptions, progress: Progress) -> Iterator[bool]:
    """Hold the lock of the pipeline; False if there can be none."""
    lock = _Lock(server, run, job.server)
    is_held = False
    with run.warning("locked and recorded", raising=(PipelineBusyError, OutboundError)):
        lock.take(job.wait_s, progress)
        is_held = True
    with lock.renewed() if is_held else nullcontext():
        yield is_held
    if lock.lost_to:
        run.warnings.append(f"Another run began before this one ended: {lock.lost_to}.")


class _Lock:
    """The lock of a pipeline, as one run sees it."""

    def __init__(self, server: SparkClient, run: Run, connection: SparkConnection) -> None:
        self._path = f"{JOBS_BUCKET}/{run.name}.lock"
        self._stream = server.stream(self._path)
        self._connection = connection
        self._run = run
        self._clock = run.clock
        who = _who()
        host = re.sub(r"[^A-Za-z0-9.-]", "-", str(who["host"]))
        since = run.clock.now_ms()
        self._own = f"text/plain; run={run.id}; host={host}; pid={who['pid']}; since={since}"
        self._renewed_s = 0.0
        # The run that took the lock after this one had been out of touch for too long.
        self.lost_to = ""

    def take(self, wait_s: float, progress: Progress) -> None:
        until_s = self._clock.monotonic_s() + wait_s
        while (holder := self._create(self._stream)) is not None:
            if self._clock.monotonic_s() >= until_s:
                raise PipelineBusyError(
                    f"Another run of {self._run.name} is in progress: {_described(holder)}. Wait "
                    "for it with --wait SECONDS. If it was killed, its lock ends within "
                    f"{LOCK_TTL_S} s."
                )
            progress.start("waiting for another run")
            Event().wait(min(_WAIT_S, max(0.0, until_s - self._clock.monotonic_s())))

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lock while the block runs, then give it back."""
        over = Event()
        # Without retries, since there is another attempt soon, and the end waits for this one.
        with SparkClient(replace(self._connection, retries=0)) as server:
            stream = server.stream(self._path)
            renewing = Thread(target=self._renew, args=(stream, over), daemon=True)
            renewing.start()
            try:
                yield
            finally:
                over.set()
                renewing.join()
                self._release()

    def _create(self, stream: SyncStream) -> str | None:
        """Create the lock; return the content type of the other one if there is one."""
        try:
            if stream.create(self._own, ttl_s=LOCK_TTL_S).created:
                self._renewed_s = self._clock.monotonic_s()
                return None
        except StreamExistsError:
            pass
        try:
            held = stream.head().content_type
        except StreamNotFoundError:
            return self._create(stream)
        # An attempt whose response was lost has created it.
        return None if held == self._own else held

    def _renew(self, stream: SyncStream, over: Event) -> None:
        while not over.wait(_RENEW_S):
            # A server that cannot be reached concerns the job itself; here it is tried again.
            with suppress(HoldfastError):
                at_s = self._clock.monotonic_s()
                try:
                    if stream.head().content_type == self._own:
                        stream.read("now").read_bytes()
                        self._renewed_s = at_s
                        continue
                except StreamNotFoundError:
                    pass
                # It has expired: the driver or the server was suspended, or the TTL is fixed.
                if (holder := self._create(stream)) is not None:
                    self.lost_to = _described(holder)
                    return

    def _release(self) -> None:
        # Beyond half of the TTL it may have expired, and be the lock of another run by the time
        # the request arrives; then it is left to expire.
        is_recent = self._clock.monotonic_s() - self._renewed_s < LOCK_TTL_S / 2
        if is_recent and not self.lost_to and not self._run.is_cut_off:
            with suppress(HoldfastError):
                self._stream.delete()


def _described(content_type: str) -> str:
    """Who holds a lock, from its content type."""
    found = dict(re.findall(r"(\w+)=([^;\s]+)", content_type))
    since = found.get("since", "")
    at = _time(int(since))[:19].replace("T", " ") if since.isdigit() else "an unknown time"
    return (
        f"run {found.get('run', '?')} on {found.get('host', '?')}, process {found.get('pid', '?')},"
        f" since {at} UTC"
    )


def _who() -> dict[str, object]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    return {"host": socket.gethostname(), "pid": os.getpid(), "user": user}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name, package in _PACKAGES.items():
        with suppress(PackageNotFoundError):
            found[name] = version(package)
    return found


def _options(job: Any) -> dict[str, Any]:
    """The options that differ from their defaults, without anything secret."""
    values = {each.name: getattr(job, each.name) for each in fields(job)}
    # Compared as text, since defaults may be made by functions.
    defaults = {each.name: each.default for each in fields(job)}
    return {
        name: _shown(value)
        for name, value in values.items()
        if value and value != defaults[name] and name not in {"name", "record", "wait_s"}
    }


def _shown(value: object) -> object:
    if isinstance(value, SparkConnection):
        return value.url
    if isinstance(value, Mapping):
        # The values may be keys of a catalog or of a store.
        return sorted(map(str, value))
    if isinstance(value, str | int | float | list):
        return _shortened(value)
    return getattr(value, "__qualname__", type(value).__name__)


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(each) for each in value[:_LISTED_MAX]]
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    return msgspec.to_builtins(value)


def _time(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
