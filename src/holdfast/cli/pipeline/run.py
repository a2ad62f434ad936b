"""`holdfast pipeline run`: the jobs of a file, once or on a schedule."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Protocol

from cyclopts import Parameter

from holdfast.cli.client.output import Output
from holdfast.cli.failures import EXIT_FAILED
from holdfast.cli.pipeline.flags import (
    DEFAULT_PLAIN,
    DEFAULT_SPARK,
    MASTER,
    Plain,
    Spark,
    the_server,
)
from holdfast.clock import Clock, SystemClock
from holdfast.spark.jobs.run_file import Entry, RunFile, load_run_file
from holdfast.spark.jobs.schedule import Schedule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.cli.pipeline.flags import _Spark

__all__ = ["Runner", "run", "run_all"]


def run(
    file: Annotated[Path, Parameter(help="The TOML file that names the jobs.")],
    /,
    *,
    once: Annotated[
        bool, Parameter(negative="", help="Run each job once, whatever its schedule, and end.")
    ] = False,
    spark: Spark = DEFAULT_SPARK,
    output: Plain = DEFAULT_PLAIN,
) -> int:
    """Run the jobs of a file, one after the other in one Spark session.

    Once, if no job of the file has a schedule (`every` or `at`); otherwise until Ctrl-C.
    """
    from holdfast.cli.pipeline.conduct import Conductor, ending_well  # noqa: PLC0415
    from holdfast.cli.pipeline.runner import FileRunner  # noqa: PLC0415 (not for the help)

    spark.check()
    found = load_run_file(file, os.environ, the_server())
    out = Output(as_json=output.json, quiet=output.quiet)
    clock = SystemClock()
    conductor = Conductor(lambda: _open(found, spark, file), quiet=output.quiet)
    runner = FileRunner(conductor, out, clock, with_traceback=spark.with_traceback)
    with ending_well(conductor, out, with_traceback=spark.with_traceback) as ending:
        well = run_all(found, runner, clock, _wait, once=once or not found.has_schedule)
        ending.code = 0 if well else EXIT_FAILED
    return ending.code


class Runner(Protocol):
    """Does the jobs that are due."""

    def do(self, entry: Entry) -> bool:
        """Do one; whether all went well."""

    def skip(self, entry: Entry, failed: list[str]) -> None:
        """Leave one out, since others failed that it needs."""

    def rest(self, seconds: float) -> None:
        """Nothing is due for so long."""


def run_all(
    file: RunFile, runner: Runner, clock: Clock, wait: Callable[[float], None], *, once: bool
) -> bool:
    """Run what is due, until nothing is to come; whether each job went well the last time."""
    went: dict[str, bool] = {}
    if once:
        for entry in file.entries:
            _run_one(entry, runner, went)
        return all(went.values())
    schedule = Schedule(file.entries, clock)
    while (seconds := schedule.wait_s()) is not None:
        if seconds:
            runner.rest(seconds)
            wait(seconds)
        due = schedule.take()
        # A clock may be set back while we wait.
        if due is not None:
            _run_one(due, runner, went)
    return all(went.values())


def _run_one(entry: Entry, runner: Runner, went: dict[str, bool]) -> None:
    failed = [each for each in entry.needs if not went.get(each, True)]
    if failed:
        runner.skip(entry, failed)
    went[entry.name] = not failed and runner.do(entry)


def _wait(seconds: float) -> None:
    Event().wait(seconds)


def _open(file: RunFile, flags: _Spark, path: Path) -> SparkSession:
    from holdfast.spark.session import open_session  # noqa: PLC0415 (not for the help)

    # A flag goes before the file.
    remote = flags.remote or (file.remote if not flags.master else None) or None
    conf = {**(file.conf or {}), **flags.settings()}
    return open_session(
        flags.master or file.master or MASTER, f"holdfast {path.name}", conf, remote
    )
