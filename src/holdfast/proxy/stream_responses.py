"""The responses of one stream that are under way, and the ids they get.

The stream knows the last id (its `Stream-Seq`) and which of its producers are in the middle of a
response (an even epoch); both are written with the Start frame. A document that is written before
it leads to the response after a crash: the next server ends it with an Error frame.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

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
    UpstreamError,
)
from holdfast.failpoints import failpoint
from holdfast.http.responses import result_of
from holdfast.protocol.content import DEFAULT
from holdfast.protocol.frames import encode_start
from holdfast.protocol.producer import Producer
from holdfast.proxy.access import name_of
from holdfast.proxy.recording import ProxiedResponse, ResponseLocation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.engine.stream import Stream

_log = logging.getLogger(__name__)
DOCUMENTS: Final = "proxy/"
encode_location = msgspec.msgpack.Encoder().encode
decode_location = msgspec.msgpack.Decoder(ResponseLocation).decode


class StreamResponses:
    """Kept as long as anything is under way for the stream."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        stream_id: str,
        *,
        ttl_s: int | None,
        on_ended: Callable[[ProxiedResponse], None],
        on_idle: Callable[[StreamResponses], None],
    ) -> None:
        self._shard = shard
        self._clock = clock
        self.stream_id = stream_id
        self.name = name_of(stream_id)
        self._ttl_s = ttl_s
        self._on_ended = on_ended
        self._on_idle = on_idle
        # By producer; those whose Start frame is on its way are included.
        self.responses: dict[bytes, ProxiedResponse] = {}
        # Calls that have no response yet.
        self.calls: set[asyncio.Task[None]] = set()
        self._watched: Stream | None = None

    async def begin(
        self, status: int, headers: Mapping[str, str], *, number: int | None
    ) -> tuple[ProxiedResponse, int]:
        """Write the Start frame of a new response; returns, once it is durable, its offset too.

        `number` is the stream's number; None creates the stream.
        """
        location = self._next_location(number or 0)
        frame = encode_start(location.response_id, status, headers)
        response = self.open(location)
        response.task = asyncio.current_task()
        try:
            outcome: StreamCreated | StreamAppended = await result_of(
                lambda done: self._start(location, frame, number is None, done)
            )
        except asyncio.CancelledError:
            # The Start frame is on its way already, and needs a terminal frame.
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
        response.recording.location = location._replace(number=outcome.number)
        response.recording.has_begun = True
        self.watch()
        if self._watched is None:
            # The stream was deleted in the meantime.
            self.cut()
        return response, outcome.tail - len(frame)

    def _next_location(self, number: int) -> ResponseLocation:
        """The next id, and a producer that no other response writes as."""
        stream = self._shard.staged(self.name) if number else None
        slot = 0
        while (producer_id := b"proxy-%d" % slot) in self.responses:
            slot += 1
        state = None if stream is None else self._shard.producer_state(stream, producer_id)
        epoch = 0 if state is None else (state.epoch // 2 + 1) * 2
        last = int(stream.seq) if stream is not None and stream.seq else 0
        return ResponseLocation(self.name, last + 1, producer_id, epoch, number)

    def _start(
        self, location: ResponseLocation, frame: bytes, creates: bool, done: Callable[..., None]
    ) -> None:
        shard = self._shard
        producer = Producer(location.producer_id, location.epoch, 0)

        def reply(_context: object, outcome: object) -> None:
            done(outcome)

        # Before the Start frame, so that it is there if the frame is.
        shard.documents.commit({self._key(location): encode_location(location)}, _ignore, None)
        if creates:
            creation = CreateRequest(
                DEFAULT, self._ttl_s, body=frame, producer=producer, seq=location.seq
            )
            shard.create(self.name, creation, reply, None)
        else:
            request = AppendRequest(frame, DEFAULT, producer=producer, seq=location.seq)
            shard.append_to(location.number, self.name, request, reply, None)
        failpoint("proxy.starting")

    def open(self, location: ResponseLocation) -> ProxiedResponse:
        response = ProxiedResponse(self._shard, self._clock, location, self._response_done)
        self.responses[location.producer_id] = response
        return response

    def fail_all(self, error: HoldfastError) -> None:
        """End everything with an Error frame."""
        self._cancel_calls()
        for response in list(self.responses.values()):
            response.fail(error)
            response.recording.hurry()

    def abort(self, response_id: int | None) -> list[ProxiedResponse]:
        """End one response, or all and the calls without one; returns the responses that end."""
        if response_id is None:
            self._cancel_calls()
        ended = [
            response for response in self.responses.values() if response_id in {None, response.id}
        ]
        for response in ended:
            response.abort()
            # The next write may close the stream.
            response.recording.hurry()
        return ended

    def cut(self) -> None:
        """The stream takes nothing any more: end the upstreams."""
        self._cancel_calls()
        for response in list(self.responses.values()):
            response.cut()

    def _cancel_calls(self) -> None:
        for task in list(self.calls):
            task.cancel()

    # A live reader of the stream.

    def watch(self) -> None:
        """Learn of the stream's end, if it exists by now."""
        if self._watched is None:
            self._watched = self._shard.state.find(self.name)
            if self._watched is not None:
                self._shard.live.attend(self._watched, self)

    def wake(self) -> None:
        """The stream changed: no response can go on if it is closed or gone."""
        stream = self._watched
        if stream is not None and (stream.closed or stream.gone):
            self._unwatch()
            self.cut()

    def finish(self) -> None:
        """The server ends; `fail_all` is called for that."""

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._shard.live.remove(self._watched, self)
            self._watched = None

    def _response_done(self, response: ProxiedResponse) -> None:
        recording = response.recording
        failpoint("proxy.ended")
        del self.responses[recording.location.producer_id]
        # If this is not written, the next start finds that the response has ended.
        with suppress(HoldfastError):
            self._shard.documents.commit({self._key(recording.location): None}, _ignore, None)
        if recording.has_begun:
            self._on_ended(response)
        self.close_if_idle()

    def close_if_idle(self) -> None:
        if not self.responses and not self.calls:
            self._unwatch()
            self._on_idle(self)

    def _key(self, location: ResponseLocation) -> str:
        return f"{DOCUMENTS}{self.stream_id}/{location.producer_id.decode()}"


def _ignore(_context: object, _outcome: object) -> None: ...


def _as_proxy_error(error: HoldfastError, stream_id: str) -> HoldfastError:
    """The error as the proxy's specification names it."""
    match error:
        case StreamClosedError():
            return ProxyStreamClosedError(error.tail)
        case StreamNotFoundError():
            return ProxyStreamNotFoundError(stream_id)
        case _:
            return ProxyStorageError(f"The stream could not be written: {error.message}")


def end_open_responses(shard: Shard, responses_of: Callable[[str], StreamResponses]) -> int:
    """End what an earlier server left open with Error frames; returns the number of responses."""
    stale: dict[str, bytes | None] = {}
    ended = 0
    for key, value in list(shard.documents.items(DOCUMENTS)):
        location = decode_location(value)
        number = _open_in(shard, location)
        if number is None:
            stale[key] = None
            continue
        responses = responses_of(location.name.partition("/")[2])
        response = responses.open(location._replace(number=number))
        response.recording.has_begun = True
        response.fail(UpstreamError("The server ended before the upstream's response did."))
        responses.watch()
        ended += 1
        failpoint("proxy.recovering")
    if stale:
        # If this is not written, they are stale the next time as well.
        with suppress(HoldfastError):
            shard.documents.commit(stale, _ignore, None)
    if ended:
        _log.warning("%d responses of upstreams were cut off by the end of the server", ended)
    return ended


def _open_in(shard: Shard, location: ResponseLocation) -> int | None:
    """The number of the stream that holds the response unended; None if there is none."""
    stream = shard.state.find(location.name)
    if stream is None or stream.gone or stream.closed:
        return None
    if location.number and stream.number != location.number:
        return None
    state = shard.state.find_producer(stream, location.producer_id)
    return stream.number if state is not None and state.epoch == location.epoch else None
