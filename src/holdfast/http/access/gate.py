"""The gate that every request passes: who it is from, whether it may, and whether it is too many.

Order: the client is known, it does not ask too often, its token allows this, the bucket is not
asked for too often. So nobody uses up a bucket's allowance without leave to use the bucket, and who
tries tokens at random is slowed down as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import ForbiddenError, RateLimitedError, UnauthorizedError
from holdfast.http.access.authentication import check_expiry
from holdfast.http.access.rate_limits import RateLimit, client_of, retry_after_s
from holdfast.http.access.scopes import ALL_BUCKETS, Identity, Need, Scope

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.http.access.authentication import Authentication
    from holdfast.http.access.sources import Sources
    from holdfast.http.exchange import Request

# Never limited: a server that its load balancer takes for dead is no use to anybody.
HEALTH_PATHS: Final = frozenset({b"/healthz", b"/readyz/local", b"/readyz/cluster"})


class Gate:
    """Admits requests. Without `sources` everybody may do everything, as often as is allowed."""

    def __init__(
        self,
        clock: Clock,
        sources: Sources | None = None,
        client_limit: RateLimit | None = None,
        bucket_limit: RateLimit | None = None,
    ) -> None:
        self._clock = clock
        self._sources = sources
        self._client_limit = client_limit
        self._bucket_limit = bucket_limit
        self._authentication: Authentication | None = None
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
            identity = self._known.get(request.fields.get(b"authorization"))
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
        authorization, now_s = request.fields.get(b"authorization"), self._clock.now_ms() / 1000
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
                request.fields.get(b"authorization"), self._clock.now_ms() / 1000
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
