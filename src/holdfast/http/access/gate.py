"""Rate limits: so many requests a second, and so many at once after a pause.

Token buckets in their shortest form: for each key one number, the time at which its allowance will
be whole again. A key whose time is past is as good as forgotten, so the table drops those first.
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
    from holdfast.clock import Clock
    from holdfast.http.access.sources import CredentialSources
    from holdfast.http.access.tokens import Authenticator
    from holdfast.http.app import App
    from holdfast.http.exchange import Request
    from holdfast.settings import Settings

KEYS_MAX: Final = 16_384
# How far a full table is emptied, so that the work of it is spread over many requests.
_KEPT_OF_FULL: Final = 0.75
_ADDRESSES_CACHED: Final = 4096
# Never limited: a server that its load balancer takes for dead is no use to anybody.
HEALTH_PATHS: Final = frozenset({b"/healthz", b"/readyz/local", b"/readyz/cluster"})
_log = logging.getLogger(__name__)


class RateLimit:
    """A limit on each of many keys: clients, or buckets."""

    def __init__(self, rate: float, burst: float = 0, keys_max: int = KEYS_MAX) -> None:
        assert rate > 0
        self.rate = rate
        self._interval_s = 1 / rate
        self._slack_s = max(1.0, burst or rate) / rate
        self._keys_max = keys_max
        # Key → when all of its allowance is back.
        self._whole_at_s: dict[str, float] = {}

    def take(self, key: str, now_s: float) -> float:
        """Take one request of the key's allowance; the seconds to wait if there is none, else 0."""
        whole_at_s = max(self._whole_at_s.get(key, now_s), now_s) + self._interval_s
        wait_s = whole_at_s - now_s - self._slack_s
        # A billionth of a second is no wait, but what is left of sums that do not come out even.
        if wait_s > 1e-9:
            return wait_s
        if key not in self._whole_at_s and len(self._whole_at_s) >= self._keys_max:
            self._make_room()
        self._whole_at_s[key] = whole_at_s
        return 0.0

    def wait_s(self, key: str, now_s: float) -> float:
        """The seconds to wait for the next request of the key, 0 if it need not; takes nothing."""
        return self._whole_at_s.get(key, now_s) + self._interval_s - now_s - self._slack_s

    def __len__(self) -> int:
        return len(self._whole_at_s)

    def _make_room(self) -> None:
        """Forget those that are whole again, or are nearest to it."""
        latest = sorted(self._whole_at_s.items(), key=lambda each: each[1])
        kept = int(self._keys_max * _KEPT_OF_FULL)
        self._whole_at_s = dict(latest[len(latest) - kept :])


def retry_after_s(wait_s: float) -> int:
    """The wait as `Retry-After` says it: in whole seconds, at least one."""
    return max(1, math.ceil(wait_s))


@lru_cache(_ADDRESSES_CACHED)
def client_of(peer: str) -> str:
    """What an address counts as: itself, or for IPv6 its /64, all of which one client may use.

    No token has such a name: they hold no blanks.
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
    """Admits requests. Without `sources` everybody may do everything, as often as is allowed."""

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
        """Stop what `start` has started."""
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
    ) -> Identity | None:
        """Let a request in, and say who it is from; None if nobody has to say who they are.

        No bucket is the server, no stream the bucket itself; with `is_prefix` the request is about
        all streams whose id starts with `stream_id`. Raises UnauthorizedError, ForbiddenError or
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
        ):
            check_scope(identity, need, bucket, stream_id, is_prefix=is_prefix)
        # Who does not have to say who they are has no leave to use it up either.
        if self._bucket_limit is not None and bucket and need:
            self._take(self._bucket_limit, bucket, "for one bucket")
        return identity

    @property
    def knows_tokens(self) -> bool:
        """Whether there is access control at all."""
        return self._authentication is not None

    def identify(self, request: Request) -> Identity:
        """Who a request is from that was let in without having to say so; raises if nobody."""
        assert self._authentication is not None, "asked only where there are tokens"
        authorization, now_s = request.headers.get(b"authorization"), self._clock.now_ms() / 1000
        identity = self._known.get(authorization)
        if identity is None:
            return self._authentication.identify(authorization, now_s)
        check_expiry(identity, now_s)
        return identity

    def _identify(self, request: Request) -> Identity:
        """A token that was not seen lately; who shows bad ones too often has to wait."""
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
    """Raise, with the scope that would do, unless whoever it is may do this."""
    if identity.allows(need, bucket, stream_id, is_prefix=is_prefix):
        return
    stream = stream_id if stream_id or is_prefix else None
    wanted = Scope(need, bucket or ALL_BUCKETS, stream, is_prefix)
    raise ForbiddenError(
        f"The token of {identity.name!r} does not allow this; it needs the scope {wanted}."
    )


def open_gate(settings: Settings, clock: Clock) -> Gate | None:
    """The gate of a server; None if everybody may do everything, which then costs nothing.

    Raises SettingsError if tokens or keys cannot be used.
    """
    access, limits = settings.access, settings.limits
    if not (access.is_on or limits.client_rate or limits.bucket_rate):
        return None
    sources = None
    if access.is_on:
        # Only here: the libraries for JWTs and for calls take a while to load.
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
    """Say loudly if anybody on the network can read and delete everything; whether that is so."""
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
