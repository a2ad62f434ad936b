"""Run a job: Spark session, progress bar, summary, and one sentence if it fails."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from holdfast.cli.client.connection import exit_code
from holdfast.cli.client.output import Output
from holdfast.cli.terminal import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    NOTHING,
    as_bytes,
    as_count,
    printable,
    say,
    steps,
)
from holdfast.spark.jobs import run_job
from holdfast.spark.jobs.progress import UNSEEN, Progress
from holdfast.spark.jobs.recording import recorded
from holdfast.spark.jobs.result import JobResult
from holdfast.spark.session import as_holdfast_error, close_session, is_alive, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.cli.pipeline.job_commands import _Spark

__all__ = [
    "MASTER",
    "SparkRunner",
    "as_text",
    "execute",
    "exit_code_of",
    "show_traceback",
    "show_warnings",
]

MASTER: Final = "local[*]"
EXIT_TERMINATED: Final = 143
_LIST_ITEMS_MAX: Final = 20


class SparkRunner:
    """Runs jobs one after the other in one session, which is started when it is needed."""

    def __init__(self, open_: Callable[[], SparkSession], *, quiet: bool) -> None:
        self._open = open_
        self._quiet = quiet
        self._spark: SparkSession | None = None

    def run(self, job: Any) -> JobResult:
        """Run a job and return its result."""
        with _progress(quiet=self._quiet) as progress:

            def work() -> JobResult:
                # Only now: a server that cannot be reached, or another run, is found without Spark.
                if self._spark is None:
                    progress.start("starting Spark")
                    self._spark = self._open()
                    progress.done()
                result: JobResult = run_job(self._spark, job, progress)
                return result

            return recorded(job, work, progress)

    def recover(self) -> None:
        """Drop a session that a failure has ended; the next job gets a new one."""
        if self._spark is not None and not is_alive(self._spark):
            self.close()

    def close(self) -> None:
        spark, self._spark = self._spark, None
        if spark is not None:
            close_session(spark)


def execute(name: str, job: Any, spark: _Spark, flags: Any) -> int:
    """Run one job and return the exit code."""
    output = Output(as_json=flags.json, quiet=flags.quiet)

    def open_() -> SparkSession:
        return open_session(
            spark.master or MASTER, f"holdfast {name}", spark.settings(), spark.remote
        )

    runner = SparkRunner(open_, quiet=flags.quiet)

    def work() -> bool:
        result = runner.run(job)
        show_warnings(output, result)
        output.show(result.document(), as_text(name, result))
        return result.ok

    return exit_code_of(work, runner, output, with_traceback=spark.with_traceback)


def exit_code_of(
    work: Callable[[], bool], runner: SparkRunner, output: Output, *, with_traceback: bool
) -> int:
    """Do the work and return an exit code. Errors become one sentence on stderr.

    The session is closed last: Spark's errors ask the JVM for their message.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        code = 0 if work() else EXIT_FAILED
        output.flush()
    except KeyboardInterrupt:
        output.end_line()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 (whatever Spark raises)
        failure = as_holdfast_error(error)
        if with_traceback:
            show_traceback(error)
        output.failure(failure)
        return exit_code(failure)
    else:
        return code
    finally:
        runner.close()
        signal.signal(signal.SIGTERM, before)


def show_traceback(error: Exception) -> None:
    say("".join(traceback.format_exception(error)).rstrip())


def show_warnings(output: Output, result: JobResult) -> None:
    for each in result.warnings:
        output.notice(f"holdfast: {each}")


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress]:
    """Show progress on stderr if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield UNSEEN
        return
    with steps() as shown:
        yield shown


def as_text(name: str, result: JobResult) -> str:
    """Return the result in lines: the job's own, or one for each figure."""
    own = getattr(result, "lines", None)
    lines = own() if callable(own) else list(_lines(result.figures()))
    done = "done" if result.ok else "done, with problems,"
    return "\n".join(
        [f"{name}: {done} in {result.seconds:.1f} s", *(f"  {printable(each)}" for each in lines)]
    )


def _lines(fields: dict[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        label = name.replace("_", " ")
        if isinstance(value, list):
            yield f"{label}: {len(value):,}"
            yield from (f"  {_plain(name, each)}" for each in value[:_LIST_ITEMS_MAX])
            if len(value) > _LIST_ITEMS_MAX:
                yield f"  and {len(value) - _LIST_ITEMS_MAX:,} more; --json has them all"
        else:
            yield f"{label}: {_plain(name, value)}"


def _plain(name: str, value: object) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        is_size = name == "bytes" or name.endswith("_bytes") or name.startswith("bytes_")
        return as_bytes(value) if is_size else as_count(value)
    if isinstance(value, float):
        return f"{value:,.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(key, each)}" for key, each in value.items()) or NOTHING
    return str(value)
