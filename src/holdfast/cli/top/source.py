"""Asks a server for samples, and remembers what it does not have."""

from __future__ import annotations

from typing import TypeVar

from holdfast.cli.top.exposition import parse_exposition
from holdfast.cli.top.figures import Figures
from holdfast.cli.top.measure import measure
from holdfast.cli.top.sample import Sample, ServerStatus, StorageStats, decode_lenient
from holdfast.client import Client
from holdfast.client.failures import is_missing
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutboundError

__all__ = ["Source"]

_Answer = TypeVar("_Answer")


class Source:
    """One server, sample by sample."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._last: Sample | None = None
        self._unreachable_since_ms: int | None = None
        # Asking again and again would show up as errors in the very figures.
        self._absent: set[str] = set()

    @property
    def url(self) -> str:
        """The server's address."""
        return self._client.url

    async def begin(self) -> Figures:
        """The first sample, without rates; raises if there are no metrics to be had."""
        try:
            return await self._next()
        except HoldfastError as error:
            if is_missing(error):
                raise HoldfastError(
                    f"{self.url} has no /metrics, and so nothing that could be shown."
                ) from None
            raise

    async def next(self) -> Figures:
        """The figures since the last sample; or that, and since when, there is no answer."""
        try:
            figures = await self._next()
        except HoldfastError as error:
            now_ms = self._clock.now_ms()
            if self._unreachable_since_ms is None:
                self._unreachable_since_ms = now_ms
            # Whoever answers next may be another version.
            self._absent.clear()
            return Figures(
                at_ms=now_ms,
                url=self.url,
                reachable=False,
                unreachable_since_ms=self._unreachable_since_ms,
                error=" ".join(error.message.split()),
            )
        self._unreachable_since_ms = None
        return figures

    async def _next(self) -> Figures:
        # One after the other, over one connection: three would show up in the figures.
        page = await self._client.request("GET", "/metrics")
        at_s, at_ms = self._clock.monotonic_s(), self._clock.now_ms()
        metrics = parse_exposition(page.body)
        status = await self._optional("/cluster/status", ServerStatus)
        storage = await self._optional("/cluster/hot-cold-stats", StorageStats)
        sample = Sample(at_ms, at_s, metrics, status, storage)
        before, self._last = self._last, sample
        return measure(self.url, before, sample)

    async def _optional(self, path: str, kind: type[_Answer]) -> _Answer | None:
        """What is at a path that a server need not have, or need not show to us."""
        if path in self._absent:
            return None
        try:
            answer = await self._client.request("GET", path)
        except OutboundError:
            raise
        except HoldfastError as error:
            if is_missing(error) or (error.status < 500 and not error.retryable):
                self._absent.add(path)
            return None
        decoded = decode_lenient(answer.body, kind)
        if decoded is None:
            self._absent.add(path)
        return decoded
