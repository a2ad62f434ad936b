"""The commands of `holdfast bench`: one for each scenario."""

import re
from typing import Annotated

from cyclopts import App, Parameter

from holdfast.cli.bench.conduct import conduct
from holdfast.cli.bench.messages import AppendWork, BootstrapWork, FanoutWork
from holdfast.cli.bench.options import (
    DEFAULTS,
    PATH_PREFIX,
    Common,
    ContentType,
    PathPrefix,
    at_least,
    clean_prefix,
)
from holdfast.cli.bench.payload import check_content_type
from holdfast.cli.bench.stamps import SIZE_BYTES_MIN
from holdfast.cli.bench.streams import BootstrapStreams, Streams
from holdfast.clock import SystemClock
from holdfast.errors import SettingsError

__all__ = ["append", "bootstrap", "commands", "fanout"]

FANOUT_RATE_PER_STREAM = 10.0
BUCKET = re.compile(r"[a-z0-9_-]{4,64}")
HELP = "Measure a Durable Streams server: appends, SSE fan-out, or a bootstrap stampede."

commands = App(
    name="bench",
    help=HELP,
    help_format="plaintext",
    default_parameter=Parameter(show_default=True),
)


@commands.command
def append(
    *,
    streams: Annotated[int, Parameter(help="Streams to append to, in turn.")] = 1000,
    connections: Annotated[int, Parameter(help="Connections of each process.")] = 64,
    payload: Annotated[int, Parameter(help="Bytes of an append.")] = 256,
    content_type: ContentType = "application/octet-stream",
    producer: Annotated[
        bool,
        Parameter(
            negative="", help="Send producer headers: appends that happen once.", show_default=False
        ),
    ] = False,
    path_prefix: PathPrefix = PATH_PREFIX,
    common: Common = DEFAULTS,
) -> int:
    """Append to many streams over many connections."""
    common.check()
    at_least("--streams", streams, 1)
    at_least("--connections", connections, 1)
    at_least("--payload", payload, 3)
    check_content_type(content_type)
    target = common.target()
    name = _run_name()
    setup = Streams(target, _paths(path_prefix, name, streams), content_type)
    work = AppendWork(
        paths=setup.paths,
        connections=connections,
        content_type=content_type,
        payload_bytes=payload,
        producer=f"bench-{name}" if producer else None,
    )
    chosen = {
        "streams": streams,
        "connections": connections,
        "payload": payload,
        "content_type": content_type,
        "producer": producer,
    }
    return conduct("append", common, target, setup, work, chosen)


@commands.command
def fanout(
    *,
    streams: Annotated[int, Parameter(help="Streams to write to.")] = 1,
    readers: Annotated[int, Parameter(help="SSE readers, spread over the streams.")] = 100,
    connections: Annotated[int, Parameter(help="Writing connections of each process.")] = 16,
    payload: Annotated[int, Parameter(help="Bytes of a message.")] = 256,
    content_type: ContentType = "text/plain",
    path_prefix: PathPrefix = PATH_PREFIX,
    common: Common = DEFAULTS,
) -> int:
    """Write to streams that many readers follow over SSE.

    Without --rate, 10 messages a second are written to each stream.
    """
    common.check()
    at_least("--streams", streams, 1)
    at_least("--readers", readers, 1)
    at_least("--connections", connections, 1)
    at_least("--payload", payload, SIZE_BYTES_MIN)
    check_content_type(content_type)
    target = common.target()
    setup = Streams(target, _paths(path_prefix, _run_name(), streams), content_type)
    work = FanoutWork(
        paths=setup.paths,
        readers=readers,
        connections=connections,
        content_type=content_type,
        payload_bytes=payload,
    )
    chosen = {
        "streams": streams,
        "readers": readers,
        "connections": connections,
        "payload": payload,
        "content_type": content_type,
        "rate": common.rate or FANOUT_RATE_PER_STREAM * streams,
    }
    return conduct("fanout", common, target, setup, work, chosen)


@commands.command
def bootstrap(
    *,
    clients: Annotated[int, Parameter(help="Clients of all processes together.")] = 500,
    streams: Annotated[int, Parameter(help="Streams that the clients are spread over.")] = 1,
    snapshot_bytes: Annotated[int, Parameter(help="Bytes of a snapshot.")] = 65_536,
    messages: Annotated[int, Parameter(help="Messages after the snapshot.")] = 1000,
    payload: Annotated[int, Parameter(help="Bytes of a message.")] = 1024,
    once: Annotated[
        bool,
        Parameter(
            negative="",
            help="Let each client ask one time, --duration at the longest.",
            show_default=False,
        ),
    ] = False,
    bucket: Annotated[
        str | None,
        Parameter(
            help="Bucket to make the streams in; one of its own, if left out.", show_default=False
        ),
    ] = None,
    common: Common = DEFAULTS,
) -> int:
    """Let many clients bootstrap at the same time, again and again."""
    common.check()
    at_least("--clients", clients, 1)
    at_least("--streams", streams, 1)
    at_least("--snapshot-bytes", snapshot_bytes, 1)
    at_least("--messages", messages, 0)
    at_least("--payload", payload, 1)
    if once and common.rate is not None:
        raise SettingsError("--once: a rate makes no sense where each client asks one time")
    name = _run_name()
    bucket = bucket or f"bench-{name}"
    if BUCKET.fullmatch(bucket) is None:
        raise SettingsError(f"--bucket: expected 4 to 64 of a-z, 0-9, _ and -, got {bucket!r}")
    target = common.target()
    sizes = (snapshot_bytes, messages, payload)
    setup = BootstrapStreams(target, _paths(bucket, name, streams), sizes, common.seed)
    work = BootstrapWork(
        paths=setup.paths,
        clients=clients,
        answer_bytes_min=snapshot_bytes + messages * payload,
        once=once,
    )
    chosen = {
        "clients": clients,
        "streams": streams,
        "snapshot_bytes": snapshot_bytes,
        "messages": messages,
        "payload": payload,
        "once": once,
    }
    return conduct("bootstrap", common, target, setup, work, chosen)


def _run_name() -> str:
    """What no other run is called."""
    return SystemClock().random_bytes(5).hex()


def _paths(prefix: str, name: str, count: int) -> list[str]:
    start = clean_prefix(prefix)
    return [f"{start}/{name}-{number}" for number in range(count)]
