"""How a job is done: a Spark session, a bar, a summary, and one sentence if it fails."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from holdfast.cli.client.connection import exit_code
from holdfast.cli.client.output import Output
from holdfast.cli.failures import EXIT_FAILED, EXIT_INTERRUPTED, say
from holdfast.cli.pipeline.display import as_document, as_text, showing
from holdfast.cli.pipeline.flags import MASTER
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.spark.failures import as_holdfast_error
from holdfast.spark.jobs import run_job
from holdfast.spark.session import close_session, is_alive, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.cli.pipeline.flags import _Spark

__all__ = ["EXIT_TERMINATED", "Conductor", "conduct", "ending_well"]

EXIT_TERMINATED: Final = 143


class Conductor:
    """Does jobs, one after the other, in one session, which is started when it is needed."""

    def __init__(self, open_: Callable[[], SparkSession], output: Output, *, quiet: bool) -> None:
        self._open = open_
        self._output = output
        self._quiet = quiet
        self._clock = SystemClock()
        self._spark: SparkSession | None = None

    def do(self, name: str, job: Any, **also: object) -> bool:
        """Do a job and print its summary; whether all was well with it."""
        started_s = self._clock.monotonic_s()
        with showing(quiet=self._quiet) as progress:
            if self._spark is None:
                progress.start("starting Spark")
                self._spark = self._open()
                progress.done()
            summary = run_job(self._spark, job, progress)
        seconds = self._clock.monotonic_s() - started_s
        document = {**also, **as_document(type(job).__name__.lower(), summary, seconds)}
        self._output.show(document, as_text(name, summary, seconds))
        return bool(getattr(summary, "ok", True))

    def recover(self) -> None:
        """After a failure: if the session is lost, the next job gets another one."""
        if self._spark is not None and not is_alive(self._spark):
            self.close()

    def close(self) -> None:
        """End the session."""
        spark, self._spark = self._spark, None
        if spark is not None:
            close_session(spark)


def conduct(name: str, job: Any, spark: _Spark, flags: Any) -> int:
    """Do one job; the exit code."""
    output = Output(as_json=flags.json, quiet=flags.quiet)

    def open_() -> SparkSession:
        return open_session(
            spark.master or MASTER, f"holdfast {name}", spark.settings(), spark.remote
        )

    with ending_well(output, traceback_wanted=spark.wants_traceback) as ending:
        conductor = Conductor(open_, output, quiet=flags.quiet)
        try:
            ending.code = 0 if conductor.do(name, job) else EXIT_FAILED
        finally:
            conductor.close()
    return ending.code


class _Ending:
    code = EXIT_FAILED


@contextmanager
def ending_well(output: Output, *, traceback_wanted: bool) -> Iterator[_Ending]:
    """Turn whatever ends the work inside into an exit code and one sentence."""
    ending = _Ending()
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield ending
        output.flush()
    except KeyboardInterrupt:
        output.end_line()
        ending.code = EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 (whatever Spark raises)
        failure = explain(error, output, traceback_wanted=traceback_wanted)
        ending.code = exit_code(failure)
    finally:
        signal.signal(signal.SIGTERM, before)


def explain(error: Exception, output: Output, *, traceback_wanted: bool) -> HoldfastError:
    """Say what went wrong, in one sentence."""
    failure = as_holdfast_error(error)
    if traceback_wanted:
        say("".join(traceback.format_exception(error)).rstrip())
    output.failure(failure)
    return failure


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)
