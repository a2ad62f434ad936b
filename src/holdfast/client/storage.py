"""A server's storage, for operators and jobs: packs, flushes, swaps, pins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from holdfast.client.calls import Calls
from holdfast.client.urls import below
from holdfast.format.packs import PackExtent, PackInfo

_encode = msgspec.json.Encoder().encode


class StoreInfo(msgspec.Struct, frozen=True):
    """A server's object store: its URL, its id, and the position up to which it has data."""

    store: str
    store_id: str
    flushed: str


class Storage:
    """The packs and the object store of a server; NotFoundError if it keeps all in memory."""

    def __init__(self, calls: Calls, url: str) -> None:
        self._calls = calls
        self._url = url

    def __repr__(self) -> str:
        return f"Storage({self._url!r})"

    async def store(self) -> StoreInfo:
        """The object store's URL and id, and the position up to which everything is in packs."""
        return await self._calls.fetch(self._at("store"), StoreInfo)

    async def packs(self) -> AsyncIterator[PackInfo]:
        """Every pack in use, in log order."""
        async for each in self._calls.lines(self._at("packs"), PackInfo):
            yield each

    async def extents(self, pack: str) -> AsyncIterator[PackExtent]:
        """Every extent in use of a pack; NotFoundError if the pack is no longer in use."""
        url = self._at("packs", "extents")
        async for each in self._calls.lines(url, PackExtent, {"pack": pack}):
            yield each

    async def pack_data(self, pack: str, at: int, size: int) -> bytes:
        """Up to `size` bytes (at most 16 MiB) of a pack from byte `at` on, through the server."""
        params = {"pack": pack, "at": str(at), "size": str(size)}
        response = await self._calls.request("GET", self._at("packs", "data"), params=params)
        return response.body

    async def flush(self) -> None:
        """Flush everything durable so far, and return once it is in packs."""
        await self._calls.request("POST", self._at("flush"))

    async def swap_packs(self, add: Sequence[str], remove: Sequence[str]) -> None:
        """Replace packs by others; SwapRefusedError if they are no longer in use.

        Never retried: if the response was lost, look at which packs are in use.
        """
        await self._post("swap-packs", {"add": list(add), "remove": list(remove)}, repeatable=False)

    async def pin_packs(self, name: str, ttl_s: float) -> None:
        """Keep the objects of all packs in use now for this many seconds; 0 removes the pin."""
        await self._post("pin-packs", {"name": name, "ttl": ttl_s}, repeatable=True)

    async def collect_garbage(self) -> None:
        """Remove the objects that are due for removal."""
        await self._calls.request("POST", self._at("collect-garbage"))

    async def stats(self) -> dict[str, Any]:
        """How much data is hot and cold, and whether flushing keeps up."""
        return await self._calls.fetch(self._at("hot-cold-stats"), dict[str, Any])

    async def _post(self, name: str, document: dict[str, Any], *, repeatable: bool) -> None:
        await self._calls.request(
            "POST",
            self._at(name),
            headers={"Content-Type": "application/json"},
            body=_encode(document),
            repeatable=repeatable,
        )

    def _at(self, *path: str) -> str:
        return below(self._url, "cluster", *path)
