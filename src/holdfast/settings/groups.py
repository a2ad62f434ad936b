"""The settings themselves: names, types, defaults and what they mean.

These classes, and those in the other `…_groups.py`, are the only list of settings. The TOML
tables, the `HOLDFAST_*` variables, the flags of `holdfast serve`, the output of `holdfast config`
and `docs/settings.md` are all derived from them, so a new field or group needs a line here and
nothing elsewhere.

Durations are in seconds; their Python names end in `_s`, which no external name carries.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from holdfast.protocol.names import clean_endpoint, clean_store
from holdfast.settings.access_groups import AccessSettings, LimitSettings
from holdfast.settings.declare import Count, Seconds, setting
from holdfast.settings.proxy_groups import ProxySettings
from holdfast.settings.webhook_groups import WebhookSettings


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
    snapshot_bytes_max: Count = setting(134_217_728, "Bytes of a snapshot's body; more is 413.")
    snapshot_timeout_s: Seconds = setting(300.0, "Time for a whole snapshot to be published.")
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
        33_554_432, "Size at which a log segment is sealed and the next one started."
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
class StorageSettings:
    """Packs in an object store: where they are, and when bytes move there from the log.

    An S3 setting that is empty comes from the standard `AWS_*` variables (profiles in `~/.aws` are
    not read). Google Cloud Storage takes `GOOGLE_APPLICATION_CREDENTIALS`, Azure
    `AZURE_STORAGE_ACCOUNT_NAME` with `AZURE_STORAGE_ACCOUNT_KEY` or `AZURE_STORAGE_SAS_KEY`.
    Roles of instances work for all three.
    """

    prefix: ClassVar[str] = ""

    store: str = setting(
        "",
        "Object store for packs: `s3://bucket/prefix`, `gs://bucket/prefix`, "
        "`az://container/prefix`, or a directory. Empty is `objects` in the data directory.",
        clean=clean_store,
    )
    s3_endpoint: str = setting(
        "",
        "Address of an S3 server other than AWS, `https://HOST[:PORT]`. "
        "Empty: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, or else AWS.",
        clean=clean_endpoint,
    )
    s3_region: str = setting(
        "", "Region of the bucket. Empty: `AWS_REGION`, `AWS_DEFAULT_REGION`, or else us-east-1."
    )
    s3_addressing: Literal["auto", "path", "virtual"] = setting(
        "auto",
        "Where the bucket's name goes: `path` (`https://HOST/bucket`) or `virtual` "
        "(`https://bucket.HOST`). `auto` is virtual on AWS and path elsewhere.",
    )
    s3_access_key_id: str = setting(
        "", "Access key. Empty: `AWS_ACCESS_KEY_ID`, a web identity, or the role of the instance."
    )
    s3_secret_access_key: str = setting("", "Secret of the access key.", secret=True)
    s3_session_token: str = setting(
        "", "Session token, where the access key is a temporary one.", secret=True
    )
    hot_bytes_soft: Count = setting(
        100_663_296, "Cost of what is not yet in a pack at which a flush starts."
    )
    hot_bytes_hard: Count = setting(
        268_435_456,
        "Cost of what is not yet in a pack at which appends are answered with 503.",
    )
    flush_age_s: Seconds = setting(
        600.0, "Age of what is not yet in a pack at which it is flushed."
    )
    block_cache_bytes: Annotated[int, Meta(ge=0)] = setting(
        33_554_432, "Memory for bytes read from packs. 0 for no cache."
    )
    snapshot_cache_bytes: Annotated[int, Meta(ge=0)] = setting(
        134_217_728, "Memory for snapshots of up to 512 KiB that were used last."
    )
    streams_cached_max: Count = setting(20_000, "Idle streams kept in memory.")
    garbage_grace_s: Annotated[float, Meta(ge=0, le=31_536_000)] = setting(
        86_400.0, "Age at which an object that nothing refers to is removed."
    )
    merge_packs: Annotated[int, Meta(ge=2)] = setting(
        8, "Packs of similar size that are merged into one."
    )

    def check(self) -> None:
        """Refuse limits in the wrong order, and half a key."""
        if self.hot_bytes_soft > self.hot_bytes_hard:
            raise ValueError("hot_bytes_soft must not exceed hot_bytes_hard")
        if bool(self.s3_access_key_id) != bool(self.s3_secret_access_key):
            missing = "s3_secret_access_key" if self.s3_access_key_id else "s3_access_key_id"
            raise ValueError(f"an S3 access key needs its id and its secret; {missing} is not set")
        if self.s3_session_token and not self.s3_access_key_id:
            raise ValueError("s3_session_token needs s3_access_key_id, which is not set")


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
    storage: StorageSettings = field(default_factory=StorageSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    proxy: ProxySettings = field(default_factory=ProxySettings)
    log: LogSettings = field(default_factory=LogSettings)
