"""One response of an upstream on its way into its stream: in order, and every frame once.

Rules:

- Frames are numbered like a producer's appends, so that sending one again does no harm. Start and
  Data frames are numbers 0, 1, 2… of an even epoch, the terminal frame is number 0 of the odd epoch
  that follows. So the stream itself knows which responses have ended, and none can end twice.
- A chunk is written at once if nothing was written for `QUIET_S`. Otherwise it waits for more,
  until there are `BATCH_BYTES`, or `BATCH_S` have passed since the last frame. If the two times
  were the same, an upstream that sends one chunk in each would stay late after a single delay.
- A frame that the log refuses for now is sent again, with everything behind it. The terminal frame
  is sent until it is stored, or there is no stream left to store it in, but never ahead of Data
  frames: if those cannot be stored, an Error frame takes its place.
- Until the Start frame is known to be stored, only the terminal frame may follow it, and only if
  the Start frame turns out to be stored.
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
    OutboundError,
    ProducerFencedError,
    ProducerGapError,
    ProxyStorageError,
    QuotaExceededError,
    StreamClosedError,
    StreamDeletedError,
    UpstreamError,
    UpstreamTimeoutError,
)
from holdfast.protocol.content import DEFAULT
from holdfast.protocol.frames import (
    ABORT,
    COMPLETE,
    DATA,
    Outcome,
    encode_error,
    encode_frame,
)
from holdfast.protocol.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock, Timer
    from holdfast.engine.shard import Shard
    from holdfast.proxy.upstreams import UpstreamResponse

_log = logging.getLogger(__name__)
BATCH_BYTES: Final = 4096
BATCH_S: Final = 0.05
QUIET_S: Final = 0.025
# With more frames than this not yet durable the upstream has to wait.
WINDOW_BYTES: Final = 256 * 1024
# A larger chunk becomes several frames.
FRAME_BYTES_MAX: Final = 64 * 1024
_RETRY_S: Final = 0.1
_RETRY_S_MAX: Final = 5.0
# How long the log may refuse before the response is given up.
PATIENCE_S: Final = 30.0
# The stream is gone; or the terminal frame is stored, and so is everything before it.
_OVER: Final = (NotFoundError, StreamClosedError, StreamDeletedError, ProducerFencedError)
# A full bucket may have room again; a gap is the consequence of an earlier refusal.
_PASSING: Final = (QuotaExceededError, ProducerGapError)


class ResponseLocation(NamedTuple):
    """Where a response is recorded: its stream, its id there, and the producer it writes as."""

    name: str
    response_id: int
    producer_id: bytes
    # Even; the terminal frame has the next epoch.
    epoch: int
    # The stream's number; 0 where it is not known.
    number: int = 0

    @property
    def seq(self) -> bytes:
        """The `Stream-Seq` of the Start frame: the stream keeps the last response's id."""
        return b"%010d" % self.response_id


class _Sent:
    """A frame and its state."""

    __slots__ = ("in_flight", "is_end", "producer", "request", "stored")

    def __init__(self, frame: bytes, producer: Producer, *, is_end: bool) -> None:
        # The terminal frame may exceed the quota: otherwise a full bucket could not be reported.
        self.request = AppendRequest(frame, DEFAULT, producer=producer, over_quota=is_end)
        self.producer = producer
        self.is_end = is_end
        self.in_flight = False
        self.stored = False


class Recording:
    """Writes the frames of one response after its Start frame."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        location: ResponseLocation,
        *,
        on_failing: Callable[[HoldfastError], None],
        on_done: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._clock = clock
        self.location = location
        # `on_failing` is called when the stream takes no more Data frames, and has to call `end`
        # with `drop`; `on_done` once nothing is left to do.
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

    def write(self, chunk: bytes) -> None:
        """Record a piece of the body."""
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
        """Write the gathered chunks."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if not self._chunks:
            return
        chunks, self._chunks = self._chunks, []
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunk_bytes = 0
        self._flushed_s = self._clock.monotonic_s()
        location = self.location
        for at in range(0, len(data), FRAME_BYTES_MAX):
            if self._ended:
                # The stream refused a frame of this loop.
                return
            frame = encode_frame(DATA, location.response_id, data[at : at + FRAME_BYTES_MAX])
            self._send(frame, Producer(location.producer_id, location.epoch, self._next_seq))
            self._next_seq += 1

    def end(self, frame: bytes, *, drop: bool = False) -> None:
        """Write the terminal frame after everything else.

        `drop` discards what is not stored yet, an earlier terminal frame included.
        """
        assert drop or not self._ended, "a response ends once"
        if drop:
            # Frames in flight may still be stored, but none is sent again.
            self._chunks.clear()
            self._sent.clear()
            self._sent_bytes = 0
        else:
            self.flush()
            if self._ended:
                # The stream refused that, and the response has ended.
                return
        self._ended = True
        producer = Producer(self.location.producer_id, self.location.epoch + 1, 0)
        self._send(frame, producer, is_end=True)

    @property
    def is_full(self) -> bool:
        return self._sent_bytes > WINDOW_BYTES

    @property
    def is_waiting(self) -> bool:
        """Whether a frame was refused and waits to be sent again."""
        return self._retry_timer is not None

    def hurry(self) -> None:
        """Send refused frames again now."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry()

    async def room(self) -> None:
        """Wait until there is room for more."""
        while self.is_full and not self._is_done:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

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
        name, number = self.location.name, self.location.number
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
        location = self.location
        staged = self._shard.staged(location.name)
        if staged is None:
            return False
        if location.number and staged.number != location.number:
            # Another stream is about to take the name: the shard says so once that is durable.
            return True
        state = self._shard.producer_state(staged, location.producer_id)
        return state is not None and state.epoch >= location.epoch

    def _data_is_missing(self) -> bool:
        """Whether Data frames ahead of the terminal frame were refused without our knowing yet.

        Among Data frames a gap in the numbers shows that, but the terminal frame starts anew.
        """
        location = self.location
        staged = self._shard.staged(location.name)
        if len(self._sent) == 1 or staged is None or staged.number != location.number:
            return False
        state = self._shard.producer_state(staged, location.producer_id)
        return state is not None and state[:2] < self._sent[-2].producer[1:3]

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
        if self._room is not None and not self.is_full:
            self._make_room()
        if self._ended and not self._sent:
            self._finish()

    def _refused(self, sent: _Sent, error: HoldfastError) -> None:
        """A frame was not stored: give up, or send it again later."""
        if self._is_done or sent not in self._sent:
            return
        if not error.retryable and not isinstance(error, _PASSING):
            if not isinstance(error, _OVER):
                _log.error(
                    "response %d of %r: %s",
                    self.location.response_id,
                    self.location.name,
                    error.message,
                )
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
        """Everything is stored, or there is nowhere left to store it."""
        self._is_done = True
        self._ended = True
        self._chunks.clear()
        self._sent.clear()
        for timer in (self._flush_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._flush_timer = self._retry_timer = None
        self._make_room()
        # Without these references there is no cycle, and everything is freed at once.
        on_done, self._on_done = self._on_done, _ignore
        self._on_failing, self.first_stored = _ignore, None
        on_done()

    def cut(self) -> None:
        """The stream accepts nothing any more: drop what is left."""
        if not self._is_done:
            self._finish()


def _ignore(*_arguments: object) -> None: ...


class ProxiedResponse:
    """A response from its Start frame until its terminal frame is stored, or never can be."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        location: ResponseLocation,
        on_done: Callable[[ProxiedResponse], None],
    ) -> None:
        self.id = location.response_id
        self.recording = Recording(
            shard, clock, location, on_failing=self._store_failed, on_done=self._stored
        )
        self._on_done = on_done
        # How it ended, once that is decided; None as well if the stream went away first.
        self.outcome: Outcome | None = None
        self.body_bytes = 0
        self._bytes_max = 0
        self.task: asyncio.Task[None] | None = None
        self.done = asyncio.Event()

    async def record(self, upstream: UpstreamResponse, *, bytes_max: int, silence_s: float) -> None:
        """Record the body as it arrives, to its end."""
        self._bytes_max = bytes_max
        try:
            await upstream.deliver(self._take, self._room)
        except OutboundError as error:
            if error.late:
                self.fail(UpstreamTimeoutError(f"Upstream did not send data for {silence_s:g} s."))
            else:
                self.fail(UpstreamError(error.message))
        except Exception:
            self.fail(HoldfastError("The server has a defect here; its log says more."))
            raise
        else:
            self._end(Outcome.COMPLETE, encode_frame(COMPLETE, self.id))

    def _take(self, piece: bytes) -> bool:
        """Record a piece; whether the next one may follow at once."""
        room = self._bytes_max - self.body_bytes
        taken = piece if len(piece) <= room else piece[:room]
        self.body_bytes += len(taken)
        self.recording.write(taken)
        if taken is not piece:
            self.fail(UpstreamError(f"The response exceeds {self._bytes_max} bytes."))
        return self.outcome is None and not self.done.is_set() and not self.recording.is_full

    async def _room(self) -> bool:
        """Wait until more can be recorded; False if the response has ended instead."""
        if self.outcome is None:
            await self.recording.room()
        return self.outcome is None and not self.done.is_set()

    def abort(self) -> None:
        """End with an Abort frame; what has arrived is kept."""
        self._end(Outcome.ABORTED, encode_frame(ABORT, self.id))
        self._cancel()

    def fail(self, error: HoldfastError) -> None:
        """End with an Error frame; what has arrived is kept."""
        self._end(Outcome.FAILED, encode_error(self.id, error.code, error.message))
        self._cancel()

    def cut(self) -> None:
        """The stream is closed or gone, so no terminal frame can be written."""
        self.recording.cut()
        self._cancel()

    def _end(self, outcome: Outcome, frame: bytes) -> None:
        if self.outcome is None and not self.done.is_set():
            self.outcome = outcome
            self.recording.end(frame)

    def _cancel(self) -> None:
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    def _store_failed(self, error: HoldfastError) -> None:
        """The stream refuses what has arrived; that replaces any other outcome."""
        self.outcome = Outcome.FAILED
        message = f"The stream takes no more: {error.message}"
        self.recording.end(encode_error(self.id, ProxyStorageError.code, message), drop=True)
        self._cancel()

    def _stored(self) -> None:
        self.done.set()
        if self.outcome is None:
            self._cancel()
        self._on_done(self)
