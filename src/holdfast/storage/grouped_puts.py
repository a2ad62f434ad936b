"""Small objects that arrive together are stored together.

A directory syncs several files for little more than one. So while objects are being stored those
that come wait, and go all at once; one that comes alone does not wait.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple

from holdfast.objects.directory_objects import DirectoryObjects

_GROUP_MAX: Final = 64
# The next group is written while the one before is synced.
_GROUPS_AT_ONCE: Final = 2


class _Waiting(NamedTuple):
    name: str
    data: bytes
    stored: asyncio.Future[None]


class GroupedPuts:
    """Puts objects in a directory from the event loop, with the threads of an executor."""

    def __init__(self, store: DirectoryObjects, threads: Executor) -> None:
        self._store = store
        self._threads = threads
        self._waiting: list[_Waiting] = []
        self._under_way = 0

    async def put(self, name: str, data: bytes) -> None:
        """Store an object; it is durable then."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(name, data, stored))
        self._go_on()
        await stored

    def _go_on(self) -> None:
        while self._waiting and self._under_way < _GROUPS_AT_ONCE:
            # Whoever gave up meanwhile has nothing stored.
            alive = [each for each in self._waiting if not each.stored.done()]
            group, self._waiting = alive[:_GROUP_MAX], alive[_GROUP_MAX:]
            if not group:
                return
            objects = [(each.name, each.data) for each in group]
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._threads, self._store.put_many, objects)
            self._under_way += 1
            work.add_done_callback(partial(self._done, group))

    def _done(self, group: list[_Waiting], work: asyncio.Future[None]) -> None:
        self._under_way -= 1
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        for each in group:
            if each.stored.done():
                continue
            if error is None:
                each.stored.set_result(None)
            elif work.cancelled():
                each.stored.cancel()
            else:
                each.stored.set_exception(error)
        if not work.cancelled():
            self._go_on()
