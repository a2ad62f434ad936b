"""Opens the proxy as the settings say: its routes and service, or nothing but a 404."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import ForbiddenError, ProxyNotFoundError, SettingsError
from holdfast.protocol.names import PROXY_BUCKET, PROXY_PATH
from holdfast.settings.groups import SECRET_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.http.access.scopes import Identity
    from holdfast.http.app import App
    from holdfast.http.exchange import Request
    from holdfast.http.mount import Mount
    from holdfast.http.routes import Match, Router
    from holdfast.settings import ProxySettings, Settings

_log = logging.getLogger(__name__)
_CHARACTERS_MIN: Final = 8
_OFF: Final = "The proxy is off. It is turned on by a secret: HOLDFAST_PROXY_SECRET."


def open_proxy(shard: Shard, settings: Settings, clock: Clock) -> Mount:
    """The proxy of a server; raises SettingsError if it cannot work with these settings."""
    if not settings.proxy.secret:
        return ProxyOff(shard, settings.proxy)
    if 0 < settings.limits.producer_idle_s <= settings.proxy.inactivity_timeout_s:
        # A response is a producer: its stream must know it as long as the response may go on.
        raise SettingsError("producer_idle must be longer than proxy_inactivity_timeout.")
    # Not at the top, because the HTTP client takes a while to load.
    from holdfast.net.targets import Allowlist  # noqa: PLC0415
    from holdfast.proxy.access import UrlSigner  # noqa: PLC0415
    from holdfast.proxy.routes import ProxyRoutes  # noqa: PLC0415
    from holdfast.proxy.service import ProxyService  # noqa: PLC0415
    from holdfast.proxy.upstreams import Upstreams  # noqa: PLC0415

    _warn(settings.proxy)
    upstreams = Upstreams(Allowlist(settings.proxy.allowlist), settings.proxy)
    service = ProxyService(shard, clock, settings.proxy, upstreams)
    return ProxyRoutes(service, UrlSigner(settings.proxy.secret, clock), settings.proxy, clock)


def _warn(settings: ProxySettings) -> None:
    for number, secret in enumerate(settings.secret, 1):
        if len(secret.encode()) < SECRET_BYTES_MIN or len(set(secret)) < _CHARACTERS_MIN:
            _log.warning(
                "secret %d of the proxy is weak: a guessed secret opens every proxy stream. "
                "Make one with `openssl rand -hex 32`",
                number,
            )
    if not settings.allowlist:
        _log.warning("the proxy's allowlist is empty: every upstream is refused")


class ProxyOff:
    """Takes the proxy's place while it has no secret.

    Streams that the proxy recorded earlier stay private.
    """

    prefixes: tuple[bytes, ...] = (PROXY_PATH,)
    forwarded_path = PROXY_PATH
    openapi: Path | None = None

    def __init__(self, shard: Shard, settings: ProxySettings) -> None:
        self._shard = shard
        self.forwarded_bytes_max = settings.request_bytes_max

    def admit_to_packs(self, _app: App, _request: Request) -> None:
        if PROXY_BUCKET in self._shard.state.buckets:
            raise ForbiddenError(
                "The packs hold streams of the proxy, which is off. Set its secret, or turn "
                "access control on."
            )

    def match(self, path: bytes, router: Router) -> Match | None:
        if path[len(PROXY_PATH) :][:1] in {b"", b"/"}:
            raise ProxyNotFoundError(_OFF)
        return None

    def check_reader(self, _app: App, _request: Request) -> Identity:
        raise ProxyNotFoundError(_OFF)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def metrics(self) -> Iterator[Metric]:
        return iter(())
