"""The gate that every request passes: authentication, rate limits and scopes.

Order: the client is identified, its rate is checked, then its token's scopes, then the rate of the
bucket. So a bucket's rate cannot be used up without permission to use the bucket, and trying tokens
at random is slowed down.

Rate limits are token buckets that keep one number for each key: the time at which its allowance
will be full again. A key whose time is past needs no entry, so the table drops those first.
"""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

from holdfast.errors import ForbiddenError, RateLimitedError, UnauthorizedError
from holdfast.http.access.scopes import ALL_BUCKETS, Identity, Need, Scope
from holdfast.http.access.tokens import check_expiry
from holdfast.settings import parse_listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.http.access.sources import CredentialSources
    from holdfast.http.access.tokens import Authenticator
    from holdfast.http.app import App
    from holdfast.http.exchange import Request
    from holdfast.settings import Settings

KEYS_MAX: Final = 16_384
# The part of a full table that is kept when it is emptied.
_KEPT_OF_FULL: Final = 0.75
_ADDRESSES_CACHED: Final = 4096
# Never limited, because load balancers decide by them whether the server is alive.
HEALTH_PATHS: Final = frozenset({b"/healthz", b"/readyz/local", b"/readyz/cluster"})
_log = logging.getLogger(__name__)


class RateLimit:
    """A limit on each of many keys: clients or buckets."""

    def __init__(self, rate: float, burst: float = 0, keys_max: int = KEYS_MAX) -> None:
        assert rate > 0
        self.rate = rate
        self._interval_s = 1 / rate
        self._slack_s = max(1.0, burst or rate) / rate
        self._keys_max = keys_max
        # Key → when its allowance will be full again.
        self._full_at_s: dict[str, float] = {}

    def take(self, key: str, now_s: float) -> float:
        """Take one request from the key's allowance; returns the seconds to wait, 0 if allowed."""
        full_at_s = max(self._full_at_s.get(key, now_s), now_s) + self._interval_s
        wait_s = full_at_s - now_s - self._slack_s
        # Less than a nanosecond is a rounding error.
        if wait_s > 1e-9:
            return wait_s
        if key not in self._full_at_s and len(self._full_at_s) >= self._keys_max:
            self._make_room()
        self._full_at_s[key] = full_at_s
        return 0.0

    def wait_s(self, key: str, now_s: float) -> float:
        """The seconds to wait for the next request of the key; takes nothing."""
        return self._full_at_s.get(key, now_s) + self._interval_s - now_s - self._slack_s

    def __len__(self) -> int:
        return len(self._full_at_s)

    def _make_room(self) -> None:
        """Drop the keys whose allowance is full, or closest to it."""
        latest = sorted(self._full_at_s.items(), key=lambda each: each[1])
        kept = int(self._keys_max * _KEPT_OF_FULL)
        self._full_at_s = dict(latest[len(latest) - kept :])


def retry_after_s(wait_s: float) -> int:
    """The wait in whole seconds, at least one, for `Retry-After`."""
    return max(1, math.ceil(wait_s))


@lru_cache(_ADDRESSES_CACHED)
def client_of(peer: str) -> str:
    """The key of an address: itself, or for IPv6 its /64, since one client may have all of that.

    Names of tokens contain no blanks, so none is equal to such a key.
    """
    if ":" not in peer:
        return f"address {peer}"
    try:
        address = IPv6Address(peer.partition("%")[0])
    except ValueError:
        return f"address {peer}"
    if address.ipv4_mapped is not None:
        return f"address {address.ipv4_mapped}"
    return f"address {IPv6Address(int(address) >> 64 << 64)}/64"


class Gate:
    """Admits requests. Without `sources` there is no access control, only rate limits."""

    def __init__(
        self,
        clock: Clock,
        sources: CredentialSources | None = None,
        client_limit: RateLimit | None = None,
        bucket_limit: RateLimit | None = None,
    ) -> None:
        self._clock = clock
        self._sources = sources
        self._client_limit = client_limit
        self._bucket_limit = bucket_limit
        self._authentication: Authenticator | None = None
        self._known: dict[bytes | None, Identity] = {}
        if sources is not None:
            self._authentication = sources.authentication
            self._known = sources.authentication.known

    async def start(self) -> None:
        """Fetch keys and watch files; call before the first request, in the event loop."""
        if self._sources is not None:
            await self._sources.start()

    async def stop(self) -> None:
        if self._sources is not None:
            await self._sources.stop()

    def admit(
        self,
        request: Request,
        need: Need,
        bucket: str,
        stream_id: str,
        *,
        is_prefix: bool = False,
        somewhere: bool = False,
    ) -> Identity | None:
        """Admit a request and return its identity; None if the route needs none.

        An empty bucket means the server, an empty stream the bucket itself; with `is_prefix` the
        request is about all streams whose id starts with `stream_id`, and with `somewhere` a
        permission for any stream will do. Raises UnauthorizedError, ForbiddenError or
        RateLimitedError.
        """
        identity = None
        if need and self._authentication is not None:
            identity = self._known.get(request.headers.get(b"authorization"))
            if identity is None:
                identity = self._identify(request)
            elif identity.expires_at_s is not None:
                check_expiry(identity, self._clock.now_ms() / 1000)
        if self._client_limit is not None:
            self._limit_client(self._client_limit, request, need, identity)
        if (
            identity is not None
            and identity.everywhere < need
            and identity.whole_buckets.get(bucket, 0) < need
            and not (somewhere and identity.allows_somewhere(need))
        ):
            check_scope(identity, need, bucket, stream_id, is_prefix=is_prefix)
        # Requests that need no permission must not use up a bucket's rate.
        if self._bucket_limit is not None and bucket and need:
            self._take(self._bucket_limit, bucket, "for one bucket")
        return identity

    def check(
        self,
        request: Request,
        need: Need,
        bucket: str,
        stream_id: str,
        *,
        is_prefix: bool = False,
    ) -> Identity:
        """Check again a request that was admitted; raises if it would not be now."""
        identity = self.identify(request)
        check_scope(identity, need, bucket, stream_id, is_prefix=is_prefix)
        return identity

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this whenever tokens or keys have changed."""
        if self._authentication is not None:
            self._authentication.on_change = call

    @property
    def knows_tokens(self) -> bool:
        """Whether access control is on."""
        return self._authentication is not None

    def identify(self, request: Request) -> Identity:
        """The identity of a request to a route that needs none; raises UnauthorizedError."""
        assert self._authentication is not None, "access control is on"
        authorization, now_s = request.headers.get(b"authorization"), self._clock.now_ms() / 1000
        identity = self._known.get(authorization)
        if identity is None:
            return self._authentication.identify(authorization, now_s)
        check_expiry(identity, now_s)
        return identity

    def _identify(self, request: Request) -> Identity:
        """Check a token that was not seen lately; clients that send bad ones are rate-limited."""
        assert self._authentication is not None
        limit, address = self._client_limit, client_of(request.peer)
        if limit is not None:
            wait_s = limit.wait_s(address, self._clock.monotonic_s())
            if wait_s > 1e-9:
                raise _too_many(limit, "from one client", wait_s)
        try:
            return self._authentication.identify(
                request.headers.get(b"authorization"), self._clock.now_ms() / 1000
            )
        except UnauthorizedError:
            if limit is not None:
                self._take(limit, address, "from one client")
            raise

    def _limit_client(
        self, limit: RateLimit, request: Request, need: Need, identity: Identity | None
    ) -> None:
        if identity is not None:
            self._take(limit, identity.name, "from one client")
        elif need or request.path not in HEALTH_PATHS:
            self._take(limit, client_of(request.peer), "from one client")

    def _take(self, limit: RateLimit, key: str, whose: str) -> None:
        wait_s = limit.take(key, self._clock.monotonic_s())
        if wait_s > 0:
            raise _too_many(limit, whose, wait_s)


def _too_many(limit: RateLimit, whose: str, wait_s: float) -> RateLimitedError:
    return RateLimitedError(
        f"Too many requests: at most {limit.rate:g} a second {whose}.", retry_after_s(wait_s)
    )


def check_scope(
    identity: Identity, need: Need, bucket: str, stream_id: str, *, is_prefix: bool = False
) -> None:
    """Raise ForbiddenError, naming the scope that is needed, unless the identity has it."""
    if identity.allows(need, bucket, stream_id, is_prefix=is_prefix):
        return
    stream = stream_id if stream_id or is_prefix else None
    wanted = Scope(need, bucket or ALL_BUCKETS, stream, is_prefix)
    raise ForbiddenError(
        f"The token of {identity.name!r} does not allow this; it needs the scope {wanted}."
    )


def open_gate(settings: Settings, clock: Clock) -> Gate | None:
    """The gate of a server; None without access control and rate limits, which then cost nothing.

    Raises SettingsError if tokens or keys cannot be used.
    """
    access, limits = settings.access, settings.limits
    if not (access.is_on or limits.client_rate or limits.bucket_rate):
        return None
    sources = None
    if access.is_on:
        # Not at the top, because the JWT and HTTP client libraries take a while to load.
        from holdfast.http.access.sources import CredentialSources  # noqa: PLC0415

        sources = CredentialSources(access, clock)
    return Gate(
        clock,
        sources,
        _limit(limits.client_rate, limits.client_burst),
        _limit(limits.bucket_rate, limits.bucket_burst),
    )


def _limit(rate: int, burst: int) -> RateLimit | None:
    return RateLimit(rate, burst) if rate else None


def warn_if_open(settings: Settings) -> bool:
    """Log a warning if the server is open to the network; returns whether it is."""
    host, _ = parse_listen(settings.server.listen)
    if settings.access.is_on or _is_loopback(host):
        return False
    _log.warning(
        "\n"
        "  *************************************************************************\n"
        "  *  THIS SERVER IS OPEN: everybody who can reach %s\n"
        "  *  can read, write and delete every stream. There is no access control.\n"
        "  *\n"
        "  *  Listen on 127.0.0.1, or hand out tokens:\n"
        "  *    holdfast token create --name admin --scope 'admin:*' --file tokens.toml\n"
        "  *    holdfast serve --access-tokens-file tokens.toml\n"
        "  *  See docs/security.md.\n"
        "  *************************************************************************",
        settings.server.listen,
    )
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def admit_to_packs(app: App, request: Request) -> None:
    """Raise unless the request may read packs, which hold the bytes of all buckets.

    With access control on, the route's scope has decided already. Otherwise the mount decides,
    whose streams are private even then.
    """
    if app.mount is not None and not app.settings.access.is_on:
        request.identity = app.mount.admit_to_packs(app, request)
