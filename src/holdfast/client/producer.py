"""A writer whose appends are stored exactly once and in order, however often they are sent.

Rules:

- Messages gather in a batch until it is large or old enough. A batch is one request with one
  sequence number, and its content never changes.
- Several batches are in flight at once. One that overtakes another is refused with a gap, waits for
  the earlier ones, and is sent again; for a while fewer are in flight. The batch that closes the
  stream is sent alone: a closed stream would refuse earlier batches that must be repeated.
- A batch is repeated after network errors and temporary failures: the server recognises it.
- Without `epoch`, the producer takes a higher epoch than any before: it starts afresh, and earlier
  writers with the same id are fenced off. With `epoch` it continues what was begun under that
  epoch. The server recognises batches by number alone, so the same messages must come in the same
  batches; by default each batch is then one message.
- The first batch is sent alone. Its response says up to which number the server already has batches
  of this producer and epoch; those are not sent.
- A stale epoch is an error. With `auto_claim` the producer takes the next epoch and sends refused
  batches again, but not one that may have been stored under the old epoch.
- An error that a retry cannot fix ends the producer, because later messages must not be stored
  without the earlier ones. Callers that wait for a message that will not be stored get that error.
- On a byte stream each message is an append of its own, unless the stream is framed, `joins` says
  that message boundaries do not matter, or `lists_lengths` has requests list the lengths of their
  messages. Servers other than Holdfast do not know that list and store one message per request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from holdfast.client.calls import NO_RETRY, may_repeat
from holdfast.client.messages import message_bytes, request_body
from holdfast.errors import (
    HoldfastError,
    InvalidRequestError,
    ProducerFencedError,
    ProducerGapError,
)
from holdfast.protocol.content import JSON, media_type
from holdfast.protocol.headers import CURSOR_EPOCH_MS, LENGTHS_BYTES_MAX

if TYPE_CHECKING:
    from holdfast.client.calls import Calls
    from holdfast.client.stream import Stream
    from holdfast.clock import Clock, Timer


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append; a producer's duplicate was not stored again."""

    next_offset: str
    closed: bool
    etag: str | None
    duplicate: bool = False
    # The last sequence number of the producer that the server has.
    producer_seq: int | None = None
    # The digest that the server has with it, in the response to a duplicate.
    producer_digest: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """The producer headers of one append, for callers that number appends themselves.

    With a digest from `chained_digest`, the server refuses another request under a number that it
    has, instead of taking it for a repetition.
    """

    producer_id: str
    epoch: int
    seq: int
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """How a producer forms batches, and how much it buffers."""

    batch_bytes: int = 512 * 1024
    batch_messages: int = 10_000
    # How long a batch waits for more messages.
    linger_s: float = 0.005
    in_flight: int = 4
    # Above this `append` waits until something is stored.
    pending_bytes_max: int = 32 * 1024 * 1024
    # Whether messages of a byte stream may become one append.
    joins: bool = False
    # Whether several messages of a byte stream share an append that lists their lengths.
    lists_lengths: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_bytes", "batch_messages", "in_flight", "pending_bytes_max"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} is {getattr(self, name)}: expected 1 or more.")


# The n-th message always gets the sequence number n.
ONE_BY_ONE: Final = ProducerLimits(batch_messages=1)


def _new_epoch(clock: Clock) -> int:
    """A unique epoch that is higher than earlier ones: the time and random bits.

    40 bits of milliseconds last until 2059; the protocol's numbers have 53 bits.
    """
    return (clock.now_ms() - CURSOR_EPOCH_MS << 13) + clock.random_int(0, (1 << 13) - 1)


class _Batch:
    __slots__ = ("close", "count", "in_doubt", "messages", "number", "seq", "size_bytes")

    def __init__(self, number: int, messages: list[bytes], size_bytes: int, *, close: bool) -> None:
        # Its position among all batches; unlike `seq` it never changes.
        self.number = number
        self.messages = messages
        self.count = len(messages)
        self.size_bytes = size_bytes
        self.close = close
        self.seq = -1
        # Whether it may have been stored without a response that says so.
        self.in_doubt = False


class Producer:
    """Appends to one stream under a producer id.

    async with stream.producer("importer") as producer:
        for row in rows:
            await producer.append(row)
    """

    def __init__(
        self,
        calls: Calls,
        stream: Stream,
        producer_id: str,
        *,
        epoch: int | None = None,
        auto_claim: bool = False,
        limits: ProducerLimits | None = None,
    ) -> None:
        if not producer_id:
            raise InvalidRequestError("A producer needs an id.")
        if epoch is not None and epoch < 0:
            raise InvalidRequestError(f"The epoch of a producer is 0 or more, not {epoch}.")
        self.producer_id = producer_id
        self.epoch = _new_epoch(calls.clock) if epoch is None else epoch
        # Messages that the server has confirmed.
        self.acknowledged = 0
        self.last: Appended | None = None
        self._calls = calls
        self._stream = stream
        self._auto_claim = auto_claim
        # A new epoch may be too low if the clock went back; once something is stored it is not.
        self._is_new = epoch is None
        self._limits = limits or (ProducerLimits() if epoch is None else ONE_BY_ONE)
        self._content_type = ""
        self._media = ""
        self._batch_messages = 1
        # Whether requests list the lengths of their messages, and how long the list is so far.
        self._lists_lengths = False
        self._list_bytes = 0
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._pending_bytes = 0
        self._linger: Timer | None = None
        self._sealed = 0
        self._queue: deque[_Batch] = deque()
        self._flying: dict[_Batch, asyncio.Task[None]] = {}
        self._fenced: list[_Batch] = []
        self._claimed_epoch = 0
        self._next_seq = 0
        self._server_seq = -1
        # How many batches may be in flight now; the first is sent alone.
        self._window = 1.0
        self._error: Exception | None = None
        self._closed = False
        self._progress = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._prepare()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            self._stop()

    @property
    def pending_bytes(self) -> int:
        """Bytes that are not acknowledged yet."""
        return self._pending_bytes

    async def append(self, message: Any) -> None:
        """Buffer a message; waits only while too much is pending. `flush` waits until it is stored.

        Raises the error that ended the producer, if there was one.
        """
        if not self._media:
            await self._prepare()
        self._put(message_bytes(message, self._media, self._stream.framing))
        if self._pending_bytes > self._limits.pending_bytes_max:
            await self._until(self._has_room)
        elif self._queue:
            # Let batches in flight progress even if the caller appends without a pause.
            await asyncio.sleep(0)

    async def append_many(self, messages: Iterable[Any]) -> None:
        """Buffer messages, one by one."""
        for message in messages:
            await self.append(message)

    async def flush(self) -> Appended | None:
        """Wait until everything so far is stored, or raise the error that ended the producer."""
        self._seal()
        sealed = self._sealed
        await self._until(lambda: self._has_stored(sealed))
        return self.last

    async def close(self) -> Appended | None:
        """Flush, and accept no more messages."""
        self._closed = True
        try:
            return await self.flush()
        finally:
            self._stop()

    async def close_stream(self, message: Any = None) -> Appended | None:
        """Close the stream after everything appended so far, with an optional last message.

        Repeating this after success has no effect.
        """
        if self._closed:
            if message is None and self.last is not None and self.last.closed:
                return self.last
            raise self._error or InvalidRequestError("The producer is closed.")
        if not self._media:
            await self._prepare()
        if message is not None:
            self._put(message_bytes(message, self._media, self._stream.framing), seal=False)
        self._seal(close=True)
        return await self.close()

    async def _prepare(self) -> None:
        self._content_type = await self._stream.known_content_type()
        self._media = media_type(self._content_type)
        if self._media == JSON or self._stream.framing is not None or self._limits.joins:
            self._batch_messages = self._limits.batch_messages
        elif self._limits.lists_lengths:
            self._batch_messages, self._lists_lengths = self._limits.batch_messages, True

    def _put(self, encoded: bytes, *, seal: bool = True) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise InvalidRequestError("The producer is closed.")
        size = len(encoded)
        if not size:
            raise InvalidRequestError("An empty message cannot be appended.")
        if self._open and self._open_bytes + size > self._limits.batch_bytes:
            self._seal()
        if self._lists_lengths:
            entry_bytes = len(str(size)) + 1
            if self._list_bytes + entry_bytes > LENGTHS_BYTES_MAX:
                self._seal()
            self._list_bytes += entry_bytes
        self._open.append(encoded)
        self._open_bytes += size
        self._pending_bytes += size
        if not seal:
            return
        if len(self._open) >= self._batch_messages or self._open_bytes >= self._limits.batch_bytes:
            self._seal()
        elif self._linger is None:
            self._linger = self._calls.clock.call_later(self._limits.linger_s, self._seal)

    def _seal(self, *, close: bool = False) -> None:
        """Complete the open batch, and send it when it is its turn."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._open or close:
            batch = _Batch(self._sealed, self._open, self._open_bytes, close=close)
            self._queue.append(batch)
            self._sealed += 1
            self._open, self._open_bytes, self._list_bytes = [], 0, 0
        self._start()

    def _start(self) -> None:
        """Send the batches that may be sent now."""
        while self._queue and len(self._flying) < int(self._window) and not self._fenced:
            if self._queue[0].close and self._flying:
                return
            batch = self._queue.popleft()
            batch.seq = self._next_seq
            self._next_seq += 1
            if batch.seq <= self._server_seq and not batch.close:
                self._settle(batch)
                continue
            task = asyncio.get_running_loop().create_task(self._send(batch))
            self._flying[batch] = task

    async def _send(self, batch: _Batch) -> None:
        try:
            response = await self._send_until_settled(batch)
        except HoldfastError as error:
            self._flying.pop(batch, None)
            self._refused(batch, error)
            return
        except Exception as error:  # noqa: BLE001 (raised in the callers that wait)
            self._flying.pop(batch, None)
            self._fail(error)
            return
        self._flying.pop(batch, None)
        self._is_new = False
        self._window = min(self._limits.in_flight, self._window + 1 / self._window)
        self.last = response
        if response.producer_seq is not None:
            self._server_seq = max(self._server_seq, response.producer_seq)
        self._settle(batch)
        self._reclaim()
        self._start()

    async def _send_until_settled(self, batch: _Batch) -> Appended:
        messages = batch.messages
        body = request_body(messages, self._media) if messages else b""
        lengths = tuple(map(len, messages)) if self._lists_lengths and len(messages) > 1 else ()
        failures = 0
        while True:
            alone = not self._before(batch)
            try:
                return await self._stream.post(
                    body,
                    self._content_type if body else None,
                    close=batch.close,
                    producer=ProducerStamp(self.producer_id, self.epoch, batch.seq),
                    lengths=lengths,
                    retry=NO_RETRY,
                )
            except ProducerGapError:
                if alone:
                    raise
                self._window = max(1.0, self._window / 2)
                await self._until(lambda: not self._before(batch))
            except HoldfastError as error:
                if not may_repeat(error, repeatable=True):
                    raise
                batch.in_doubt |= not may_repeat(error, repeatable=False)
                failures += 1
                await self._calls.wait(failures, error)

    def _before(self, batch: _Batch) -> bool:
        return any(other.seq < batch.seq for other in self._flying)

    def _settle(self, batch: _Batch) -> None:
        self.acknowledged += batch.count
        self._pending_bytes -= batch.size_bytes
        self._wake()

    def _refused(self, batch: _Batch, error: HoldfastError) -> None:
        """The server refused this batch: claim a new epoch, or end the producer."""
        claims = isinstance(error, ProducerFencedError) and (self._auto_claim or self._is_new)
        if not claims or batch.in_doubt or self._error is not None:
            self._fail(error)
            return
        assert isinstance(error, ProducerFencedError)
        self._fenced.append(batch)
        # Higher than ours, even if the server does not say which one it has.
        self._claimed_epoch = max(self.epoch, error.epoch) + 1
        self._reclaim()

    def _reclaim(self) -> None:
        """Send refused batches under the new epoch, once none is in flight under the old one."""
        if not self._fenced or self._flying:
            return
        self._fenced.sort(key=lambda batch: batch.seq)
        self._queue.extendleft(reversed(self._fenced))
        self._fenced.clear()
        self.epoch = self._claimed_epoch
        self._next_seq, self._server_seq, self._window = 0, -1, 1.0
        self._start()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._stop()

    def _stop(self) -> None:
        self._closed = True
        if self._error is None and (self._open or not self._has_stored(self._sealed)):
            self._error = InvalidRequestError(
                "The producer was closed before everything was stored."
            )
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        for task in self._flying.values():
            task.cancel()
        self._open, self._open_bytes = [], 0
        self._flying.clear()
        self._queue.clear()
        self._fenced.clear()
        self._wake()

    def _has_room(self) -> bool:
        return self._pending_bytes <= self._limits.pending_bytes_max

    def _has_stored(self, count: int) -> bool:
        """Whether the server has the first `count` batches."""
        oldest = (*self._flying, *self._fenced, *islice(self._queue, 1))
        return all(batch.number >= count for batch in oldest)

    def _wake(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; raise the error if the producer ends before."""
        while self._error is None and not condition():
            await self._progress.wait()
        if self._error is not None:
            raise self._error
