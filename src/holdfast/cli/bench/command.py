"""The commands of `holdfast bench`: one for each scenario."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter
from msgspec import Meta

from holdfast.cli.bench.connection import BenchTarget, resolve_target
from holdfast.cli.bench.fanout import SIZE_BYTES_MIN
from holdfast.cli.bench.messages import AppendWork, BootstrapWork, FanoutWork, Job, Work
from holdfast.cli.bench.report import UNITS, check_plot, draw, print_report, watching
from holdfast.cli.bench.result import BenchResult, Latencies, to_json
from holdfast.cli.bench.run import BenchPlan, BenchStreams, BootstrapStreams, run
from holdfast.cli.bench.worker import run_loop
from holdfast.cli.config import with_flags
from holdfast.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError
from holdfast.settings.options import Count, check_flags, option, options_of

__all__ = ["append", "bootstrap", "clean_prefix", "commands", "fanout"]

# More than a process can send; beyond it, keeping the schedule alone would take all its time.
RATE_MAX = 1_000_000
FANOUT_RATE_PER_STREAM = 10.0
# Flags that are no parameters of the measurement.
NOT_PARAMETERS = frozenset(
    {"url", "token", "context", "ca_file", "json", "plot", "path_prefix", "bucket"}
)
_CONTENT_TYPE = "Content type of the streams."
_PATH_PREFIX = "Path that the streams are created under."
_Duration = Annotated[float, Meta(ge=0.1, le=31_536_000)]

commands = App(
    name="bench",
    help="Measure a Durable Streams server: appends, SSE fan-out, or a bootstrap stampede.",
    help_format="plaintext",
    default_parameter=Parameter(show_default=False),
)


def _clean_content_type(text: str) -> str:
    if not (text.isascii() and text.isprintable() and "/" in text):
        raise ValueError("expected TYPE/SUBTYPE")
    return text


def _clean_bucket(text: str) -> str:
    if re.fullmatch(r"[a-z0-9_-]{4,64}", text) is None:
        raise ValueError("expected 4 to 64 of a-z, 0-9, _ and -")
    return text


def clean_prefix(text: str) -> str:
    """Return a percent-encoded path with a leading slash and without a trailing one."""
    path = text.strip("/")
    if not path:
        raise ValueError("expected a path such as /v1/stream/bench")
    return "/" + quote(path, safe="/%:@!$&'()*+,;=~")


def _clean_json(text: str) -> str:
    """Report before the run what would fail after it."""
    if text != "-":
        if text.startswith("-"):
            raise ValueError("expected a file or -")
        if not Path(text).absolute().parent.is_dir():
            raise ValueError(f"there is no directory {Path(text).absolute().parent}")
    return text


@Parameter(name="*")
@with_flags
@dataclass(frozen=True, kw_only=True)
class CommonFlags:
    """The flags of every scenario."""

    url: str | None = option("The server. Also HOLDFAST_URL. (default http://127.0.0.1:4437)", None)
    token: str | None = option("Bearer token to send. Also HOLDFAST_TOKEN.", None)
    context: str | None = option(
        "Named server, see `holdfast context`. Also HOLDFAST_CONTEXT.", None
    )
    ca_file: Path | None = option("Certificates to trust besides the system's, PEM.", None)
    processes: Count = option("Load processes; each can keep one core busy.", 1)
    duration_s: _Duration = option("Seconds to measure.", 10.0)
    warmup_s: Annotated[float, Meta(ge=0, le=31_536_000)] = option(
        "Seconds of load before the measurement.", 1.0
    )
    rate: Annotated[float, Meta(ge=0.001)] | None = option(
        "Operations per second in total; latencies then count from when each was due. Without it, "
        "each connection sends as fast as responses arrive.",
        None,
    )
    timeout_s: _Duration = option("Seconds until a request counts as failed.", 10.0)
    seed: int = option("Payloads are the same for the same seed.", 0)
    json: str | None = option(
        "File for the result as JSON; - for stdout, which then has nothing else.",
        None,
        clean=_clean_json,
        hyphen=True,
    )
    plot: Path | None = option("File for a plot of the result: .png or .svg.", None)

    def target(self) -> BenchTarget:
        return resolve_target(self.url, self.token, self.context, self.ca_file)

    def check(self) -> None:
        """Refuse invalid flags before anything is done."""
        check_flags(self)
        if self.rate is not None and self.rate > RATE_MAX * self.processes:
            raise SettingsError(
                f"--rate: one process sends at most {RATE_MAX:,} per second; "
                "use a lower rate or more --processes"
            )
        if self.plot is not None:
            check_plot(self.plot)


@Parameter(name="*")
@with_flags
@dataclass(frozen=True, kw_only=True)
class AppendFlags:
    streams: Count = option("Number of streams.", 1000)
    connections: Count = option("Connections of each process.", 64)
    payload: Annotated[int, Meta(ge=3)] = option("Bytes of an append.", 256)
    content_type: str = option(_CONTENT_TYPE, "application/octet-stream", clean=_clean_content_type)
    producer: bool = option("Send the headers of an idempotent producer.", False)
    path_prefix: str = option(_PATH_PREFIX, "/v1/stream/bench", clean=clean_prefix)


@Parameter(name="*")
@with_flags
@dataclass(frozen=True, kw_only=True)
class FanoutFlags:
    streams: Count = option("Number of streams.", 1)
    readers: Count = option("SSE readers, spread over the streams.", 100)
    connections: Count = option("Writing connections of each process.", 16)
    payload: Annotated[int, Meta(ge=SIZE_BYTES_MIN)] = option("Bytes of a message.", 256)
    content_type: str = option(_CONTENT_TYPE, "text/plain", clean=_clean_content_type)
    path_prefix: str = option(_PATH_PREFIX, "/v1/stream/bench", clean=clean_prefix)


@Parameter(name="*")
@with_flags
@dataclass(frozen=True, kw_only=True)
class BootstrapFlags:
    clients: Count = option("Clients of all processes together, spread over the streams.", 500)
    streams: Count = option("Number of streams.", 1)
    snapshot_bytes: Count = option("Bytes of a snapshot.", 65_536)
    messages: Annotated[int, Meta(ge=0)] = option("Messages after the snapshot.", 1000)
    payload: Count = option("Bytes of a message.", 1024)
    once: bool = option("Send one request per client, for --duration at most.", False)
    bucket: str | None = option(
        "Bucket to create the streams in. (default: one of its own)", None, clean=_clean_bucket
    )


_COMMON = CommonFlags()
_APPEND = AppendFlags()
_FANOUT = FanoutFlags()
_BOOTSTRAP = BootstrapFlags()


@commands.command
def append(*, flags: AppendFlags = _APPEND, common: CommonFlags = _COMMON) -> int:
    """Append to many streams over many connections."""
    check_flags(flags)
    common.check()
    target, name = common.target(), _run_name()
    streams = BenchStreams(
        target, _paths(flags.path_prefix, name, flags.streams), flags.content_type
    )
    work = AppendWork(
        paths=streams.paths,
        connections=flags.connections,
        content_type=flags.content_type,
        payload_bytes=flags.payload,
        producer=f"bench-{name}" if flags.producer else None,
    )
    return _measure("append", common, flags, target, streams, work, common.rate)


@commands.command
def fanout(*, flags: FanoutFlags = _FANOUT, common: CommonFlags = _COMMON) -> int:
    """Write to streams that many readers follow over SSE.

    Without --rate, 10 messages per second are written to each stream.
    """
    check_flags(flags)
    common.check()
    target = common.target()
    paths = _paths(flags.path_prefix, _run_name(), flags.streams)
    streams = BenchStreams(target, paths, flags.content_type)
    work = FanoutWork(
        paths=paths,
        readers=flags.readers,
        connections=flags.connections,
        content_type=flags.content_type,
        payload_bytes=flags.payload,
    )
    rate = common.rate or FANOUT_RATE_PER_STREAM * flags.streams
    return _measure("fanout", common, flags, target, streams, work, rate)


@commands.command
def bootstrap(*, flags: BootstrapFlags = _BOOTSTRAP, common: CommonFlags = _COMMON) -> int:
    """Let many clients bootstrap at the same time, again and again."""
    check_flags(flags)
    common.check()
    if flags.once and common.rate is not None:
        raise SettingsError("--once: it cannot be combined with --rate")
    target, name = common.target(), _run_name()
    paths = _paths(flags.bucket or f"bench-{name}", name, flags.streams)
    sizes = (flags.snapshot_bytes, flags.messages, flags.payload)
    streams = BootstrapStreams(target, paths, sizes, common.seed)
    work = BootstrapWork(
        paths=paths,
        clients=flags.clients,
        response_bytes_min=flags.snapshot_bytes + flags.messages * flags.payload,
        once=flags.once,
    )
    return _measure("bootstrap", common, flags, target, streams, work, common.rate)


def _run_name() -> str:
    """Return a name that no other run has."""
    return SystemClock().random_bytes(5).hex()


def _paths(prefix: str, name: str, count: int) -> list[str]:
    start = clean_prefix(prefix)
    return [f"{start}/{name}-{number}" for number in range(count)]


def _measure(
    scenario: str,
    common: CommonFlags,
    flags: AppendFlags | FanoutFlags | BootstrapFlags,
    target: BenchTarget,
    streams: BenchStreams,
    work: Work,
    rate: float | None,
) -> int:
    """Run a scenario, write its result, and return the exit code."""
    # Fails here, before anything is created, if a package is missing.
    Latencies()
    job = Job(
        target=target,
        share=0,
        shares=common.processes,
        # Clients that send one request have none for the warm-up.
        warmup_s=0.0 if isinstance(work, BootstrapWork) and work.once else common.warmup_s,
        duration_s=common.duration_s,
        rate=rate,
        timeout_s=common.timeout_s,
        seed=common.seed,
        work=work,
    )
    parameters = {**_parameters(common), **_parameters(flags), "rate": rate}
    plan = BenchPlan(scenario, streams, job, parameters)
    try:
        with watching(f"bench {scenario}", UNITS[scenario], common.duration_s) as display:
            result: BenchResult = run_loop(run(plan, display))
        _write(result, common)
    except KeyboardInterrupt:
        # Before the run could handle it, or after.
        return EXIT_INTERRUPTED
    if result.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if result.failed else 0


def _parameters(flags: object) -> dict[str, Any]:
    options = (each for each in options_of(type(flags)) if each.key not in NOT_PARAMETERS)
    return {each.key: getattr(flags, each.attribute) for each in options}


def _write(result: BenchResult, common: CommonFlags) -> None:
    if common.json == "-":
        sys.stdout.write(to_json(result))
    else:
        print_report(result)
        if common.json is not None:
            try:
                Path(common.json).write_text(to_json(result))
            except OSError as error:
                raise HoldfastError(f"{common.json} cannot be written: {error.strerror}.") from None
    if common.plot is not None:
        draw(result, common.plot)
