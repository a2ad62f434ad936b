"""All settings of a server: names, types, defaults and meanings.

These classes are the only list of settings. The TOML tables, the `HOLDFAST_*` variables, the flags
of `holdfast serve`, the output of `holdfast config` and `docs/settings.md` are derived from them: a
new setting is a field here and needs no change elsewhere.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_type_hints
from urllib.parse import urlsplit

from msgspec import Meta

from holdfast.protocol.names import clean_endpoint, clean_store
from holdfast.settings.options import Count, CountOrNone, Option, Seconds, option, options_of

# HMAC with SHA-256 is as strong as its key up to this length (RFC 7518, 3.2).
SECRET_BYTES_MIN = 32
_LOOPBACK_HOSTS = {"127.0.0.1", "::1", "localhost"}


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


def _clean_secret(text: str) -> str:
    if text and len(text.encode()) < SECRET_BYTES_MIN:
        raise ValueError(f"expected at least {SECRET_BYTES_MIN} bytes; try `openssl rand -hex 32`")
    return text


def _clean_jwks_url(text: str) -> str:
    """Accept `https`, or `http` to this machine: an attacker who alters the keys forges tokens."""
    if not text:
        return text
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:  # an invalid port
        host = None
    if not host or not re.fullmatch(r"https?://[^\s@#]+", text, re.ASCII):
        raise ValueError("expected https://HOST/PATH, without user and fragment")
    if url.scheme != "https" and host not in _LOOPBACK_HOSTS:
        raise ValueError("expected https; http is for 127.0.0.1, [::1] and localhost only")
    return text


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Address, data directory and durability of the server."""

    listen: str = option(
        "Address to listen on, `HOST:PORT` or `[IPV6]:PORT`. With port 0 the system chooses one.",
        "127.0.0.1:4437",
        clean=_clean_listen,
    )
    data_dir: Path = option(
        "Directory of the log. Only one server at a time can use it.", Path("data")
    )
    durability: Literal["fsync", "memory"] = option(
        "`fsync`: an append is on disk before it is acknowledged. "
        "`memory`: nothing is written to disk, and nothing survives a restart.",
        "fsync",
    )
    public_url: str = option(
        "URL that clients use, if it differs from the listening address (behind a reverse proxy): "
        "`https://host[/prefix]`. `Location` headers start with it.",
        "",
        clean=_clean_public_url,
    )
    stream_ttl: Literal["sliding", "fixed"] = option(
        "`sliding`: reads and writes renew a stream's TTL. `fixed`: the TTL counts from creation.",
        "sliding",
    )
    connections_max: Count = option(
        "Maximum number of open connections; further ones are answered with 503.", 10_000
    )
    # The whole exit has to fit in 10 s, and closing the log may take 1.5 s of them.
    shutdown_timeout_s: Annotated[float, Meta(gt=0, le=8.5)] = option(
        "How long a stopping server waits for requests in flight.", 8.0
    )
    cors_origin: str = option(
        "Value of `Access-Control-Allow-Origin`: `*` or one origin.", "*", clean=_clean_origin
    )


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS on the listener. Set both files or neither."""

    prefix: ClassVar[str] = "tls_"

    cert: str = option("PEM file with the certificate and its chain.", "")
    key: str = option("PEM file with the private key.", "")

    def check(self) -> None:
        """Refuse half a configuration, which would otherwise serve plain HTTP."""
        if bool(self.cert) != bool(self.key):
            missing = "key" if self.cert else "cert"
            raise ValueError(f"TLS needs both a certificate and a key; {missing} is not set")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits on one connection and one request."""

    header_bytes_max: Count = option(
        "Maximum size of request line and headers; larger ones are answered with 431.", 32_768
    )
    body_bytes_max: Count = option(
        "Maximum size of a request body; larger ones are answered with 413.", 8_388_608
    )
    bodies_held_bytes_max: Count = option(
        "Maximum size of all request bodies in memory that are incomplete or wait for their turn. "
        "Further ones are answered with 503.",
        268_435_456,
    )
    snapshot_bytes_max: Count = option(
        "Maximum size of a snapshot; larger ones are answered with 413.", 134_217_728
    )
    snapshot_timeout_s: Seconds = option("Time limit for publishing a whole snapshot.", 300.0)
    header_timeout_s: Seconds = option("Time limit for a request's headers to arrive.", 10.0)
    body_timeout_s: Seconds = option(
        "Longest pause within a request body, and how long one may arrive at less than "
        "`body_rate_min`; then it is answered with 408.",
        30.0,
    )
    body_rate_min: Count = option("Smallest rate of a request body, in bytes per second.", 1024)
    idle_timeout_s: Seconds = option("How long an idle keep-alive connection stays open.", 75.0)
    pipeline_max: Count = option(
        "Pipelined requests of one connection in progress. At the limit, the server stops reading "
        "from the connection.",
        64,
    )
    unsent_bytes_max: Count = option(
        "Bytes of responses that may wait for clients that do not read, over all connections. "
        "Beyond, long responses wait, and clients that read nothing for a second are disconnected.",
        268_435_456,
    )

    def check(self) -> None:
        """Raise ValueError unless the settings fit together."""
        if self.body_bytes_max > self.bodies_held_bytes_max:
            raise ValueError("body_bytes_max must not exceed bodies_held_bytes_max")


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Catch-up and live reads."""

    long_poll_timeout_s: Seconds = option("How long a long-poll waits for data.", 20.0)
    read_bytes_max: Count = option(
        "Maximum size of one catch-up response. A single message may exceed it.",
        1_048_576,
    )
    cache_scope: Literal["public", "private"] = option(
        "Whether shared caches (CDNs) may keep catch-up responses: the first word of their "
        "`Cache-Control`. Use `private` if streams are not for everyone.",
        "public",
    )
    sse_heartbeat_s: Seconds = option(
        "Silence on an SSE connection after which a comment line is sent.", 15.0
    )
    sse_lifetime_s: Seconds = option(
        "Age at which an SSE connection is closed, at an event boundary.", 60.0
    )
    live_readers_max: Count = option(
        "Maximum number of long-poll and SSE readers; further ones are answered with 503.", 100_000
    )


@dataclass(frozen=True, slots=True)
class WalSettings:
    """The write-ahead log in local files."""

    prefix: ClassVar[str] = "wal_"

    segment_bytes: Annotated[int, Meta(ge=4096)] = option(
        "Size at which a log segment is sealed and the next one started.", 33_554_432
    )
    batch_bytes_max: Count = option("Size at which a batch takes no more appends.", 4_194_304)
    pending_bytes_max: Count = option(
        "Bytes of appends that may wait for the disk; further appends are answered with 503.",
        134_217_728,
    )
    commit_timeout_s: Seconds = option(
        "How long a commit may take before its appends are answered with 503.", 10.0
    )
    zero_ahead_bytes: Annotated[int, Meta(ge=0)] = option(
        "How far a segment is filled with zeros ahead of the batches, which makes syncs faster.",
        1_048_576,
    )
    ballast_bytes: Annotated[int, Meta(ge=0)] = option(
        "Disk space that is reserved, and released when the disk is full. 0: none.", 16_777_216
    )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The object store that packs are in, and when bytes move there from the log.

    An empty S3 setting is taken from the standard `AWS_*` variables (profiles in `~/.aws` are not
    read). Google Cloud Storage takes `GOOGLE_APPLICATION_CREDENTIALS`, Azure
    `AZURE_STORAGE_ACCOUNT_NAME` with `AZURE_STORAGE_ACCOUNT_KEY` or `AZURE_STORAGE_SAS_KEY`.
    Instance roles work for all three.
    """

    store: str = option(
        "Object store for packs: `s3://bucket/prefix`, `gs://bucket/prefix`, "
        "`az://container/prefix`, or a directory. Empty: `objects` in the data directory.",
        "",
        clean=clean_store,
    )
    s3_endpoint: str = option(
        "Address of an S3 server other than AWS, `https://HOST[:PORT]`. "
        "Empty: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, or else AWS.",
        "",
        clean=clean_endpoint,
    )
    s3_region: str = option(
        "Region of the bucket. Empty: `AWS_REGION`, `AWS_DEFAULT_REGION`, or else us-east-1.", ""
    )
    s3_addressing: Literal["auto", "path", "virtual"] = option(
        "Where the bucket's name goes: `path` (`https://HOST/bucket`) or `virtual` "
        "(`https://bucket.HOST`). `auto` is virtual on AWS and path elsewhere.",
        "auto",
    )
    s3_access_key_id: str = option(
        "Access key. Empty: `AWS_ACCESS_KEY_ID`, a web identity, or the instance's role.", ""
    )
    s3_secret_access_key: str = option("Secret of the access key.", "", secret=True)
    s3_session_token: str = option(
        "Session token, if the access key is a temporary one.", "", secret=True
    )
    hot_bytes_soft: Count = option(
        "Size of the data not yet in packs at which a flush starts. Each record counts 156 bytes "
        "and each stream 700 bytes on top of its content.",
        100_663_296,
    )
    hot_bytes_hard: Count = option(
        "Size of the data not yet in packs and of appends that wait for the disk at which further "
        "appends are answered with 503. Half way from `hot_bytes_soft` on they are slowed down.",
        268_435_456,
    )
    flush_age_s: Seconds = option("Age at which data not yet in packs is flushed.", 600.0)
    block_cache_bytes: Annotated[int, Meta(ge=0)] = option(
        "Memory for blocks read from packs. 0: no cache.", 33_554_432
    )
    snapshot_cache_bytes: Annotated[int, Meta(ge=0)] = option(
        "Memory for the most recently used snapshots of up to 512 KiB.", 134_217_728
    )
    streams_cached_max: Count = option("Maximum number of idle streams kept in memory.", 20_000)
    garbage_grace_s: Annotated[float, Meta(ge=0, le=31_536_000)] = option(
        "Age at which an unreferenced object is removed.", 86_400.0
    )
    merge_packs: Annotated[int, Meta(ge=2)] = option(
        "Number of packs of similar size that are merged into one.", 8
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
class AccessSettings:
    """Access control. It is on as soon as at least one source of tokens or keys is set.

    The sources are `tokens_file`, `tokens`, `jwt_secret`, `jwks_file` and `jwks_url`; they can be
    combined. See [security.md](security.md).
    """

    prefix: ClassVar[str] = "access_"

    tokens_file: str = option(
        "TOML file with bearer tokens, as printed by `holdfast token create`. "
        "Changes take effect without a restart.",
        "",
    )
    tokens: tuple[str, ...] = option(
        "Bearer tokens without a file: `NAME SHA256 SCOPE …` each. "
        "In a flag or variable, separate them by commas.",
        (),
        secret=True,
    )
    jwt_secret: str = option(
        "Secret of JWTs signed with HS256, at least 32 bytes.",
        "",
        clean=_clean_secret,
        secret=True,
    )
    jwks_file: str = option(
        "JSON file with the public keys (JWKS) of JWTs signed with RS256 or EdDSA. "
        "Changes take effect without a restart.",
        "",
    )
    jwks_url: str = option(
        "`https` URL of a JWKS. It is fetched at start and then every `jwks_refresh`.",
        "",
        clean=_clean_jwks_url,
    )
    jwks_refresh_s: Annotated[float, Meta(ge=10, le=86_400)] = option(
        "Time between two fetches of `jwks_url`.", 300.0
    )
    audience: str = option(
        "Value that `aud` of a JWT must contain. Empty: JWTs with an `aud` are refused.", ""
    )
    issuer: str = option("Value that `iss` of a JWT must have. Empty: any.", "")
    leeway_s: Annotated[float, Meta(ge=0, le=600)] = option(
        "Clock difference between issuer and server to allow for `exp` and `nbf`.", 30.0
    )
    exp_required: bool = option("Whether a JWT without `exp` is refused.", True)

    @property
    def is_on(self) -> bool:
        """Whether requests need a token."""
        return bool(self.tokens_file or self.tokens or self.takes_jwts)

    @property
    def takes_jwts(self) -> bool:
        """Whether there is a source of keys for JWTs."""
        return bool(self.jwt_secret or self.jwks_file or self.jwks_url)

    def check(self) -> None:
        """Refuse claims that would never be checked because no JWT is accepted."""
        if (self.audience or self.issuer) and not self.takes_jwts:
            raise ValueError(
                "audience and issuer are about JWTs, for which there is no key; "
                "set jwt_secret, jwks_file or jwks_url"
            )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Rate limits per client, and limits per bucket and stream. 0 means no limit.

    A client is identified by its token's name or, without access control, by its address (for IPv6,
    its /64 network).
    """

    client_rate: CountOrNone = option(
        "Requests per second from one client; further ones are answered with 429.", 0
    )
    client_burst: CountOrNone = option(
        "Requests that one client may send at once after a pause. 0: as many as per second.", 0
    )
    bucket_rate: CountOrNone = option(
        "Requests per second for one bucket; further ones are answered with 429.", 0
    )
    bucket_burst: CountOrNone = option(
        "Requests for one bucket at once after a pause. 0: as many as per second.", 0
    )
    bucket_bytes_max: CountOrNone = option(
        "Bytes of messages and snapshots in one bucket; writes beyond are answered with 403 "
        "`quota_exceeded`.",
        0,
    )
    bucket_streams_max: CountOrNone = option(
        "Streams in one bucket; creating more is answered with 403 `quota_exceeded`.", 0
    )
    producers_max: CountOrNone = option(
        "Producers of one stream; an append with a further `Producer-Id` is answered with 403 "
        "`quota_exceeded`.",
        250_000,
    )
    producer_idle_s: Annotated[float, Meta(ge=0, le=31_536_000)] = option(
        "Time after its last append when a producer may be forgotten, if its stream has more than "
        "half of `producers_max`. 0: never.",
        604_800.0,
    )
    part_ttl_s: Annotated[float, Meta(ge=60, le=31_536_000)] = option(
        "Time after its last write when a part that no batch has published is deleted.",
        86_400.0,
    )


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Subscriptions: which webhooks may be called, and the limits of webhooks and pull-wake."""

    prefix: ClassVar[str] = "webhooks_"

    allow: tuple[str, ...] = option(
        "Webhook targets other than public `https` hosts: patterns `SCHEME://HOST[:PORT]` such as "
        "`http://127.0.0.1:*` or `https://*.internal.example`. "
        "In a flag or variable, separate them by commas.",
        (),
    )
    timeout_s: Seconds = option(
        "How long a webhook may take to respond; at most the subscription's lease.", 10.0
    )
    concurrent_max: Annotated[int, Meta(ge=1, le=256)] = option(
        "Maximum number of webhooks delivered at the same time; others wait.", 32
    )
    lease_s: Annotated[float, Meta(ge=1, le=600)] = option(
        "Default lease of a subscription: how long a worker may be silent.", 30.0
    )
    subscriptions_max: Count = option(
        "Maximum number of subscriptions; further ones are answered with 403 `quota_exceeded`.",
        1_000,
    )
    links_max: Count = option(
        "Streams that one request may link or acknowledge, given by name or matched by the pattern "
        "of a new subscription.",
        10_000,
    )
    wake_streams_max: Count = option(
        "Maximum number of streams listed in one wake, claim or page; streams with pending events "
        "come first.",
        1_000,
    )


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The proxy under `/v1/proxy`. It is off without a secret and refuses all upstreams by default.

    See [proxy.md](proxy.md).
    """

    prefix: ClassVar[str] = "proxy_"

    secret: tuple[str, ...] = option(
        "Secret of the proxy; without one `/v1/proxy` is 404. Use at least 32 bytes: the server "
        "warns about a shorter one. For rotation, set several: all are accepted, the first one "
        "signs. In a flag or variable, separate them by commas.",
        (),
        secret=True,
    )
    allowlist: tuple[str, ...] = option(
        "Upstreams that may be called: patterns `[SCHEME://]HOST[:PORT][/PATH]` such as "
        "`https://api.openai.com`, `https://*.example.com/v1/*` or `http://127.0.0.1:*`. The "
        "default scheme is `https`. Empty: none. In a flag or variable, separate them by commas.",
        (),
    )
    url_ttl_s: Seconds = option(
        "How long a signed URL is valid, unless the request says otherwise.", 86_400.0
    )
    url_ttl_max_s: Seconds = option(
        "Longest validity that a request may ask for; longer ones are cut to this.", 604_800.0
    )
    stream_ttl_s: CountOrNone = option(
        "Idle time after which a proxy stream is removed. 0: never.", 0
    )
    header_timeout_s: Seconds = option(
        "Time limit for an upstream's response to begin; then the response is 504.", 60.0
    )
    inactivity_timeout_s: Seconds = option(
        "Longest pause within an upstream's response; then it ends with an Error frame.", 600.0
    )
    request_bytes_max: Count = option(
        "Maximum size of a request body to an upstream; larger ones are answered with 413.",
        33_554_432,
    )
    response_bytes_max: Count = option(
        "Maximum size of an upstream's response; a larger one ends with an Error frame.",
        268_435_456,
    )
    upstreams_max: Annotated[int, Meta(ge=1, le=100_000)] = option(
        "Maximum number of upstream responses in progress; further requests are answered with 503.",
        10_000,
    )
    client_upstreams_max: Count = option(
        "The same for one client, identified by its token's name or its address.", 1_000
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The server's own log messages on stderr."""

    prefix: ClassVar[str] = "log_"

    level: Literal["debug", "info", "warning", "error"] = option(
        "Lowest level that is logged.", "info"
    )
    format: Literal["text", "json"] = option("Plain lines, or one JSON object per line.", "text")


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


@cache
def all_settings() -> tuple[Option, ...]:
    """Return every setting, in the order of the groups."""
    groups = get_type_hints(Settings).items()
    return tuple(
        each
        for table, group in groups
        for each in options_of(group, table, getattr(group, "prefix", ""))
    )
