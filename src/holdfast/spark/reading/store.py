"""Where executors read packs: straight from the object store, or through the server.

A store is used if it can be reached and is the one that the server means; its mark says so.
Otherwise the server hands out the bytes. A store that was found is the whole process's; one that
was not is looked for again after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Final

from holdfast.client import Client
from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, NotFoundError, ObjectMissingError, StoreError
from holdfast.objects.marker import read_marker
from holdfast.objects.obstore_objects import PROBING, ObstoreObjects
from holdfast.objects.opening import open_store
from holdfast.objects.place import StorePlace
from holdfast.objects.store import ObjectStore, cut_short
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.extents import Ranged
from holdfast.spark.reading.source import Source

_PART_BYTES: Final = 8 * 1024 * 1024
# For so long nobody asks again for a store that could not be used: asking takes seconds.
_ABSENT_S: Final = 60.0
_found: dict[tuple[StorePlace, str], ObjectStore] = {}
_absent: dict[tuple[StorePlace, str], tuple[str, float]] = {}


def open_packs(source: Source, server: SparkClient) -> Ranged:
    """What the packs of a source are read from."""
    if source.via == "server":
        return ServerPacks(server, "")
    found = reachable_store(source.place, source.store_id, insist=source.via == "store")
    if not isinstance(found, str):
        return found
    if source.via == "store":
        raise StoreError(found)
    return ServerPacks(server, found)


def reachable_store(
    place: StorePlace, store_id: str, *, insist: bool = False, clock: Clock | None = None
) -> ObjectStore | str:
    """The store, or a sentence that says why it cannot be used.

    Who insists makes sure, even if it could not be used a moment ago.
    """
    key = place, store_id
    if key in _found:
        return _found[key]
    now_s = (clock or SystemClock()).monotonic_s()
    if key in _absent and not insist and now_s < _absent[key][1]:
        return _absent[key][0]
    opened = _open(place, store_id)
    if isinstance(opened, str):
        _absent[key] = opened, now_s + _ABSENT_S
    else:
        _found[key] = opened
    return opened


def _open(place: StorePlace, store_id: str) -> ObjectStore | str:
    try:
        store = open_store(place)
        probed = store.with_patience(PROBING) if isinstance(store, ObstoreObjects) else store
        owner = read_marker(probed)
    except ObjectMissingError:
        return f"The object store {place.url} is not there, or is not one of Holdfast's."
    except HoldfastError as error:
        return error.message
    if owner != store_id:
        return f"The object store {place.url} is another one than the server's."
    return store


class ServerPacks:
    """Packs whose bytes the server hands out."""

    def __init__(self, server: SparkClient, reason: str) -> None:
        self._server = server
        self._reason = reason

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """The bytes of each (at, size)."""
        try:
            return self._server.run(lambda client: _read(client, name, ranges))
        except NotFoundError as error:
            # Merged into another pack: who reads asks again where the rest is.
            raise ObjectMissingError(error.message) from None
        except HoldfastError as error:
            if self._reason:
                error.message = (
                    f"{self._reason} The server was asked for the packs instead: {error.message}"
                )
            raise


async def _read(client: Client, name: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
    parts = [
        [(at + done, min(_PART_BYTES, size - done)) for done in range(0, size, _PART_BYTES)]
        for at, size in ranges
    ]
    found = await asyncio.gather(
        *(client.storage.pack_data(name, at, size) for each in parts for at, size in each)
    )
    if any(len(data) != size for data, (_, size) in zip(found, chain(*parts), strict=True)):
        raise cut_short(client.url, name)
    rest = iter(found)
    return [memoryview(b"".join(next(rest) for _ in each)) for each in parts]
