"""Reading a proxy stream frame by frame, across whatever happens on the way.

Rules:

- Underneath is a `Reading`, with all that it does: it catches up, follows live, and outlives broken
  connections.
- A signed URL that has expired is renewed where there is a session, and the read goes on behind the
  last byte. Without one the error goes to whoever reads.
- `state` is exact: whoever starts there again loses nothing and sees nothing twice, even in the
  middle of a frame. `offset` is the last place between two frames.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Self

from holdfast.client.messages import Batch
from holdfast.client.proxy_frames import FrameFeed, Placed, Saved, starting_at
from holdfast.client.proxy_source import Source
from holdfast.client.reading import Live, Reading
from holdfast.errors import BadAnswerError, InvalidRequestError, SignatureExpiredError
from holdfast.protocol.frames import Frame
from holdfast.protocol.headers import START


class FrameReading:
    """All frames of a proxy stream as they come: iterate over it, once.

    Each comes with an offset at which a later read can begin. A Data frame comes in as many parts
    as it arrived in; the offset of a part that is not the last is that of the frame's beginning.
    """

    def __init__(
        self, source: Source, *, offset: str = START, state: str | None = None, live: Live = True
    ) -> None:
        start = starting_at(offset, state).position
        self.closed = False
        self.offset = start.offset
        self._source = source
        self._url = source.url
        self._live = live
        self._feed = FrameFeed(start)
        self._position = start
        self._begun = False
        self._given_up = False
        # Made here, so that wrong arguments are an error at once.
        self._reading = Reading(source.calls, self._url, offset=start.offset, live=live)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the read and its connection; leaving the block does the same."""
        self._given_up = True
        await self._reading.aclose()

    @property
    def state(self) -> str:
        """Exactly behind the last thing handed out: give it back to a later read."""
        return Saved(self._position).text()

    async def __aiter__(self) -> AsyncIterator[tuple[Frame, str]]:
        async with aclosing(self.placed()) as frames:
            async for placed in frames:
                yield placed.frame, placed.offset

    async def placed(self) -> AsyncGenerator[Placed, None]:
        """The frames, each with its exact place."""
        if self._begun:
            raise InvalidRequestError("A reading is iterated over once: read on from its state.")
        self._begun = True
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                for placed in self._feed.feed(batch):
                    # Set before it is handed out: whoever stops here has had it.
                    self._position, self.offset = placed.position, placed.offset
                    yield placed
                self._position, self.offset = self._feed.position, self._feed.offset
        if self._reading.closed and not self._feed.is_between_frames:
            raise BadAnswerError("The stream is closed in the middle of a frame.")
        self.closed = self._reading.closed

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        """What the stream holds, whichever URL is good for it at the time."""
        calls, failures = self._source.calls, 0
        while not self._given_up:
            reading = self._reading
            try:
                async with aclosing(reading.batches()) as batches:
                    async for batch in batches:
                        failures = 0
                        yield batch
                return
            except SignatureExpiredError as error:
                if not self._source.can_renew(error):
                    raise
                failures += 1
                if failures > 1:
                    # The URL was fresh: the server's clocks may differ.
                    await calls.wait(failures - 1, error)
            self._url = await self._source.renew(self._url)
            self._reading = Reading(
                calls, self._url, offset=reading.offset, live=self._live, cursor=reading.cursor
            )
