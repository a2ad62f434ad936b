"""The object stores that the contract is run over, and how each is opened.

To add another, write a class like these and name it in `STORES`.
"""

import asyncio
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.objects.store import MemoryObjects, PostedRanges
from holdfast.settings import StorageSettings
from holdfast.storage.open_objects import open_objects, open_ranges
from holdfast.testing import FaultyObjects, FaultyRanges


class MemoryBackend:
    def __init__(self, request, directory):
        self.store = MemoryObjects(SystemClock())

    def ranges(self):
        """A range reader; inside a running event loop."""
        return PostedRanges(self.store, asyncio.get_running_loop().call_soon)


class FaultyBackend(MemoryBackend):
    """What tests of storage use must keep the contract too, as long as nothing is to fail."""

    def __init__(self, request, directory):
        self.store = FaultyObjects(MemoryObjects(SystemClock()))

    def ranges(self):
        return FaultyRanges(super().ranges())


class SettingsBackend:
    """A store as the server opens it."""

    def __init__(self, directory, **settings):
        self._directory = directory / "objects"
        self._settings = StorageSettings(**settings)
        self.store = open_objects(self._settings, self._directory)

    def ranges(self):
        return open_ranges(self._settings, self._directory)


def directory_backend(request, directory):
    return SettingsBackend(directory)


def s3_backend(request, directory):
    moto = request.getfixturevalue("moto")
    return SettingsBackend(directory, **moto.settings(moto.new_bucket()))


STORES = {
    "memory": MemoryBackend,
    "faulty": FaultyBackend,
    "directory": directory_backend,
    "s3": s3_backend,
}


async def read_range(reader, name, at, size):
    """What a range reader answers: bytes, or the error raised."""
    answer = asyncio.get_running_loop().create_future()
    # A second call would be an InvalidStateError.
    reader.read(name, at, size, answer.set_result)
    found = await answer
    if isinstance(found, Exception):
        raise found
    return found


def contents(store, prefix=""):
    """Everything in a store, by name."""
    return {info.name: store.read(info.name) for info in store.list(prefix)}


def files_below(directory: Path):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
