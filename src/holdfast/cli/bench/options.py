"""The flags that all scenarios share, and the checks of what is given."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from cyclopts import Parameter

from holdfast.cli.bench.plot import check_plot
from holdfast.cli.bench.target import Target, resolve_target
from holdfast.errors import SettingsError

__all__ = ["DEFAULTS", "Common", "ContentType", "PathPrefix", "at_least", "clean_prefix"]

PATH_PREFIX = "/v1/stream/bench"
# Far more than a process can send: beyond it, keeping the schedule alone would take all its time.
RATE_MAX = 1_000_000

PathPrefix = Annotated[str, Parameter(help="Path that the streams are made under.")]
ContentType = Annotated[str, Parameter(help="Content type of the streams.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What every scenario takes."""

    url: Annotated[
        str | None,
        Parameter(
            help="The server; HOLDFAST_URL, or http://127.0.0.1:4437, if left out.",
            show_default=False,
        ),
    ] = None
    token: Annotated[
        str | None,
        Parameter(help="Bearer token to send; HOLDFAST_TOKEN if left out.", show_default=False),
    ] = None
    context: Annotated[
        str | None,
        Parameter(
            help="Named server, see `holdfast context`; HOLDFAST_CONTEXT if left out.",
            show_default=False,
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        Parameter(help="Certificates to trust besides the system's, PEM.", show_default=False),
    ] = None
    processes: Annotated[int, Parameter(help="Load processes; one keeps one core busy.")] = 1
    duration: Annotated[float, Parameter(help="Seconds to measure.")] = 10.0
    warmup: Annotated[float, Parameter(help="Seconds of load before, not measured.")] = 1.0
    rate: Annotated[
        float | None,
        Parameter(
            help="Operations due per second in total; latencies then count from when each was "
            "due. As fast as answers come, if left out.",
            show_default=False,
        ),
    ] = None
    timeout: Annotated[float, Parameter(help="Seconds until a request counts as failed.")] = 10.0
    seed: Annotated[int, Parameter(help="Payloads are the same for the same seed.")] = 0
    json: Annotated[
        str | None,
        Parameter(
            help="File for the result as JSON; - for stdout, which then has nothing else.",
            allow_leading_hyphen=True,
            show_default=False,
        ),
    ] = None
    plot: Annotated[
        Path | None,
        Parameter(help="File for a picture of the result: .png or .svg.", show_default=False),
    ] = None

    def target(self) -> Target:
        """The server that is meant."""
        return resolve_target(self.url, self.token, self.context, self.ca_file)

    def check(self) -> None:
        """Refuse what makes no sense, before anything is done."""
        at_least("--processes", self.processes, 1)
        at_least("--duration", self.duration, 0.1)
        at_least("--warmup", self.warmup, 0)
        at_least("--timeout", self.timeout, 0.1)
        if self.rate is not None:
            at_least("--rate", self.rate, 0.001)
            if self.rate > RATE_MAX * self.processes:
                raise SettingsError(
                    f"--rate: one process makes {RATE_MAX:,} a second at the most; "
                    "ask for less, or use more --processes"
                )
        if self.plot is not None:
            check_plot(self.plot)
        if self.json is not None and self.json != "-":
            check_json(self.json)


DEFAULTS = Common()


def check_json(file: str) -> None:
    """Say before the run what would fail after it."""
    if file.startswith("-"):
        raise SettingsError(f"--json: expected a file or -, got {file}")
    if not Path(file).absolute().parent.is_dir():
        raise SettingsError(f"--json: there is no directory {Path(file).absolute().parent}")


def at_least(flag: str, value: float, least: float) -> None:
    """Insist on a finite number of at least this."""
    if not least <= value < float("inf"):
        raise SettingsError(f"{flag}: expected {least:g} or more, got {value:g}")


def clean_prefix(prefix: str) -> str:
    """A path as it goes into a request, with a slash before it and none behind."""
    path = prefix.strip("/")
    if not path:
        raise SettingsError("--path-prefix: expected a path such as /v1/stream/bench")
    return "/" + quote(path, safe="/%:@!$&'()*+,;=~")
