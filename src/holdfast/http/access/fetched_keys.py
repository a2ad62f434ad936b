"""Keys of JWTs from a URL: fetched at start, at an interval, and when a token names a new one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, OutboundError
from holdfast.http.access.jwks import Keys, parse_jwks

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.net.outbound import Outbound

_log = logging.getLogger(__name__)
FETCH_TIMEOUT_S: Final = 5.0
JWKS_BYTES_MAX: Final = 1_048_576
# The shortest time between two fetches, whatever tokens name: a stranger's must not make us call.
PAUSE_S: Final = 10.0


class FetchedKeys:
    """The keys behind a URL. When a fetch fails, the keys of the last one stay."""

    def __init__(
        self,
        url: str,
        outbound: Outbound,
        clock: Clock,
        *,
        refresh_s: float,
        on_change: Callable[[Keys], None],
    ) -> None:
        self._url = url
        self._outbound = outbound
        self._clock = clock
        self._refresh_s = refresh_s
        self._on_change = on_change
        self._keys: Keys = ()
        self._fetched_s = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Fetch once, for as long as that may take, and go on in the background."""
        await self._fetch()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Fetch no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._outbound.aclose()

    def ask(self) -> None:
        """A token names a key that is not there: perhaps it is new."""
        if self._clock.monotonic_s() - self._fetched_s >= PAUSE_S:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            # A failure is repeated sooner than a success.
            pause_s = self._refresh_s if self._keys else min(self._refresh_s, PAUSE_S)
            timer = self._clock.call_later(pause_s, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            await self._fetch()

    async def _fetch(self) -> None:
        self._fetched_s = self._clock.monotonic_s()
        try:
            keys = await self._get()
        except (HoldfastError, ValueError) as error:
            _log.error(
                "the keys of access.jwks_url could not be fetched, %s: %s",
                "the last ones still hold" if self._keys else "so that no such JWT is taken",
                error,
            )
            return
        except Exception:  # noqa: BLE001 (a defect must not end the renewal of keys)
            _log.exception("the keys of access.jwks_url could not be fetched")
            return
        if keys != self._keys:
            self._keys = keys
            self._on_change(keys)

    async def _get(self) -> Keys:
        response = await self._outbound.request(
            "GET",
            self._url,
            {"Accept": "application/jwk-set+json, application/json"},
            timeout_s=FETCH_TIMEOUT_S,
            bytes_max=JWKS_BYTES_MAX,
        )
        if response.status != 200:
            raise OutboundError(f"The answer has status {response.status}.")
        return parse_jwks(response.body)
