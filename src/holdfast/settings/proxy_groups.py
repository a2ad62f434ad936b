"""Settings of the proxy; see docs/proxy.md."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from holdfast.settings.declare import Count, CountOrNone, Seconds, setting


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The proxy under `/v1/proxy`: off without a secret, and of no use without an allowlist.

    [proxy.md](proxy.md) says more.
    """

    prefix: ClassVar[str] = "proxy_"

    secret: tuple[str, ...] = setting(
        (),
        "Secret of the proxy, at least 32 bytes; without one `/v1/proxy` is 404. Several, for "
        "rotation: all are accepted, the first one signs. As a flag or variable, separated by "
        "commas.",
        secret=True,
    )
    allowlist: tuple[str, ...] = setting(
        (),
        "Upstreams that may be called: patterns `[SCHEME://]HOST[:PORT][/PATH]` such as "
        "`https://api.openai.com`, `https://*.example.com/v1/*` or `http://127.0.0.1:*`, `https` "
        "unless they say. Empty: none. As a flag or variable, separated by commas.",
    )
    url_ttl_s: Seconds = setting(86_400.0, "How long a signed URL is good, unless a request says.")
    url_ttl_max_s: Seconds = setting(
        604_800.0, "Longest time a request may ask for; what is longer is cut to this."
    )
    stream_ttl_s: CountOrNone = setting(
        0, "Idle time after which a proxy stream is removed. 0: never."
    )
    header_timeout_s: Seconds = setting(
        60.0, "Time for an upstream's response to begin; then the answer is 504."
    )
    inactivity_timeout_s: Seconds = setting(
        600.0, "Longest silence within an upstream's response; then it ends with an Error frame."
    )
    request_bytes_max: Count = setting(
        33_554_432, "Bytes of a request's body to an upstream; more is 413."
    )
    response_bytes_max: Count = setting(
        268_435_456, "Bytes of an upstream's response; more ends it with an Error frame."
    )
    upstreams_max: Annotated[int, Meta(ge=1, le=100_000)] = setting(
        10_000, "Responses of upstreams under way at one time; more are answered with 503."
    )
    client_upstreams_max: Count = setting(
        1_000, "The same for one client: a token's name, or an address."
    )
