"""Does the jobs of a file, and says what became of each; none stops the others."""

from __future__ import annotations

from holdfast.cli.client.output import Output
from holdfast.cli.pipeline.conduct import Conductor, is_well, show_traceback
from holdfast.cli.pipeline.display import as_document, as_text
from holdfast.cli.wording import as_duration
from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.spark.jobs.run_file import Entry
from holdfast.spark.session import as_holdfast_error, rebuild_error

__all__ = ["FileRunner"]


class FileRunner:
    """Does jobs in a session that they share."""

    def __init__(
        self, conductor: Conductor, output: Output, clock: Clock, *, with_traceback: bool
    ) -> None:
        self._conductor = conductor
        self._output = output
        self._clock = clock
        self._with_traceback = with_traceback

    def do(self, entry: Entry) -> bool:
        """Do one; whether all went well."""
        started_s = self._clock.monotonic_s()
        try:
            summary = self._conductor.do(entry.job)
        except Exception as error:  # noqa: BLE001 (whatever Spark raises)
            if self._with_traceback:
                show_traceback(error)
            self._failed(entry, as_holdfast_error(error), self._clock.monotonic_s() - started_s)
            self._conductor.recover()
            return False
        seconds = self._clock.monotonic_s() - started_s
        well = is_well(summary)
        document = {"name": entry.name, "ok": well, **as_document(_job(entry), summary, seconds)}
        self._output.show(document, as_text(entry.name, summary, seconds))
        return well

    def skip(self, entry: Entry, failed: list[str]) -> None:
        """Say that it is left out."""
        said = f"left out, since {', '.join(failed)} failed."
        self._failed(entry, HoldfastError(said), 0.0)

    def rest(self, seconds: float) -> None:
        """Say how long it takes until the next one."""
        self._output.notice(f"next job in {as_duration(seconds)}")

    def _failed(self, entry: Entry, error: HoldfastError, seconds: float) -> None:
        if self._output.as_json:
            said = {"code": error.code, "message": error.message}
            document = {"name": entry.name, "ok": False, "job": _job(entry), "error": said}
            self._output.document({**document, "seconds": round(seconds, 3)})
        self._output.failure(rebuild_error(type(error), f"{entry.name}: {error.message}"))


def _job(entry: Entry) -> str:
    return type(entry.job).__name__.lower()
