"""The storage of a server, for operators and jobs: packs, flushes, swaps, pins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from holdfast.client.calls import Calls
from holdfast.client.json_answers import decode, lines
from holdfast.client.types import StoreInfo
from holdfast.client.urls import below
from holdfast.format.packs import PackExtent, PackInfo

_encode = msgspec.json.Encoder().encode


class Storage:
    """What is behind the streams of a server; `NotFoundError` if it keeps all in memory."""

    def __init__(self, calls: Calls, url: str) -> None:
        self._calls = calls
        self._url = url

    def __repr__(self) -> str:
        return f"Storage({self._url!r})"

    async def store(self) -> StoreInfo:
        """Where the object store is, its id, and up to where everything is in packs."""
        return decode((await self._calls.request("GET", self._at("store"))).body, StoreInfo)

    async def packs(self) -> AsyncIterator[PackInfo]:
        """Every pack in use, in the order of the log."""
        async for found in lines(self._calls, self._at("packs"), {}, PackInfo):
            yield found

    async def extents(self, pack: str) -> AsyncIterator[PackExtent]:
        """Every extent in use of a pack; NotFoundError if the pack is not in use any more."""
        url = self._at("packs", "extents")
        async for found in lines(self._calls, url, {"pack": pack}, PackExtent):
            yield found

    async def pack_data(self, pack: str, at: int, size: int) -> bytes:
        """At most `size` bytes (16 MiB) of a pack from byte `at` on, through the server."""
        params = {"pack": pack, "at": str(at), "size": str(size)}
        answer = await self._calls.request("GET", self._at("packs", "data"), params=params)
        return answer.body

    async def flush(self) -> None:
        """Flush what is durable now; returns once it is in packs."""
        await self._calls.request("POST", self._at("flush"))

    async def swap_packs(self, add: Sequence[str], remove: Sequence[str]) -> None:
        """Put packs into use in place of others; SwapRefusedError if that cannot be, any more.

        Not repeated by itself: if the answer was lost, see what is in use.
        """
        asked = {"add": list(add), "remove": list(remove)}
        await self._order("swap-packs", asked, repeatable=False)

    async def pin_packs(self, name: str, ttl_s: float) -> None:
        """Keep the objects of everything in use now, for so many seconds; 0 lets go."""
        await self._order("pin-packs", {"name": name, "ttl": ttl_s}, repeatable=True)

    async def collect_garbage(self) -> None:
        """Remove the objects that are due now."""
        await self._calls.request("POST", self._at("collect-garbage"))

    async def stats(self) -> dict[str, Any]:
        """How much is hot and cold, and whether the flush keeps up."""
        answer = await self._calls.request("GET", self._at("hot-cold-stats"))
        return decode(answer.body, dict[str, Any])

    async def _order(self, name: str, asked: dict[str, Any], *, repeatable: bool) -> None:
        await self._calls.request(
            "POST",
            self._at(name),
            headers={"Content-Type": "application/json"},
            body=_encode(asked),
            repeatable=repeatable,
        )

    def _at(self, *path: str) -> str:
        return below(self._url, "cluster", *path)
