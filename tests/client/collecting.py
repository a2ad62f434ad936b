"""What readers saw, gathered for a comparison."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.client import Message, Reading, Stream


async def payloads(stream: Stream, offset: str = "-1", **options: Any) -> list[bytes]:
    """The messages of a read to the tail."""
    return [message.bytes async for message in stream.read(offset, **options)]


class Tail:
    """A live read in the background, and what it has seen."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.messages: list[Message] = []
        self._progress = asyncio.Condition()
        self._task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        async with self.reading:
            async for message in self.reading:
                self.messages.append(message)
                async with self._progress:
                    self._progress.notify_all()

    @property
    def payloads(self) -> list[bytes]:
        return [message.bytes for message in self.messages]

    async def until(self, count: int) -> None:
        """Wait until so many messages have come, or the read has failed."""
        waiting = asyncio.create_task(self._wait_for(count))
        await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await self._task
            assert len(self.messages) >= count, "the read has ended before that"

    async def _wait_for(self, count: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.messages) >= count)

    async def end(self) -> list[bytes]:
        """Wait until the read is over; all it has seen."""
        await self._task
        return self.payloads

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def tailing(stream: Stream, offset: str = "-1", **options: Any) -> AsyncIterator[Tail]:
    """Follow a stream while the block runs."""
    tail = Tail(stream.read(offset, **({"live": True} | options)))
    try:
        yield tail
    finally:
        await tail.stop()


async def until_true(condition: Any) -> None:
    """Wait for something that nobody announces; only the test's time limit ends it."""
    while not condition():
        await asyncio.sleep(0.005)
