"""A gate as the settings want it, and a warning where they want none."""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING

from holdfast.http.access.gate import Gate
from holdfast.http.access.rate_limits import RateLimit
from holdfast.settings import parse_listen

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.settings import Settings

_log = logging.getLogger(__name__)


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
        from holdfast.http.access.sources import Sources  # noqa: PLC0415

        sources = Sources(access, clock)
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
