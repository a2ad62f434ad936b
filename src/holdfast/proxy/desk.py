"""A desk: the responses of one stream that are under way, and the ids they get.

The stream knows the last id (its `Stream-Seq`) and which of its producers are in the middle of a
response (an even epoch); both are written with the Start frame. A document, written before it,
leads to the response after a crash; see `recovery.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.engine.writes import AppendRequest, CreateRequest, StreamAppended, StreamCreated
from holdfast.errors import (
    CommitUnknownError,
    HoldfastError,
    ProxyStorageError,
    ProxyStreamClosedError,
    ProxyStreamNotFoundError,
    StreamClosedError,
    StreamNotFoundError,
)
from holdfast.failpoints import failpoint
from holdfast.http.responses import result_of
from holdfast.protocol.content import DEFAULT
from holdfast.protocol.frames import encode_start
from holdfast.protocol.producer import Producer
from holdfast.proxy.recording import Place
from holdfast.proxy.response import Response
from holdfast.proxy.stream_ids import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.engine.stream import Stream

DOCUMENTS: Final = "proxy/"
encode_place = msgspec.msgpack.Encoder().encode
decode_place = msgspec.msgpack.Decoder(Place).decode


class Begun(msgspec.Struct, frozen=True):
    """A response whose Start frame is durable, and where that frame lies."""

    response: Response
    offset: int


class Desk:
    """The responses of one stream."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        stream_id: str,
        *,
        ttl_s: int | None,
        on_ended: Callable[[Response], None],
        on_idle: Callable[[Desk], None],
    ) -> None:
        self._shard = shard
        self._clock = clock
        self.stream_id = stream_id
        self.name = name_of(stream_id)
        self._ttl_s = ttl_s
        self._on_ended = on_ended
        self._on_idle = on_idle
        # By producer; the last ones may not have begun yet, and may never do.
        self.responses: dict[bytes, Response] = {}
        # Calls that have no response yet.
        self.calls: set[asyncio.Task[None]] = set()
        self._watched: Stream | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.responses and not self.calls

    async def begin(self, status: int, headers: Mapping[str, str], *, number: int | None) -> Begun:
        """Write the Start frame of a new response; it has its id once that is durable.

        The stream is the one with this number; None creates it.
        """
        place = self._next_place(number or 0)
        frame = encode_start(place.response_id, status, headers)
        response = Response(self._shard, self._clock, place, self._response_done)
        response.task = asyncio.current_task()
        self.responses[place.producer_id] = response
        try:
            outcome: StreamCreated | StreamAppended = await result_of(
                lambda done: self._start(place, frame, number is None, done)
            )
        except asyncio.CancelledError:
            # It is on its way already, and has to end as well.
            response.abort()
            raise
        except HoldfastError as error:
            if isinstance(error, CommitUnknownError):
                # The same, if it turns out to be stored.
                response.fail(ProxyStorageError(error.message))
            else:
                response.cut()
            raise _as_proxy_error(error, self.stream_id) from None
        assert isinstance(outcome, StreamCreated | StreamAppended)
        failpoint("proxy.begun")
        response.recording.place = place._replace(number=outcome.number)
        response.recording.has_begun = True
        self.watch()
        if self._watched is None:
            # Deleted before anybody could watch it.
            self.cut()
        return Begun(response, outcome.tail - len(frame))

    def _next_place(self, number: int) -> Place:
        """The next id, and a producer that nobody else writes as; pending ones count."""
        stream = self._shard.staged(self.name) if number else None
        slot = 0
        while (producer_id := b"proxy-%d" % slot) in self.responses:
            slot += 1
        state = None if stream is None else stream.producer_state(producer_id)
        epoch = 0 if state is None else (state.epoch // 2 + 1) * 2
        last = int(stream.seq) if stream is not None and stream.seq else 0
        return Place(self.name, last + 1, producer_id, epoch, number)

    def _start(self, place: Place, frame: bytes, creates: bool, done: Callable[..., None]) -> None:
        shard = self._shard
        producer = Producer(place.producer_id, place.epoch, 0)

        def reply(_context: object, outcome: object) -> None:
            done(outcome)

        # First, so that it is there if the Start frame is.
        shard.documents.commit({_key(self, place): encode_place(place)}, _ignore, None)
        if creates:
            asked = CreateRequest(
                DEFAULT, self._ttl_s, body=frame, producer=producer, seq=place.seq
            )
            shard.create(self.name, asked, reply, None)
        else:
            request = AppendRequest(frame, DEFAULT, producer=producer, seq=place.seq)
            shard.append_to(place.number, self.name, request, reply, None)
        failpoint("proxy.starting")

    def take_up(self, place: Place) -> Response:
        """A response that an earlier server left open."""
        response = Response(self._shard, self._clock, place, self._response_done)
        response.recording.has_begun = True
        self.responses[place.producer_id] = response
        return response

    def fail_all(self, error: HoldfastError) -> None:
        """End everything with an Error frame."""
        for task in list(self.calls):
            task.cancel()
        for response in list(self.responses.values()):
            response.fail(error)
            response.recording.hurry()

    def abort(self, response_id: int | None) -> list[Response]:
        """End one response or all of them, and the calls that have none yet; those it ended."""
        if response_id is None:
            for task in list(self.calls):
                task.cancel()
        ended = [
            response for response in self.responses.values() if response_id in {None, response.id}
        ]
        for response in ended:
            response.abort()
            # What comes next may be the stream's closure.
            response.recording.hurry()
        return ended

    # What happens to the stream.

    def watch(self) -> None:
        """Hear of the end of the stream, once it is there."""
        if self._watched is None:
            self._watched = self._shard.state.find(self.name)
            if self._watched is not None:
                self._shard.live.attend(self._watched, self)

    def wake(self) -> None:
        """The stream changed: if it is closed or gone, no response can go on."""
        stream = self._watched
        if stream is not None and (stream.closed or stream.gone):
            self._look_away()
            self.cut()

    def finish(self) -> None:
        """Nothing: whoever shuts the server down ends the responses."""

    def cut(self) -> None:
        """The stream takes nothing any more: end the upstreams."""
        for task in list(self.calls):
            task.cancel()
        for response in list(self.responses.values()):
            response.cut()

    def _response_done(self, response: Response) -> None:
        recording = response.recording
        failpoint("proxy.ended")
        del self.responses[recording.place.producer_id]
        self._forget(recording.place)
        if recording.has_begun:
            self._on_ended(response)
        self.rest()

    def rest(self) -> None:
        """If nothing is under way, nothing is to be kept."""
        if not self.is_idle:
            return
        self._look_away()
        self._on_idle(self)

    def _look_away(self) -> None:
        if self._watched is not None:
            self._shard.live.remove(self._watched, self)
            self._watched = None

    def _forget(self, place: Place) -> None:
        """It needs no help after a crash; if that is not written, it will be seen then."""
        with suppress(HoldfastError):
            self._shard.documents.commit({_key(self, place): None}, _ignore, None)


def _key(desk: Desk, place: Place) -> str:
    return f"{DOCUMENTS}{desk.stream_id}/{place.producer_id.decode()}"


def _ignore(_context: Any, _outcome: object) -> None:
    """What becomes of a document is seen at the next start."""


def _as_proxy_error(error: HoldfastError, stream_id: str) -> HoldfastError:
    """The error as the proxy's specification names it."""
    match error:
        case StreamClosedError():
            return ProxyStreamClosedError(error.tail)
        case StreamNotFoundError():
            return ProxyStreamNotFoundError(stream_id)
        case _:
            return ProxyStorageError(f"The stream could not be written: {error.message}")
