"""A recording: the frames of one response on their way into its stream, in order and once each.

Rules:

- Frames are numbered as a producer's appends are, so that sending one again does no harm. Start
  and Data frames are numbers 0, 1, 2… of an even epoch, the terminal frame is number 0 of the odd
  epoch behind it. So the stream itself knows which responses have ended, and none can end twice.
- A chunk is written at once if nothing was written for `QUIET_S`; otherwise it waits for more,
  until there are `BATCH_BYTES` or `BATCH_S` are over since the last frame. Were the two times the
  same, an upstream that sends one chunk in each would be late for ever after having been so once.
- What the log refuses for now is sent again, and everything behind it. A terminal frame is sent
  until it is stored, or until there is no stream to store it in, but never ahead of Data frames:
  where they cannot be stored it is another one that says so.
- While nobody knows whether the Start frame is stored only the terminal frame may follow it, and
  only if it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.engine.writes import AppendRequest
from holdfast.errors import (
    HoldfastError,
    NotFoundError,
    ProducerFencedError,
    ProducerGapError,
    QuotaExceededError,
    StreamClosedError,
    StreamDeletedError,
)
from holdfast.protocol.content import DEFAULT
from holdfast.protocol.frames import DATA, encode_frame
from holdfast.protocol.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock, Timer
    from holdfast.engine.shard import Shard

_log = logging.getLogger(__name__)
BATCH_BYTES: Final = 4096
BATCH_S: Final = 0.05
QUIET_S: Final = 0.025
# Frames that are not durable yet; then the upstream has to wait.
WINDOW_BYTES: Final = 256 * 1024
# A larger chunk becomes several frames.
FRAME_BYTES_MAX: Final = 64 * 1024
_RETRY_S: Final = 0.1
_RETRY_S_MAX: Final = 5.0
# How long the log may refuse before the response is given up.
PATIENCE_S: Final = 30.0
# There is no stream any more; or the terminal frame is stored, and so is all before it.
_OVER: Final = (NotFoundError, StreamClosedError, StreamDeletedError, ProducerFencedError)
# A full bucket may have room again; behind a gap is what followed something that was refused.
_PASSING: Final = (QuotaExceededError, ProducerGapError)


class Place(NamedTuple):
    """Where a response is recorded: its stream, its id there, and the producer it writes as."""

    name: str
    response_id: int
    producer_id: bytes
    # Even; the terminal frame has the next one.
    epoch: int
    # The stream's number; 0 where it is not known, which is no stream that could be replaced.
    number: int = 0

    @property
    def seq(self) -> bytes:
        """The `Stream-Seq` of the Start frame: the stream keeps the last response's id."""
        return b"%010d" % self.response_id


class _Sent:
    """A frame, and what became of it so far."""

    __slots__ = ("in_flight", "is_end", "producer", "request", "stored")

    def __init__(self, frame: bytes, producer: Producer, *, is_end: bool) -> None:
        # Where there is no room for the end there is none for saying that there is no room.
        self.request = AppendRequest(frame, DEFAULT, producer=producer, over_quota=is_end)
        self.producer = producer
        self.is_end = is_end
        self.in_flight = False
        self.stored = False


class Recording:
    """Writes the frames of one response."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        place: Place,
        *,
        on_failing: Callable[[HoldfastError], None],
        on_done: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._clock = clock
        self.place = place
        # Called when the stream takes no more Data frames, to end it with `drop`; and once nothing
        # is left to be done.
        self._on_failing = on_failing
        self._on_done = on_done
        self.first_stored: Callable[[], None] | None = None
        # Whether the Start frame is known to be stored.
        self.has_begun = False
        self._next_seq = 1
        self._chunks: list[bytes] = []
        self._chunk_bytes = 0
        self._flushed_s = float("-inf")
        self._flush_timer: Timer | None = None
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._retry_timer: Timer | None = None
        self._retry_s = _RETRY_S
        self._failing_since_s: float | None = None
        self._room: asyncio.Future[None] | None = None
        self._ended = False
        self._is_done = False

    # What is to be written.

    def write(self, chunk: bytes) -> None:
        """Take a part of the body."""
        if self._ended or not chunk:
            return
        self._chunks.append(chunk)
        self._chunk_bytes += len(chunk)
        if self._chunk_bytes >= BATCH_BYTES:
            self.flush()
        elif self._flush_timer is None:
            quiet_s = self._clock.monotonic_s() - self._flushed_s
            if quiet_s >= QUIET_S:
                self.flush()
            else:
                self._flush_timer = self._clock.call_later(BATCH_S - quiet_s, self.flush)

    def flush(self) -> None:
        """Write what has been gathered."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if not self._chunks:
            return
        chunks, self._chunks = self._chunks, []
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunk_bytes = 0
        self._flushed_s = self._clock.monotonic_s()
        place = self.place
        for at in range(0, len(data), FRAME_BYTES_MAX):
            if self._ended:
                # The stream took no more in the middle of this.
                return
            frame = encode_frame(DATA, place.response_id, data[at : at + FRAME_BYTES_MAX])
            self._send(frame, Producer(place.producer_id, place.epoch, self._next_seq))
            self._next_seq += 1

    def end(self, frame: bytes, *, drop: bool = False) -> None:
        """Write the terminal frame behind everything.

        `drop` what has not been stored before it, and another terminal frame if there was one.
        """
        assert drop or not self._ended, "a response ends once"
        if drop:
            # What is under way is stored or not; nothing of it is sent again.
            self._chunks.clear()
            self._sent.clear()
            self._sent_bytes = 0
        else:
            self.flush()
            if self._ended:
                # The stream took no more in the middle of that, and so it has its end.
                return
        self._ended = True
        producer = Producer(self.place.producer_id, self.place.epoch + 1, 0)
        self._send(frame, producer, is_end=True)

    @property
    def is_full(self) -> bool:
        """Whether no more should come before something is stored."""
        return self._sent_bytes > WINDOW_BYTES

    @property
    def is_waiting(self) -> bool:
        """Whether something was refused, and will be sent again in a while."""
        return self._retry_timer is not None

    def hurry(self) -> None:
        """Send it again now, and not in a while."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry()

    async def room(self) -> None:
        """Wait until more may come."""
        while self.is_full and not self._is_done:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    # What becomes of it.

    def _send(self, frame: bytes, producer: Producer, *, is_end: bool = False) -> None:
        sent = _Sent(frame, producer, is_end=is_end)
        self._sent.append(sent)
        self._sent_bytes += len(frame)
        if self._retry_timer is None:
            self._try(sent)

    def _try(self, sent: _Sent) -> None:
        if not self.has_begun and not self._may_have_begun():
            self._finish()
            return
        name, number = self.place.name, self.place.number
        if sent.is_end and self._data_is_missing():
            self._refused(sent, ProducerGapError(0, 0))
            return
        sent.in_flight = True
        try:
            if number:
                self._shard.append_to(number, name, sent.request, self._replied, sent)
            else:
                self._shard.append(name, sent.request, self._replied, sent)
        except HoldfastError as error:
            sent.in_flight = False
            self._refused(sent, error)

    def _may_have_begun(self) -> bool:
        """Whether the Start frame is stored, or still may be."""
        place = self.place
        staged = self._shard.staged(place.name)
        if staged is None:
            return False
        if place.number and staged.number != place.number:
            # Another stream is about to have the name: the shard says so once that is durable.
            return True
        state = staged.producer_state(place.producer_id)
        return state is not None and state.epoch >= place.epoch

    def _data_is_missing(self) -> bool:
        """Whether Data frames ahead of the terminal frame were refused, and we are yet to hear it.

        Among themselves they have numbers without gaps, but the terminal frame starts anew.
        """
        place = self.place
        staged = self._shard.staged(place.name)
        if len(self._sent) == 1 or staged is None or staged.number != place.number:
            return False
        state = staged.producer_state(place.producer_id)
        return state is not None and state < self._sent[-2].producer[1:]

    def _replied(self, sent: _Sent, outcome: object) -> None:
        sent.in_flight = False
        if self._is_done:
            return
        if isinstance(outcome, HoldfastError):
            self._refused(sent, outcome)
            return
        sent.stored = self.has_begun = True
        self._failing_since_s = None
        self._retry_s = _RETRY_S
        if self.first_stored is not None and sent.producer.seq == 1:
            self.first_stored()
        while self._sent and self._sent[0].stored:
            self._sent_bytes -= len(self._sent.popleft().request.body)
        if not self.is_full:
            self._make_room()
        if self._ended and not self._sent:
            self._finish()

    def _refused(self, sent: _Sent, error: HoldfastError) -> None:
        """Something was not stored: it never will be, or it is sent again in a while."""
        if self._is_done or sent not in self._sent:
            return
        if not error.retryable and not isinstance(error, _PASSING):
            if not isinstance(error, _OVER):
                _log.error("response %d of %r: %s", self.place[1], self.place.name, error.message)
            self._finish()
            return
        now_s = self._clock.monotonic_s()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if self._retry_timer is None:
            self._retry_timer = self._clock.call_later(self._retry_s, self._retry)
            self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)
        is_late = not self._ended and now_s - self._failing_since_s > PATIENCE_S
        if is_late or isinstance(error, QuotaExceededError):
            self._on_failing(error)

    def _retry(self) -> None:
        self._retry_timer = None
        for sent in list(self._sent):
            if not sent.stored and not sent.in_flight:
                self._try(sent)
            if self.is_waiting or self._is_done:
                return

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _finish(self) -> None:
        """All is stored, or there is nowhere left to store it."""
        self._is_done = True
        self._ended = True
        self._chunks.clear()
        self._sent.clear()
        for timer in (self._flush_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._flush_timer = self._retry_timer = None
        self._make_room()
        # Nobody is called again: whoever holds this is held by these, and would never be freed.
        on_done, self._on_done = self._on_done, _nothing
        self._on_failing, self.first_stored = _ignore, None
        on_done()

    def cut(self) -> None:
        """The stream takes nothing any more: let go of what is left."""
        if not self._is_done:
            self._finish()


def _nothing() -> None:
    """It is over."""


def _ignore(_error: HoldfastError) -> None:
    """It is over."""
