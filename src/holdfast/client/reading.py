"""Reading a stream: catching up, then following it live, across whatever happens on the way.

Rules:

- Reading starts with plain requests until the tail is reached. A live read goes on with SSE, or
  with long-polls where SSE does not work: the server has none, or something in between swallows it.
- `offset` is behind the last thing handed out: whoever starts there again loses nothing and sees
  nothing twice. What a broken connection had begun is read again.
- A failure is followed by a pause that grows with the failures in a row. A first answer that does
  not come is an error after `Retry.attempts`; once there was one, a live read tries for ever.
- Errors that no repetition mends (404, 410, 401 and so on) end the read.
- The end of a closed stream ends the read.
- `up_to_date` and `closed` are about what was handed out: within a batch they do not hold yet.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final, Literal, Self, TypeVar

from holdfast.client.answers import batch_of
from holdfast.client.calls import Calls
from holdfast.client.live_events import LiveEvents
from holdfast.client.messages import Assembler, Batch, Message
from holdfast.client.payloads import Framing, check_framing
from holdfast.client.retry import Pacing, may_repeat
from holdfast.errors import BadAnswerError, HoldfastError, InvalidRequestError, OutboundError
from holdfast.protocol.content import JSON, media_type
from holdfast.protocol.headers import START

T = TypeVar("T")
Live = bool | Literal["sse", "long-poll"]

# So many SSE connections in a row without a single event mean that SSE does not get through; so
# many that end at once mean that it is no use.
EMPTY_CONNECTIONS_MAX: Final = 3
# What servers answer to a live mode that they do not have.
_NO_SSE: Final = frozenset({400, 404, 405, 406, 415, 501})


class Reading:
    """A read under way: iterate over it for messages, or over `batches()`.

    `offset` can be saved, and given back to a later read. One reading is iterated over once.
    """

    def __init__(
        self,
        calls: Calls,
        url: str,
        *,
        offset: str = START,
        live: Live = False,
        framing: Framing | None = None,
        last: int | None = None,
        max_bytes: int | None = None,
        cursor: str | None = None,
    ) -> None:
        check_framing(framing)
        if live not in {False, True, "sse", "long-poll"}:
            raise InvalidRequestError(f"Unknown live mode {live!r}: use True, 'sse', 'long-poll'.")
        if last is not None and last < 1:
            raise InvalidRequestError(f"last is {last}: expected 1 or more.")
        self.offset = offset
        self.up_to_date = False
        self.closed = False
        self.cursor = cursor
        self.content_type = ""
        self._calls = calls
        self._url = url
        self._live = live
        self._framing: Framing | None = framing
        self._last = last
        self._max_bytes = max_bytes
        self._wants_lengths = False
        # Where the next connection starts: a message that is held is behind `offset` and before it.
        self._at = offset
        self._uses_sse = live in {True, "sse"}
        self._follows = False
        # The last messages so far, while a server that cannot start there gets there.
        self._passes_over: list[Message] | None = None
        self._empty_connections = 0
        self._pacing = Pacing(calls.clock, calls.retry)
        self._entered = False
        self._begun = False
        # Set by `aclose`: there is no next batch for whoever waits for it, until it has left.
        self._given_up = asyncio.Event()
        self._waiting: asyncio.Task[object] | None = None
        self._left = asyncio.Event()
        self._open: Callable[[], AsyncGenerator[object, None] | None] = lambda: None

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the read and its connection; leaving the block does the same.

        Whoever waits for the next message, in another task, has seen the last one.
        """
        self._given_up.set()
        if self._waiting is not None:
            self._waiting.cancel()
            await self._left.wait()
        items = self._open()
        if items is not None:
            await items.aclose()
        self._open = lambda: None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._opened(self._messages())

    def batches(self, *, lengths: bool = False) -> AsyncGenerator[Batch, None]:
        """What each answer or event held; an empty one only where it says something new.

        With `lengths` each tells where its messages end, if the server can.
        """
        self._wants_lengths = lengths
        return self._opened(self._all_batches())

    def message_lists(self) -> AsyncGenerator[list[Message], None]:
        """Messages, as many at a time as came together."""
        return self._opened(self._message_lists())

    async def read_bytes(self) -> bytes:
        """Everything to the end as bytes; of a JSON stream one array."""
        pieces = [batch.data async for batch in self.batches() if batch.data]
        if media_type(self.content_type) != JSON:
            return b"".join(pieces)
        inner = [piece.strip()[1:-1].strip() for piece in pieces]
        return b"[" + b",".join([each for each in inner if each]) + b"]"

    async def read_text(self) -> str:
        """Everything to the end as UTF-8 text."""
        return (await self.read_bytes()).decode()

    async def read_json(self) -> list[Any]:
        """All messages to the end, parsed."""
        values: list[Any] = []
        async for batch in self.batches():
            if batch.data:
                parsed = batch.json
                values.extend(parsed if isinstance(parsed, list) else [parsed])
        return values

    def _opened(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        if self._begun:
            # It has asked for more than it has handed out: what is in between would be lost.
            raise InvalidRequestError("A reading is iterated over once: read on from its offset.")
        self._begun = True
        # Outside a block nothing but the loop over them may keep them: whoever leaves it without a
        # word has them collected, and their connection closed.
        self._open = (lambda: items) if self._entered else weakref.ref(items)
        return items

    async def _all_batches(self) -> AsyncGenerator[Batch, None]:
        async with aclosing(self._until_given_up()) as batches:
            async for batch in batches:
                self.offset = batch.next_offset
                yield batch

    async def _message_lists(self) -> AsyncGenerator[list[Message], None]:
        self._wants_lengths = True
        assembler = Assembler(self._framing)
        wanted = self._last
        async with aclosing(self._until_given_up()) as batches:
            async for batch in batches:
                messages = assembler.feed(batch)
                if self._passes_over is not None:
                    messages = self._last_of(messages, wanted)
                if messages:
                    self.offset = messages[-1].next_offset
                    yield messages
                elif self._passes_over is None and not assembler.is_within_message:
                    # Nothing to hand out, but where `now` was is known from here on.
                    self.offset = batch.next_offset

    async def _messages(self) -> AsyncGenerator[Message, None]:
        async with aclosing(self._message_lists()) as lists:
            async for messages in lists:
                for message in handing_out(self, messages):
                    yield message

    async def _until_given_up(self) -> AsyncGenerator[Batch, None]:
        """Every batch, but none any more once the reading is closed, by whichever task."""
        async with aclosing(self._batches()) as batches:
            while not self._given_up.is_set():
                task = self._waiting = asyncio.current_task()
                assert task is not None
                self._left.clear()
                try:
                    batch = await anext(batches, None)
                except asyncio.CancelledError:
                    # Like `asyncio.timeout`: unless somebody else has cancelled the task as well.
                    if not self._given_up.is_set() or task.uncancel() > 0:
                        raise
                    return
                finally:
                    self._waiting = None
                    self._left.set()
                if batch is None:
                    return
                yield batch

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        """Catch up, then follow, and catch up again where following does not do."""
        while not self.closed:
            batch = await self._catch_up()
            self._note(batch)
            if batch.data or batch.up_to_date:
                yield batch
            if not batch.up_to_date:
                continue
            if not self._live:
                return
            self._follows = True
            async with aclosing(self._follow()) as followed:
                async for batch in followed:
                    yield batch

    def _note(self, batch: Batch) -> None:
        self._at = batch.next_offset
        self._last = None
        self.up_to_date = batch.up_to_date
        self.closed = batch.closed and batch.up_to_date
        self.cursor = batch.cursor or self.cursor
        self.content_type = batch.content_type or self.content_type

    def _params(self, live: str | None = None) -> dict[str, str]:
        params = {"offset": self._at} if self._last is None else {"last": str(self._last)}
        if self._max_bytes is not None:
            params["max_bytes"] = str(self._max_bytes)
        # By their lengths alone it shows whether SSE has changed line ends.
        if self._wants_lengths or live == "sse":
            params["lengths"] = "true"
        if live is not None:
            params["live"] = live
            if self.cursor is not None:
                params["cursor"] = self.cursor
        return params

    async def _catch_up(self) -> Batch:
        answer = await self._calls.request("GET", self._url, params=self._params())
        batch = batch_of(answer, self._at)
        if self._last is None:
            return batch
        starts_there = "stream-start-offset" in answer.headers
        if not starts_there and not self._wants_lengths:
            raise InvalidRequestError("This server cannot start a read at the last messages.")
        # The server counts appends, each of which may hold several framed messages.
        if not starts_there or self._framing is not None:
            self._passes_over = []
        return batch

    def _last_of(self, messages: list[Message], wanted: int | None) -> list[Message]:
        """The server starts too early: pass over everything up to the last messages."""
        assert self._passes_over is not None
        self._passes_over = (self._passes_over + messages)[-(wanted or 1) :]
        if not self.up_to_date:
            return []
        messages, self._passes_over = self._passes_over, None
        return messages

    async def _follow(self) -> AsyncGenerator[Batch, None]:
        """Follow live until the stream is closed, or catching up is needed again."""
        failures = 0
        while not self.closed and self._follows:
            try:
                async with aclosing(self._by_sse() if self._uses_sse else self._poll()) as batches:
                    async for batch in batches:
                        failures = 0
                        is_news = bool(batch.data) or batch.closed or not self.up_to_date
                        self._note(batch)
                        if is_news:
                            yield batch
            except HoldfastError as error:
                if self._give_up_sse(error):
                    continue
                if not may_repeat(error, repeatable=True):
                    raise
                failures += 1
                await self._calls.wait(failures, error, self._calls.retry.for_ever())

    def _give_up_sse(self, error: HoldfastError) -> bool:
        """Whether to go on with long-polls, because the server does not have SSE."""
        if not self._uses_sse or self._live == "sse" or error.status not in _NO_SSE:
            return False
        self._uses_sse = False
        return True

    async def _poll(self) -> AsyncGenerator[Batch, None]:
        self._pacing.begin()
        answer = await self._calls.request(
            "GET",
            self._url,
            params=self._params("long-poll"),
            timeout_s=self._calls.timeouts.live_s,
        )
        batch = batch_of(answer, self._at)
        yield batch
        await self._pacing.end(brought=bool(batch.data) or batch.closed)

    async def _by_sse(self) -> AsyncGenerator[Batch, None]:
        """One SSE connection; how it ends says whether SSE works at all."""
        seen = brought = False
        self._pacing.begin()
        async with self._calls.stream(
            "GET",
            self._url,
            params=self._params("sse"),
            headers={"Accept": "text/event-stream"},
            silence_s=self._calls.timeouts.live_s,
            lasts=True,
        ) as answer:
            headers = dict(answer.headers)
            if not headers.get("content-type", "").startswith("text/event-stream"):
                self._refuse_sse("The server answers a live read with something other than SSE.")
                return
            events = LiveEvents(headers, self.content_type, self._at)
            try:
                async for piece in answer.chunks():
                    for batch in events.feed(piece):
                        seen = True
                        brought = brought or bool(batch.data)
                        yield batch
                        if batch.closed:
                            return
                    if events.line_ends_changed:
                        # Plain answers leave them alone.
                        self._uses_sse = self._follows = False
                        return
            except OutboundError:
                # Something in between may hold events back until the connection is given up.
                if self._is_swallowed(seen=seen) and self._live != "sse":
                    self._uses_sse = False
                raise
        if self._is_swallowed(seen=seen):
            self._refuse_sse("SSE connections end without a single event.")
        elif not seen:
            raise OutboundError("An SSE connection ended without a single event.")
        else:
            await self._pacing.end(brought=brought)
            if self._pacing.hasty >= EMPTY_CONNECTIONS_MAX and self._live != "sse":
                self._uses_sse = False

    def _is_swallowed(self, *, seen: bool) -> bool:
        """Whether so many connections in a row had no event that SSE does not get through."""
        self._empty_connections = 0 if seen else self._empty_connections + 1
        return self._empty_connections >= EMPTY_CONNECTIONS_MAX

    def _refuse_sse(self, why: str) -> None:
        if self._live == "sse":
            raise BadAnswerError(why)
        self._uses_sse = False


def handing_out(reading: Reading, messages: list[Message]) -> Iterator[Message]:
    """The same messages; on the way the reading is behind the one that was handed out last."""
    up_to_date, closed = reading.up_to_date, reading.closed
    reading.up_to_date = reading.closed = False
    last = messages[-1]
    for message in messages:
        # Set before it is handed out: whoever stops here has had it.
        reading.offset = message.next_offset
        if message is last:
            reading.up_to_date, reading.closed = up_to_date, closed
        yield message
