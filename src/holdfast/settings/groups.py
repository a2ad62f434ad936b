"""The settings themselves: names, types, defaults and what they mean.

These classes are the only list of settings. The TOML tables, the `HOLDFAST_*` variables, the
flags of `holdfast serve`, the output of `holdfast config` and `docs/settings.md` are all derived
from them, so a new field or group needs a line here and nothing elsewhere.

Durations are in seconds; their Python names end in `_s`, which no external name carries.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Meta

# A year is far beyond any sensible wait, and keeps `inf` and `nan` out of the timers.
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Count = Annotated[int, Meta(ge=1)]


def setting(
    default: object,
    doc: str,
    *,
    clean: Callable[[Any], Any] | None = None,
    secret: bool = False,
) -> Any:
    """Declare one setting. `clean` returns the value to use, or raises ValueError."""
    return field(default=default, metadata={"doc": doc, "clean": clean, "secret": secret})


def parse_listen(text: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPV6]:PORT` into host and port."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^:\[\]\s/]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise ValueError("expected HOST:PORT or [IPV6]:PORT, with a port from 0 to 65535")
    return match[1] or match[2], int(match[3])


def _clean_listen(text: str) -> str:
    parse_listen(text)
    return text


def _clean_origin(text: str) -> str:
    if text != "*" and not re.fullmatch(r"https?://[^\s/?#@]+", text):
        raise ValueError('expected "*" or an origin such as https://app.example.com')
    return text


def _clean_public_url(text: str) -> str:
    url = urlsplit(text)
    absolute = url.scheme in {"http", "https"} and url.hostname
    if text and (not absolute or url.query or url.fragment or re.search(r"\s", text)):
        raise ValueError("expected an absolute URL such as https://streams.example.com/prefix")
    return text.rstrip("/")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the server listens, where its data lives, and what it promises."""

    prefix: ClassVar[str] = ""

    listen: str = setting(
        "127.0.0.1:4437",
        "Address to listen on, `HOST:PORT` or `[IPV6]:PORT`. Port 0 lets the system choose.",
        clean=_clean_listen,
    )
    data_dir: Path = setting(Path("data"), "Directory of the log. One server at a time.")
    durability: Literal["fsync", "memory"] = setting(
        "fsync",
        "`fsync`: an append is on disk before it is acknowledged. "
        "`memory`: nothing is written, and nothing survives a restart.",
    )
    public_url: str = setting(
        "",
        "URL that clients use, where it differs from the address listened on (behind a proxy): "
        "`https://host[/prefix]`. `Location` headers start with it.",
        clean=_clean_public_url,
    )
    stream_ttl: Literal["sliding", "fixed"] = setting(
        "sliding",
        "`sliding`: reads and writes renew a stream's TTL. `fixed`: it counts from creation.",
    )
    connections_max: Count = setting(10_000, "Open connections; more are answered with 503.")
    # The whole exit has to fit in 10 s, and closing the log may take 1.5 s of them.
    shutdown_timeout_s: Annotated[float, Meta(gt=0, le=8.5)] = setting(
        8.0, "How long a stopping server waits for requests in flight."
    )
    cors_origin: str = setting(
        "*", "Value of `Access-Control-Allow-Origin`: `*` or one origin.", clean=_clean_origin
    )


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS on the listener. Both files, or neither."""

    prefix: ClassVar[str] = "tls_"

    cert: str = setting("", "PEM file with the certificate and its chain.")
    key: str = setting("", "PEM file with the private key.")

    def check(self) -> None:
        """Refuse half a configuration, which would otherwise serve plain HTTP."""
        if bool(self.cert) != bool(self.key):
            missing = "key" if self.cert else "cert"
            raise ValueError(f"TLS needs both a certificate and a key; {missing} is not set")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits on one connection and one request."""

    prefix: ClassVar[str] = ""

    header_bytes_max: Count = setting(32_768, "Bytes of request line and headers; more is 431.")
    body_bytes_max: Count = setting(8_388_608, "Bytes of a request body; more is 413.")
    header_timeout_s: Seconds = setting(10.0, "Time for a request's headers to arrive.")
    body_timeout_s: Seconds = setting(30.0, "Longest silence within a request body.")
    idle_timeout_s: Seconds = setting(75.0, "How long an idle keep-alive connection stays open.")
    pipeline_max: Count = setting(
        64, "Pipelined requests of one connection in progress; then it is not read from."
    )


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Catch-up and live reads."""

    prefix: ClassVar[str] = ""

    long_poll_timeout_s: Seconds = setting(20.0, "How long a long-poll waits for data.")
    read_bytes_max: Count = setting(
        1_048_576,
        "Bytes of one catch-up response or SSE event. A single message may exceed it.",
    )
    cache_scope: Literal["public", "private"] = setting(
        "public",
        "Whether shared caches (CDNs) may keep catch-up responses: the first word of their "
        "`Cache-Control`. Use `private` where streams are not for everyone.",
    )
    sse_heartbeat_s: Seconds = setting(
        15.0, "Silence on an SSE connection after which a comment line is sent."
    )
    sse_lifetime_s: Seconds = setting(
        60.0, "Age at which an SSE connection is closed, at an event boundary."
    )
    live_readers_max: Count = setting(
        100_000, "Long-poll and SSE readers at one time; more are answered with 503."
    )


@dataclass(frozen=True, slots=True)
class WalSettings:
    """The write-ahead log in local files."""

    prefix: ClassVar[str] = "wal_"

    segment_bytes: Annotated[int, Meta(ge=4096)] = setting(
        67_108_864, "Size at which a log segment is sealed and the next one started."
    )
    batch_bytes_max: Count = setting(4_194_304, "Size at which a batch takes no more appends.")
    pending_bytes_max: Count = setting(
        134_217_728, "Bytes of appends that may wait for the disk; more are answered with 503."
    )
    commit_timeout_s: Seconds = setting(
        10.0, "How long a commit may take before its appends are answered with 503."
    )
    zero_ahead_bytes: Annotated[int, Meta(ge=0)] = setting(
        1_048_576, "Bytes a segment is filled with zeros ahead of the batches, for faster syncs."
    )
    ballast_bytes: Annotated[int, Meta(ge=0)] = setting(
        16_777_216, "Disk space held back, and given up when the disk is full. 0 for none."
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What the server says about itself on stderr."""

    prefix: ClassVar[str] = "log_"

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Least severe level that is written."
    )
    format: Literal["text", "json"] = setting("text", "Plain lines, or one JSON object a line.")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a server, by group. Attribute names are the names of the TOML tables."""

    server: ServerSettings = field(default_factory=ServerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    read: ReadSettings = field(default_factory=ReadSettings)
    wal: WalSettings = field(default_factory=WalSettings)
    log: LogSettings = field(default_factory=LogSettings)
