"""Where executors read packs: straight from the object store, or through the server.

A store is used if it can be reached and is the one that the server means; its mark says so.
Otherwise the server hands out the bytes. What was found holds for the whole process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.client import Client
from holdfast.errors import HoldfastError, ObjectMissingError, StoreError
from holdfast.objects.marker import read_marker
from holdfast.objects.obstore_objects import PROBING, ObstoreObjects
from holdfast.objects.opening import open_store
from holdfast.objects.place import StorePlace
from holdfast.objects.store import ObjectStore
from holdfast.spark.connection import Waiting
from holdfast.spark.reading.extents import Ranged
from holdfast.spark.reading.source import Source

_PART_BYTES: Final = 8 * 1024 * 1024
_found: dict[tuple[StorePlace, str], ObjectStore | str] = {}


def open_packs(source: Source, server: Waiting) -> Ranged:
    """What the packs of a source are read from."""
    if source.via == "server":
        return ServerPacks(server, "")
    found = reachable_store(source.place, source.store_id)
    if not isinstance(found, str):
        return found
    if source.via == "store":
        raise StoreError(found)
    return ServerPacks(server, found)


def reachable_store(place: StorePlace, store_id: str) -> ObjectStore | str:
    """The store, or a sentence that says why it cannot be used."""
    key = place, store_id
    if key not in _found:
        _found[key] = _open(place, store_id)
    return _found[key]


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

    def __init__(self, server: Waiting, reason: str) -> None:
        self._server = server
        self._reason = reason

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """The bytes of each (at, size)."""
        try:
            return self._server.ask(lambda client: _read(client, name, ranges))
        except ObjectMissingError:
            raise
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
    rest = iter(found)
    return [memoryview(b"".join(next(rest) for _ in each)) for each in parts]
