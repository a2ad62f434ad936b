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
from holdfast.spark.jobs import run_job
from holdfast.spark.session import as_holdfast_error, close_session, is_alive, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.cli.pipeline.flags import _Spark

__all__ = ["Conductor", "conduct", "ending_well", "is_well", "show_traceback"]

EXIT_TERMINATED: Final = 143


class Conductor:
    """Does jobs, one after the other, in one session, which is started when it is needed."""

    def __init__(self, open_: Callable[[], SparkSession], *, quiet: bool) -> None:
        self._open = open_
        self._quiet = quiet
        self._spark: SparkSession | None = None

    def do(self, job: Any) -> Any:
        """Do a job; its summary."""
        with showing(quiet=self._quiet) as progress:
            if self._spark is None:
                progress.start("starting Spark")
                self._spark = self._open()
                progress.done()
            return run_job(self._spark, job, progress)

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
    clock = SystemClock()

    def open_() -> SparkSession:
        return open_session(
            spark.master or MASTER, f"holdfast {name}", spark.settings(), spark.remote
        )

    conductor = Conductor(open_, quiet=flags.quiet)
    with ending_well(conductor, output, with_traceback=spark.with_traceback) as ending:
        started_s = clock.monotonic_s()
        summary = conductor.do(job)
        seconds = clock.monotonic_s() - started_s
        output.show(as_document(name, summary, seconds), as_text(name, summary, seconds))
        ending.code = 0 if is_well(summary) else EXIT_FAILED
    return ending.code


class _Ending:
    code = EXIT_FAILED


@contextmanager
def ending_well(conductor: Conductor, output: Output, *, with_traceback: bool) -> Iterator[_Ending]:
    """Turn whatever ends the work inside into an exit code and one sentence.

    The session is closed last: Spark's errors ask the JVM what they have to say.
    """
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
        failure = as_holdfast_error(error)
        if with_traceback:
            show_traceback(error)
        output.failure(failure)
        ending.code = exit_code(failure)
    finally:
        conductor.close()
        signal.signal(signal.SIGTERM, before)


def show_traceback(error: Exception) -> None:
    """Where an error comes from, for whoever asked."""
    say("".join(traceback.format_exception(error)).rstrip())


def is_well(summary: Any) -> bool:
    """Whether a job that came to its end found nothing to complain about."""
    return bool(getattr(summary, "ok", True))


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)
