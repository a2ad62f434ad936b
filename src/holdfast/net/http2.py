"""An HTTP/2 connection, as the pool drives it.

The pool has one of its own. There, whichever answer is waited for first reads for all the others,
which learn of what came for them only when their turn comes: good for short answers, but one that
lasts stands still while its neighbours do. It does not tell the server either that nobody waits for
an answer any more. So this one is for answers that last.

Rules:

- One task reads for all answers. What comes wakes the one it is for.
- Who leaves an answer before its end resets it, so that the server stops, too.
- A server that wants to go (GOAWAY without an error) gets no new requests, and may finish those it
  has. A request that it has not looked at counts as never sent.
- Silence ends one answer, not its neighbours. But a connection on which nothing came for a while
  after a request gets no further ones: it may be dead without anybody having said so.
- Closing never waits, so that there is nothing for a cancelled task to leave half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import httpcore

from holdfast.net.http2_answers import Answer, NotTakenError
from holdfast.net.sockets import SocketStream, wake, within

# How much of one answer the server may send before it is taken, and of all together.
ANSWER_WINDOW_BYTES: Final = 1024 * 1024
_CONNECTION_WINDOW_BYTES: Final = 16 * 1024 * 1024
# After a request that has had no reaction for so long, others go elsewhere.
REACTION_S: Final = 10.0
# A server that asks for this much in reply, and takes none of it, is left.
_UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
_READ_BYTES: Final = 64 * 1024
_HEADER_LIST_BYTES_MAX: Final = 64 * 1024
# They are about an HTTP/1.1 connection. The host has a field of its own.
_LEFT_OUT: Final = frozenset(
    {b"host", b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class _State(h2.connection.H2Connection):
    """Takes a server's good-bye for what it is: no end of what has begun."""

    def _receive_goaway_frame(self, frame: Any) -> Any:
        if frame.error_code != h2.errors.ErrorCodes.NO_ERROR:
            return super()._receive_goaway_frame(frame)
        event = h2.events.ConnectionTerminated()
        event.error_code = h2.errors.ErrorCodes.NO_ERROR
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class Http2Connection(httpcore.AsyncConnectionInterface):
    """One connection, for many requests at a time."""

    def __init__(self, origin: httpcore.Origin, stream: SocketStream, keep_alive_s: float) -> None:
        self._origin = origin
        self._stream = stream
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, Answer] = {}
        self._is_leaving = False
        self._is_closed = False
        self._expires_at = self._loop.time() + keep_alive_s
        # When the first of the requests was sent that nothing has come after yet.
        self._asked_at: float | None = None
        # How many requests the server takes at a time is known once its settings came.
        self._settled = self._loop.create_future()
        self._state = _State(h2.config.H2Configuration(validate_inbound_headers=False))
        self._begin()
        self._reading = asyncio.create_task(self._read_on())

    def _begin(self) -> None:
        codes = h2.settings.SettingCodes
        settings = h2.settings.Settings(
            client=True,
            initial_values={
                codes.ENABLE_PUSH: 0,
                codes.INITIAL_WINDOW_SIZE: ANSWER_WINDOW_BYTES,
                codes.MAX_HEADER_LIST_SIZE: _HEADER_LIST_BYTES_MAX,
            },
        )
        # Some servers do not pass over what they do not know, as they should.
        del settings[codes.ENABLE_CONNECT_PROTOCOL]
        self._state.local_settings = settings
        self._state.initiate_connection()
        self._state.increment_flow_control_window(_CONNECTION_WINDOW_BYTES)
        self._post()

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        """Send a request and wait for the head of its answer."""
        limits = request.extensions.get("timeout", {})
        if self._answers and not self._settled.done():
            waiting = self._loop.create_future()
            self._settled.add_done_callback(lambda _: wake(waiting))
            await within(waiting, limits.get("pool"), httpcore.PoolTimeout)
        if not self.is_available():
            raise httpcore.ConnectionNotAvailable
        answer = self._ask(request, limits)
        try:
            await self._send_body(request, answer)
            while answer.head is None and not answer.is_over:
                await answer.news("read", httpcore.ReadTimeout)
            return self._response(answer)
        except BaseException:
            self._leave(answer)
            raise

    def _ask(self, request: httpcore.Request, limits: dict[str, float | None]) -> Answer:
        fields = [(name.lower(), value) for name, value in request.headers]
        head = [
            (b":method", request.method),
            (b":authority", next(value for name, value in fields if name == b"host")),
            (b":scheme", request.url.scheme),
            (b":path", request.url.target),
            *((name, value) for name, value in fields if name not in _LEFT_OUT),
        ]
        has_body = any(name in {b"content-length", b"transfer-encoding"} for name, _ in fields)
        try:
            answer = Answer(self._state.get_next_available_stream_id(), limits)
            self._state.send_headers(answer.stream_id, head, end_stream=not has_body)
        except h2.exceptions.NoAvailableStreamIDError:
            self._take_no_more()
            raise httpcore.ConnectionNotAvailable from None
        except h2.exceptions.ProtocolError as error:
            # Half a head may have changed the table that heads are compressed with.
            self._take_no_more()
            raise httpcore.LocalProtocolError("The head cannot be sent.") from error
        answer.sent = not has_body
        self._answers[answer.stream_id] = answer
        if self._asked_at is None:
            self._asked_at = self._loop.time()
        self._post()
        return answer

    async def _send_body(self, request: httpcore.Request, answer: Answer) -> None:
        if answer.sent:
            return
        assert hasattr(request.stream, "__aiter__")
        async for piece in request.stream:
            await self._send_piece(piece, answer)
            if answer.is_over:
                break
        if not answer.is_over:
            self._state.end_stream(answer.stream_id)
            answer.sent = True
            self._post()

    async def _send_piece(self, piece: bytes, answer: Answer) -> None:
        state = self._state
        while piece and not answer.is_over:
            window = state.local_flow_control_window(answer.stream_id)
            room = min(window, state.max_outbound_frame_size)
            if room <= 0:
                await answer.news("write", httpcore.WriteTimeout)
                continue
            state.send_data(answer.stream_id, piece[:room])
            piece = piece[room:]
            await self._stream.write(state.data_to_send(), answer.limits.get("write"))

    def _response(self, answer: Answer) -> httpcore.Response:
        if answer.head is None:
            raise answer.error()
        status = next((value for name, value in answer.head if name == b":status"), b"")
        if len(status) != 3 or not status.isdigit():
            raise httpcore.RemoteProtocolError("The answer has no status.")
        return httpcore.Response(
            int(status),
            headers=[(name, value) for name, value in answer.head if name[:1] != b":"],
            content=_Content(self, answer),
            extensions={"http_version": b"HTTP/2", "network_stream": self._stream},
        )

    async def _content(self, answer: Answer) -> AsyncIterator[bytes]:
        while True:
            while answer.pieces:
                piece, size = answer.pieces.popleft()
                if size and not self._is_closed:
                    self._state.acknowledge_received_data(size, answer.stream_id)
                    self._post()
                if piece:
                    yield piece
            if answer.failure is not None:
                raise answer.error()
            if answer.ended:
                return
            await answer.news("read", httpcore.ReadTimeout)

    def _leave(self, answer: Answer) -> None:
        """Nobody waits for the answer any more, or it is complete."""
        if self._answers.pop(answer.stream_id, None) is None:
            return
        unread = sum(size for _, size in answer.pieces)
        answer.pieces.clear()
        with suppress(h2.exceptions.ProtocolError):  # the server has closed it already
            if unread:
                self._state.acknowledge_received_data(unread, answer.stream_id)
            if answer.failure is None and not (answer.ended and answer.sent):
                self._state.reset_stream(answer.stream_id, h2.errors.ErrorCodes.CANCEL)
        answer.fail(httpcore.ReadError("The answer was left."))
        self._post()
        self._expires_at = self._loop.time() + self._keep_alive_s
        if self._is_leaving:
            self._take_no_more()

    def _take_no_more(self) -> None:
        """Finish what is under way, and close."""
        self._is_leaving = True
        if not self._answers:
            self._close(httpcore.ReadError("The connection is closed."))

    async def _read_on(self) -> None:
        try:
            while data := await self._stream.read(_READ_BYTES):
                self._asked_at = None
                for event in self._state.receive_data(data):
                    self._take(event)
                if self._is_closed:
                    return
                # Without waiting for room: the server may be waiting itself, to be read from.
                self._post()
                if self._stream.unsent_bytes > _UNSENT_BYTES_MAX:
                    break
            self._close(httpcore.RemoteProtocolError("The server hung up, or takes nothing."))
        except httpcore.NetworkError as error:
            self._close(error)
        except Exception as error:  # noqa: BLE001 (whatever it is, all answers wait for this task)
            broken = httpcore.RemoteProtocolError("What came is no HTTP/2.")
            broken.__cause__ = error
            self._close(broken)

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            answer = self._answers.get(event.stream_id)
            if answer is not None:
                answer.pieces.append((event.data or b"", event.flow_controlled_length or 0))
                wake(answer.waiting)
        elif isinstance(event, h2.events.ResponseReceived):
            if (answer := self._answers.get(event.stream_id)) is not None:
                answer.head = list(event.headers or ())
                wake(answer.waiting)
        elif isinstance(event, h2.events.StreamEnded):
            if (answer := self._answers.get(event.stream_id)) is not None:
                answer.ended = True
                wake(answer.waiting)
        elif isinstance(event, h2.events.StreamReset):
            if (answer := self._answers.get(event.stream_id)) is not None:
                answer.reset(event.error_code)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._say_good_bye(event)
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            if not self._settled.done() and isinstance(event, h2.events.RemoteSettingsChanged):
                self._settled.set_result(None)
            for answer in self._answers.values():
                # To the others it is no news, and their silence goes on.
                if not answer.sent:
                    wake(answer.waiting)

    def _say_good_bye(self, event: h2.events.ConnectionTerminated) -> None:
        last = event.last_stream_id or 0
        for answer in self._answers.values():
            if answer.stream_id > last:
                answer.fail(NotTakenError("It can be sent again."))
        if event.error_code != h2.errors.ErrorCodes.NO_ERROR:
            self._close(httpcore.RemoteProtocolError("The server has given the connection up."))
        self._take_no_more()

    def _post(self) -> None:
        if (data := self._state.data_to_send()) and not self._is_closed:
            self._stream.post(data)

    def _close(self, failure: Exception) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for answer in self._answers.values():
            answer.fail(failure)
        if not self._settled.done():
            self._settled.set_result(None)
        self._reading.cancel()
        self._stream.close()

    async def aclose(self) -> None:
        """Close at once; answers under way fail."""
        self._close(httpcore.ReadError("The connection is closed."))

    def can_handle_request(self, origin: httpcore.Origin) -> bool:
        """Whether it leads where a request is to go."""
        return origin == self._origin

    def is_available(self) -> bool:
        """Whether it takes another request now."""
        if self._is_closed or self._is_leaving:
            return False
        if self._asked_at is not None and self._loop.time() - self._asked_at > REACTION_S:
            return False
        return len(self._answers) < self._state.remote_settings.max_concurrent_streams

    def has_expired(self) -> bool:
        """Whether it was idle for too long."""
        return not self._answers and self._loop.time() > self._expires_at

    def is_idle(self) -> bool:
        """Whether it has no request under way."""
        return not self._answers

    def is_closed(self) -> bool:
        """Whether it is of no use any more."""
        return self._is_closed

    def info(self) -> str:
        """For those who look at a pool."""
        return f"HTTP/2, {len(self._answers)} requests under way"


class _Content:
    """An answer's body, as the pool takes it."""

    def __init__(self, connection: Http2Connection, answer: Answer) -> None:
        self._connection = connection
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._connection._content(self._answer):
            yield piece

    async def aclose(self) -> None:
        self._connection._leave(self._answer)
