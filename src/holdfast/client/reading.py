"""Reading a stream: catch up to the tail, then follow it live, surviving network failures.

Rules:

- A read starts with plain requests until the tail is reached. A live read continues with SSE, or
  with long-polls if the server has no SSE or something on the way holds events back.
- `offset` is after the last message or batch returned: a read that resumes there loses nothing and
  sees nothing twice. Data of a broken connection that was not complete is read again.
- Pauses between attempts grow with the failures in a row. The first response must come within
  `Retry.attempts`; after that a live read tries for ever.
- Errors that a retry cannot fix (404, 410, 401 and so on) end the read.
- The end of a closed stream ends the read.
- `up_to_date` and `closed` become true with the last message of a batch, not before.
- SSE data is held until the control event behind it says where it ends. If the connection breaks in
  between, the next one starts with the same data.
"""

from __future__ import annotations

import asyncio
import binascii
import weakref
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from holdfast.client.calls import Calls, Pacing, may_repeat
from holdfast.client.messages import (
    JSON_LENGTHS,
    Assembler,
    Batch,
    Framing,
    Lengths,
    Message,
    batch_of,
    check_framing,
    join_arrays,
    parse_lengths,
)
from holdfast.errors import BadAnswerError, HoldfastError, InvalidRequestError, OutboundError
from holdfast.protocol.content import JSON, media_type
from holdfast.protocol.headers import START
from holdfast.protocol.sse import SseEvent, SseParser

T = TypeVar("T")
Live = bool | Literal["sse", "long-poll"]

# After this many SSE connections in a row that had no event, or ended at once, SSE is given up.
EMPTY_CONNECTIONS_MAX: Final = 3
# Responses to a live mode that the server does not support.
_NO_SSE: Final = frozenset({400, 404, 405, 406, 415, 501})


class Reading:
    """A read in progress: iterate over it for messages, or over `batches()`, once.

    Save `offset` to resume in a later read.
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
        # Where the next connection starts. The parts of an incomplete message are between `offset`
        # and here.
        self._at = offset
        self._uses_sse = live in {True, "sse"}
        self._follows = False
        # With `last`: the latest messages so far, if the server cannot start at the last ones.
        self._skipped: list[Message] | None = None
        self._empty_connections = 0
        self._pacing = Pacing(calls.clock, calls.retry)
        self._entered = False
        self._begun = False
        # Set by `aclose`, which also interrupts a task that waits for the next batch.
        self._closing = asyncio.Event()
        self._waiting: asyncio.Task[object] | None = None
        self._left = asyncio.Event()
        self._open: Callable[[], AsyncGenerator[object, None] | None] = lambda: None

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the read and close its connection; leaving the block does the same.

        Another task that waits for the next message sees the end of the iteration.
        """
        self._closing.set()
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
        """The content of each response or event; empty ones only if the state has changed.

        With `lengths` each batch says where its messages end, if the server supports that.
        """
        self._wants_lengths = lengths
        return self._opened(self._all_batches())

    def message_lists(self) -> AsyncGenerator[list[Message], None]:
        """Lists of the messages that arrived together."""
        return self._opened(self._message_lists())

    async def read_bytes(self) -> bytes:
        """Everything to the end as bytes; a single array on a JSON stream."""
        pieces = [batch.data async for batch in self.batches() if batch.data]
        return join_arrays(pieces) if media_type(self.content_type) == JSON else b"".join(pieces)

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
            # It may have fetched more than it returned, which would be lost.
            raise InvalidRequestError("Iterate over a reading only once; resume from its offset.")
        self._begun = True
        # Outside a block only the caller's loop may keep the generator alive: leaving the loop then
        # closes the connection.
        self._open = (lambda: items) if self._entered else weakref.ref(items)
        return items

    async def _all_batches(self) -> AsyncGenerator[Batch, None]:
        async with aclosing(self._until_closed()) as batches:
            async for batch in batches:
                self.offset = batch.next_offset
                yield batch

    async def _message_lists(self) -> AsyncGenerator[list[Message], None]:
        self._wants_lengths = True
        assembler = Assembler(self._framing)
        wanted = self._last
        async with aclosing(self._until_closed()) as batches:
            async for batch in batches:
                messages = assembler.feed(batch)
                if self._skipped is not None:
                    messages = self._last_of(messages, wanted)
                if messages:
                    self.offset = messages[-1].next_offset
                    yield messages
                elif self._skipped is None and not assembler.is_within_message:
                    # No message, but the offset of `now` is known.
                    self.offset = batch.next_offset

    async def _messages(self) -> AsyncGenerator[Message, None]:
        async with aclosing(self._message_lists()) as lists:
            async for messages in lists:
                for message in advancing(self, messages):
                    yield message

    async def _until_closed(self) -> AsyncGenerator[Batch, None]:
        """Every batch until the reading is closed, by any task."""
        async with aclosing(self._batches()) as batches:
            while not self._closing.is_set():
                task = self._waiting = asyncio.current_task()
                assert task is not None
                self._left.clear()
                try:
                    batch = await anext(batches, None)
                except asyncio.CancelledError:
                    # As in `asyncio.timeout`: the task may have been cancelled otherwise, too.
                    if not self._closing.is_set() or task.uncancel() > 0:
                        raise
                    return
                finally:
                    self._waiting = None
                    self._left.set()
                if batch is None:
                    return
                yield batch

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        """Catch up, then follow, and catch up again when following is interrupted."""
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
        # Lengths also show whether SSE has changed line ends.
        if self._wants_lengths or live == "sse":
            params["lengths"] = "true"
        if live is not None:
            params["live"] = live
            if self.cursor is not None:
                params["cursor"] = self.cursor
        return params

    async def _catch_up(self) -> Batch:
        response = await self._calls.request("GET", self._url, params=self._params())
        batch = batch_of(response, self._at)
        if self._last is None:
            return batch
        starts_there = "stream-start-offset" in response.headers
        if not starts_there and not self._wants_lengths:
            raise InvalidRequestError("This server cannot start a read at the last messages.")
        # The server counts appends, each of which may hold several framed messages.
        if not starts_there or self._framing is not None:
            self._skipped = []
        return batch

    def _last_of(self, messages: list[Message], wanted: int | None) -> list[Message]:
        """Skip everything before the last messages, because the server started too early."""
        assert self._skipped is not None
        self._skipped = (self._skipped + messages)[-(wanted or 1) :]
        if not self.up_to_date:
            return []
        messages, self._skipped = self._skipped, None
        return messages

    async def _follow(self) -> AsyncGenerator[Batch, None]:
        """Follow live until the stream is closed or catching up is needed again."""
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
                if self._drops_sse(error):
                    continue
                if not may_repeat(error, repeatable=True):
                    raise
                failures += 1
                await self._calls.wait(failures, error, self._calls.retry.for_ever())

    def _drops_sse(self, error: HoldfastError) -> bool:
        """Whether to switch to long-polls, because the server has no SSE."""
        if not self._uses_sse or self._live == "sse" or error.status not in _NO_SSE:
            return False
        self._uses_sse = False
        return True

    async def _poll(self) -> AsyncGenerator[Batch, None]:
        self._pacing.begin()
        response = await self._calls.request(
            "GET",
            self._url,
            params=self._params("long-poll"),
            timeout_s=self._calls.timeouts.live_s,
        )
        batch = batch_of(response, self._at)
        yield batch
        await self._pacing.end(brought=bool(batch.data) or batch.closed)

    async def _by_sse(self) -> AsyncGenerator[Batch, None]:
        """Read one SSE connection; how it ends shows whether SSE works at all."""
        seen = brought = False
        self._pacing.begin()
        async with self._calls.stream(
            "GET",
            self._url,
            params=self._params("sse"),
            headers={"Accept": "text/event-stream"},
            silence_s=self._calls.timeouts.live_s,
            lasts=True,
        ) as response:
            headers = dict(response.headers)
            if not headers.get("content-type", "").startswith("text/event-stream"):
                self._refuse_sse("The server's response to a live read is not SSE.")
                return
            events = LiveEvents(headers, self.content_type, self._at)
            try:
                async for piece in response.chunks():
                    for batch in events.feed(piece):
                        seen = True
                        brought = brought or bool(batch.data)
                        yield batch
                        if batch.closed:
                            return
                    if events.line_ends_changed:
                        # Plain responses do not change line ends.
                        self._uses_sse = self._follows = False
                        return
            except OutboundError:
                # A proxy on the way may hold events back until the connection times out.
                if self._is_sse_blocked(seen=seen) and self._live != "sse":
                    self._uses_sse = False
                raise
        if self._is_sse_blocked(seen=seen):
            self._refuse_sse("SSE connections end without a single event.")
        elif not seen:
            raise OutboundError("An SSE connection ended without a single event.")
        else:
            await self._pacing.end(brought=brought)
            if self._pacing.hasty >= EMPTY_CONNECTIONS_MAX and self._live != "sse":
                self._uses_sse = False

    def _is_sse_blocked(self, *, seen: bool) -> bool:
        """Count connections without an event; whether SSE seems to be held back on the way."""
        self._empty_connections = 0 if seen else self._empty_connections + 1
        return self._empty_connections >= EMPTY_CONNECTIONS_MAX

    def _refuse_sse(self, why: str) -> None:
        if self._live == "sse":
            raise BadAnswerError(why)
        self._uses_sse = False


def advancing(reading: Reading, messages: list[Message]) -> Iterator[Message]:
    """Yield the messages, and move the reading's offset along with them."""
    up_to_date, closed = reading.up_to_date, reading.closed
    reading.up_to_date = reading.closed = False
    last = messages[-1]
    for message in messages:
        # Before the yield: a caller that stops here has had this message.
        reading.offset = message.next_offset
        if message is last:
            reading.up_to_date, reading.closed = up_to_date, closed
        yield message


class _Control(msgspec.Struct):
    """The content of a control event."""

    next_offset: str = msgspec.field(name="streamNextOffset")
    cursor: str | None = msgspec.field(name="streamCursor", default=None)
    up_to_date: bool = msgspec.field(name="upToDate", default=False)
    closed: bool = msgspec.field(name="streamClosed", default=False)
    lengths: tuple[int, ...] | None = msgspec.field(name="streamMessageLengths", default=None)
    line_ends_changed: bool = msgspec.field(name="streamLineEndsChanged", default=False)


_decode_control = msgspec.json.Decoder(_Control).decode


class LiveEvents:
    """Turns the bytes of one SSE response into batches."""

    def __init__(self, headers: Mapping[str, str], content_type: str, offset: str) -> None:
        self._parser = SseParser()
        self._is_base64 = headers.get("stream-sse-data-encoding", "").lower() == "base64"
        self._tells = headers.get("stream-message-lengths")
        self._content_type = content_type
        self._offset = headers.get("stream-start-offset", offset)
        self._data: list[bytes] = []
        # SSE turns all line ends into LF: true if the next batch would differ from what is stored.
        self.line_ends_changed = False

    def feed(self, piece: bytes) -> list[Batch]:
        """The batches that this piece completes, up to one with changed line ends."""
        batches: list[Batch] = []
        for event in self._parser.feed(piece):
            if event.kind == "data":
                self._data.append(self._decoded(event))
            elif event.kind == "control":
                control = _parse_control(event)
                batch = self._batch(control)
                if control.line_ends_changed or not is_exact(batch):
                    self.line_ends_changed = True
                    return batches
                batches.append(batch)
            elif event.kind == "error":
                text = event.data[:200].decode("utf-8", "replace")
                raise BadAnswerError(f"The server sent an error event: {text}")
        return batches

    def _decoded(self, event: SseEvent) -> bytes:
        if not self._is_base64:
            return event.data
        try:
            return b64decode(event.data.translate(None, b"\r\n "), validate=True)
        except binascii.Error as error:
            raise BadAnswerError(f"A data event is not base64: {error}.") from None

    def _batch(self, control: _Control) -> Batch:
        data, lengths = self._joined(), self._lengths(control)
        batch = Batch(
            data,
            self._content_type,
            self._offset,
            control.next_offset,
            up_to_date=control.up_to_date or control.closed,
            closed=control.closed,
            cursor=control.cursor,
            lengths=lengths,
        )
        self._data.clear()
        self._offset = control.next_offset
        return batch

    def _joined(self) -> bytes:
        if len(self._data) <= 1:
            return self._data[0] if self._data else b""
        is_json = media_type(self._content_type) == JSON
        return join_arrays(self._data) if is_json else b"".join(self._data)

    def _lengths(self, control: _Control) -> Lengths | None:
        if self._tells == JSON_LENGTHS:
            return JSON_LENGTHS
        if self._tells == "events":
            return control.lengths or ()
        return parse_lengths(self._tells)


def is_exact(batch: Batch) -> bool:
    """Whether the data is complete: with CRLF turned into LF it is shorter than its offsets say.

    Detectable only if the server says that offsets count bytes.
    """
    if batch.lengths is None or not batch.data:
        return True
    offsets = batch.offset + batch.next_offset
    if not (batch.offset and batch.next_offset and offsets.isascii() and offsets.isdigit()):
        return True
    # One byte is stored after each JSON message: the array's commas and one bracket.
    shorter = 1 if batch.lengths == JSON_LENGTHS else 0
    return int(batch.next_offset) - int(batch.offset) == len(batch.data) - shorter


def _parse_control(event: SseEvent) -> _Control:
    try:
        return _decode_control(event.data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadAnswerError(f"A control event cannot be decoded: {error}.") from None
