"""`holdfast pipeline run`: the jobs of a file, once or on a schedule."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Protocol

from cyclopts import Parameter

from holdfast.cli.client.output import Output
from holdfast.cli.pipeline.execute import (
    MASTER,
    SparkRunner,
    as_text,
    exit_code_of,
    show_traceback,
    show_warnings,
)
from holdfast.cli.pipeline.job_commands import (
    DEFAULT_OUTPUT,
    DEFAULT_SPARK,
    OutputFlags,
    SparkFlags,
    the_server,
)
from holdfast.cli.terminal import as_duration
from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError
from holdfast.spark.jobs.recording import job_name
from holdfast.spark.jobs.run_file import JobEntry, RunFile, Schedule, load_run_file
from holdfast.spark.session import as_holdfast_error, open_session, rebuild_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.cli.pipeline.job_commands import _Spark

__all__ = ["Runner", "run", "run_all"]


def run(
    file: Annotated[Path, Parameter(help="The TOML file that lists the jobs.")],
    /,
    *,
    once: Annotated[
        bool, Parameter(negative="", help="Run each job once, whatever its schedule, and end.")
    ] = False,
    spark: SparkFlags = DEFAULT_SPARK,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> int:
    """Run the jobs of a file, one after the other in one Spark session.

    Once, if no job of the file has a schedule (`every` or `at`); otherwise until Ctrl-C.
    """
    spark.check()
    loaded = load_run_file(file, os.environ, the_server())
    out = Output(as_json=output.json, quiet=output.quiet)
    clock = SystemClock()
    session = SparkRunner(lambda: _open(loaded, spark, file), quiet=output.quiet)
    runner = FileRunner(session, out, clock, with_traceback=spark.with_traceback)

    def work() -> bool:
        return run_all(loaded, runner, clock, _wait, once=once or not loaded.has_schedule)

    return exit_code_of(work, session, out, with_traceback=spark.with_traceback)


class Runner(Protocol):
    """Runs the jobs that are due."""

    def do(self, entry: JobEntry) -> bool:
        """Run a job; return whether it succeeded."""

    def skip(self, entry: JobEntry, failed: list[str]) -> None:
        """Report that a job is skipped because jobs that it needs failed."""

    def rest(self, seconds: float) -> None:
        """Report the time until the next job."""


class FileRunner:
    """Runs jobs in a session that they share. A failing job does not stop the others."""

    def __init__(
        self, session: SparkRunner, output: Output, clock: Clock, *, with_traceback: bool
    ) -> None:
        self._session = session
        self._output = output
        self._clock = clock
        self._with_traceback = with_traceback

    def do(self, entry: JobEntry) -> bool:
        started_s = self._clock.monotonic_s()
        try:
            result = self._session.run(entry.job)
        except Exception as error:  # noqa: BLE001 (whatever Spark raises)
            if self._with_traceback:
                show_traceback(error)
            self._failed(entry, as_holdfast_error(error), self._clock.monotonic_s() - started_s)
            self._session.recover()
            return False
        show_warnings(self._output, result)
        document = {**result.document(), "name": entry.name}
        self._output.show(document, as_text(entry.name, result))
        return result.ok

    def skip(self, entry: JobEntry, failed: list[str]) -> None:
        self._failed(entry, HoldfastError(f"skipped, since {', '.join(failed)} failed."), 0.0)

    def rest(self, seconds: float) -> None:
        self._output.notice(f"next job in {as_duration(seconds)}")

    def _failed(self, entry: JobEntry, error: HoldfastError, seconds: float) -> None:
        if self._output.as_json:
            said = {"code": error.code, "message": error.message}
            job = job_name(entry.job)
            document = {"name": entry.name, "ok": False, "job": job, "error": said}
            self._output.document({**document, "seconds": round(seconds, 3)})
        self._output.failure(rebuild_error(type(error), f"{entry.name}: {error.message}"))


def run_all(
    file: RunFile, runner: Runner, clock: Clock, wait: Callable[[float], None], *, once: bool
) -> bool:
    """Run whatever is due until nothing is left; return whether each job's last run succeeded."""
    succeeded: dict[str, bool] = {}
    if once:
        for entry in file.entries:
            _run_one(entry, runner, succeeded)
        return all(succeeded.values())
    schedule = Schedule(file.entries, clock)
    while (seconds := schedule.wait_s()) is not None:
        if seconds:
            runner.rest(seconds)
            wait(seconds)
        due = schedule.take()
        # The clock may have been set back while we waited.
        if due is not None:
            _run_one(due, runner, succeeded)
    return all(succeeded.values())


def _run_one(entry: JobEntry, runner: Runner, succeeded: dict[str, bool]) -> None:
    failed = [each for each in entry.needs if not succeeded.get(each, True)]
    if failed:
        runner.skip(entry, failed)
    succeeded[entry.name] = not failed and runner.do(entry)


def _wait(seconds: float) -> None:
    Event().wait(seconds)


def _open(file: RunFile, flags: _Spark, path: Path) -> SparkSession:
    # Flags override the file.
    remote = flags.remote or (file.remote if not flags.master else None) or None
    conf = {**(file.conf or {}), **flags.settings()}
    return open_session(
        flags.master or file.master or MASTER, f"holdfast {path.name}", conf, remote
    )
