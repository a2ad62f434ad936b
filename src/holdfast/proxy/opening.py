"""The proxy as the settings want it: routes and service, or nothing but a 404."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from holdfast.errors import ForbiddenError, ProxyNotFoundError
from holdfast.http.routes import PACKS_PATH, PROXY_PATH
from holdfast.protocol.names import PROXY_BUCKET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.http.mount import Mount
    from holdfast.http.routes import Match, Router
    from holdfast.settings import ProxySettings, Settings

_log = logging.getLogger(__name__)
# HMAC with SHA-256 is as strong as its key up to this length.
SECRET_BYTES_MIN: Final = 32
_CHARACTERS_MIN: Final = 8


def open_proxy(shard: Shard, settings: Settings, clock: Clock) -> Mount:
    """The proxy of a server; raises SettingsError if its allowlist cannot be used."""
    if not settings.proxy.secret:
        return ProxyOff(shard, guards_packs=not settings.access.is_on)
    # Only here: what calls other servers takes a while to load.
    from holdfast.net.allowlist import Allowlist  # noqa: PLC0415
    from holdfast.proxy.fetching import Upstreams  # noqa: PLC0415
    from holdfast.proxy.routes import ProxyRoutes  # noqa: PLC0415
    from holdfast.proxy.service import ProxyService  # noqa: PLC0415
    from holdfast.proxy.signing import Signer  # noqa: PLC0415

    _warn(settings.proxy)
    upstreams = Upstreams(Allowlist(settings.proxy.allowlist), settings.proxy)
    service = ProxyService(shard, clock, settings.proxy, upstreams)
    return ProxyRoutes(
        service,
        Signer(settings.proxy.secret, clock),
        settings.proxy,
        clock,
        guards_packs=not settings.access.is_on,
    )


def _warn(settings: ProxySettings) -> None:
    for number, secret in enumerate(settings.secret, 1):
        if len(secret.encode()) < SECRET_BYTES_MIN or len(set(secret)) < _CHARACTERS_MIN:
            _log.warning(
                "secret %d of the proxy is weak: whoever guesses it can read every proxy stream. "
                "Make one with `openssl rand -hex 32`",
                number,
            )
    if not settings.allowlist:
        _log.warning("the proxy's allowlist is empty: every upstream is refused")


class ProxyOff:
    """What is there without a secret: nothing, in so many words.

    What an earlier server has recorded does not become public by that.
    """

    prefixes: tuple[bytes, ...] = (PROXY_PATH, PACKS_PATH)

    def __init__(self, shard: Shard, *, guards_packs: bool) -> None:
        self._shard = shard
        self._guards_packs = guards_packs

    def place(self, path: bytes, router: Router) -> Match | None:
        """Raise for what would be the proxy's."""
        if path.startswith(PACKS_PATH):
            if self._guards_packs and PROXY_BUCKET in self._shard.state.buckets:
                raise ForbiddenError(
                    "The packs hold streams of the proxy, which is off. Set its secret, or turn "
                    "access control on."
                )
        elif path[len(PROXY_PATH) :][:1] in {b"", b"/"}:
            raise ProxyNotFoundError(
                "The proxy is off. It is turned on by a secret: HOLDFAST_PROXY_SECRET."
            )
        return None

    def start(self) -> None:
        """Nothing to take up."""

    def stop(self) -> None:
        """Nothing to end."""

    async def close(self) -> None:
        """Nothing to let go of."""

    def metrics(self) -> Iterator[Metric]:
        """Nothing to count."""
        return iter(())
