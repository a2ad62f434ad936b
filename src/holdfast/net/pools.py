"""Many small pools of connections instead of a large one.

httpcore goes through all connections and waiting requests of a pool for every request, so a call
costs more the more of them are under way. A pool here has a few, and a call takes one with room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from holdfast.net.connections import Pool

POOL_CONNECTIONS: Final = 8
# Pools without a call that are kept, for the connections they have.
IDLE_POOLS_MAX: Final = 8

MakePool = Callable[[int], Pool]


class _Part:
    """One of the pools, and how many calls it has under way."""

    __slots__ = ("calls", "pool", "size")

    def __init__(self, pool: Pool, size: int) -> None:
        self.pool = pool
        self.size = size
        self.calls = 0


class Pools:
    """Pools with `connections_max` connections together; `make` makes one of a size."""

    def __init__(self, connections_max: int, make: MakePool) -> None:
        self._make = make
        self._left = connections_max
        self._parts: list[_Part] = []
        # Those with room; the last one is taken, so that connections are used again.
        self._roomy: list[_Part] = []
        self._idle = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Pool]:
        """A pool for one call. If none has room, the call waits in it for a connection."""
        part = self._taken()
        try:
            yield part.pool
        finally:
            await self._given_back(part)

    async def _given_back(self, part: _Part) -> None:
        part.calls -= 1
        if part.calls == part.size - 1:
            self._roomy.append(part)
        if part.calls:
            return
        self._idle += 1
        if self._idle > IDLE_POOLS_MAX:
            self._idle -= 1
            self._left += part.size
            self._parts.remove(part)
            self._roomy.remove(part)
            await part.pool.aclose()

    def _taken(self) -> _Part:
        if not self._roomy:
            if not self._left:
                part = min(self._parts, key=lambda each: each.calls)
                part.calls += 1
                return part
            size = min(POOL_CONNECTIONS, self._left)
            self._left -= size
            self._idle += 1
            self._parts.append(_Part(self._make(size), size))
            self._roomy.append(self._parts[-1])
        part = self._roomy[-1]
        if not part.calls:
            self._idle -= 1
        part.calls += 1
        if part.calls == part.size:
            self._roomy.pop()
        return part

    async def aclose(self) -> None:
        """Close every connection; calls under way fail."""
        for part in self._parts:
            await part.pool.aclose()
