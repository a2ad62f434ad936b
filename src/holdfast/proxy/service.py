"""The proxy's operations: create, append, connect, abort, close.

A POST is a task of its own that lives as long as the upstream's response does: it calls, answers
its client once the Start frame is durable, and then records the body. Its client may leave at any
time; only an abort, the end of the stream or the end of the server end it early.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.writes import CreateRequest, StreamCreated
from holdfast.errors import (
    ConnectRejectedError,
    HoldfastError,
    ProxyStorageError,
    ProxyStreamClosedError,
    ProxyStreamNotFoundError,
    StreamExistsError,
    StreamNotFoundError,
    UnavailableError,
    UpstreamError,
)
from holdfast.http.responses import respond_error, result_of
from holdfast.protocol.content import DEFAULT
from holdfast.protocol.headers import header_value
from holdfast.proxy.admission import Admission
from holdfast.proxy.counters import ProxyCounters
from holdfast.proxy.desk import Desk
from holdfast.proxy.recovery import end_open_responses
from holdfast.proxy.stream_ids import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.http.exchange import Request, Slot
    from holdfast.proxy.asking import UpstreamRequest
    from holdfast.proxy.fetching import Upstreams
    from holdfast.proxy.response import Response
    from holdfast.settings import ProxySettings

    # The fields of a successful answer that lead to the stream.
    Locate = Callable[[str], bytes]

_log = logging.getLogger(__name__)
ABORT_TIMEOUT_S: Final = 15.0


class ProxyService:
    """All responses under way."""

    def __init__(
        self, shard: Shard, clock: Clock, settings: ProxySettings, upstreams: Upstreams
    ) -> None:
        self._shard = shard
        self._clock = clock
        self._settings = settings
        self.upstreams = upstreams
        self._admission = Admission(settings.upstreams_max, settings.client_upstreams_max)
        self.counters = ProxyCounters(self._admission)
        self._desks: dict[str, Desk] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Those that wait for somebody's approval.
        self._asking: set[asyncio.Task[None]] = set()
        self._stopped = False

    # Life.

    def start(self) -> None:
        """End what an earlier server left open."""
        end_open_responses(self._shard, self._desk)

    def stop(self) -> None:
        """Call nobody any more, and end every response with an Error frame."""
        self._stopped = True
        for task in list(self._asking):
            task.cancel()
        error = UpstreamError("The server is shutting down.")
        for desk in list(self._desks.values()):
            desk.fail_all(error)

    async def close(self) -> None:
        """Let go of every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.upstreams.aclose()

    def _desk(self, stream_id: str) -> Desk:
        desk = self._desks.get(stream_id)
        if desk is None:
            desk = self._desks[stream_id] = Desk(
                self._shard,
                self._clock,
                stream_id,
                ttl_s=self._ttl_s,
                on_ended=self.counters.ended,
                on_idle=self._desk_is_idle,
            )
        return desk

    @property
    def _ttl_s(self) -> int | None:
        return self._settings.stream_ttl_s or None

    def _desk_is_idle(self, desk: Desk) -> None:
        if self._desks.get(desk.stream_id) is desk:
            del self._desks[desk.stream_id]

    # Requests.

    def spawn(self, work: Coroutine[Any, Any, None], request: Request, slot: Slot) -> None:
        """Do work that answers later, and goes on if its client leaves."""
        task = asyncio.get_running_loop().create_task(_answering(work, request, slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def respond(
        self,
        request: Request,
        slot: Slot,
        asked: UpstreamRequest,
        locate: Locate,
        *,
        client: str,
        stream_id: str,
        number: int | None,
    ) -> None:
        """Call the upstream and record its response; `number` is None for a new stream."""
        started_s = self._clock.monotonic_s()
        if self._stopped:
            raise UnavailableError("The server is shutting down.")
        task = asyncio.current_task()
        assert task is not None, "a request is a task"
        desk = self._desk(stream_id)
        desk.calls.add(task)
        if number is not None:
            desk.watch()
        response: Response | None = None
        try:
            with self._admission.one(client):
                async with self.upstreams.call(asked, request) as answer:
                    self.counters.header_us.observe_s(self._clock.monotonic_s() - started_s)
                    begun = await desk.begin(answer.status, answer.headers, number=number)
                    response = begun.response
                    desk.calls.discard(task)
                    response.recording.first_stored = lambda: self._first_frame(started_s)
                    # The upstream may have answered without having taken it all.
                    request.abandon_body(slot)
                    slot.respond(
                        201 if number is None else 200,
                        locate(stream_id)
                        + b"Upstream-Content-Type: %b\r\nStream-Response-Id: %d\r\n"
                        b"Stream-Start-Offset: %020d\r\nCache-Control: no-store\r\n"
                        % (header_value(answer.content_type), response.id, begun.offset),
                    )
                    await response.pump(
                        answer.pieces,
                        bytes_max=self._settings.response_bytes_max,
                        silence_s=self._settings.inactivity_timeout_s,
                    )
        except asyncio.CancelledError:
            # A response ends by itself; before there is one its client is still waiting.
            if response is None:
                raise self._why_cancelled(stream_id, number) from None
        finally:
            desk.calls.discard(task)
            desk.rest()

    def _why_cancelled(self, stream_id: str, number: int | None) -> HoldfastError:
        if self._stopped:
            return UnavailableError("The server is shutting down.")
        stream = self._shard.staged(name_of(stream_id))
        if stream is None or stream.gone or number not in {None, stream.number}:
            return ProxyStreamNotFoundError(stream_id)
        if stream.closed:
            return ProxyStreamClosedError(stream.tail)
        return UpstreamError("The call was aborted before the upstream had answered.")

    def _first_frame(self, started_s: float) -> None:
        self.counters.first_frame_us.observe_s(self._clock.monotonic_s() - started_s)

    async def connect(
        self,
        request: Request,
        slot: Slot,
        asked: UpstreamRequest | None,
        locate: Locate,
        *,
        client: str,
        stream_id: str,
    ) -> None:
        """Lead to a session's stream, which is created if there is none; nobody writes to it."""
        if asked is None:
            async for _ in request.pieces():
                pass
        else:
            await self._approval(asked, request, client)
        created = await self._ensure(stream_id)
        request.abandon_body(slot)
        slot.respond(201 if created else 200, locate(stream_id) + b"Cache-Control: no-store\r\n")

    async def _approval(self, asked: UpstreamRequest, request: Request, client: str) -> None:
        """Ask somebody whether a session may be connected to; raises if not."""
        if self._stopped:
            raise UnavailableError("The server is shutting down.")
        task = asyncio.current_task()
        assert task is not None, "a request is a task"
        self._asking.add(task)
        try:
            with self._admission.one(client):
                refusal = await self.upstreams.approves(asked, request)
        except asyncio.CancelledError:
            raise UnavailableError("The server is shutting down.") from None
        finally:
            self._asking.discard(task)
        if refusal:
            raise ConnectRejectedError(f"The session was not approved. {refusal}")

    async def _ensure(self, stream_id: str) -> bool:
        """See to it that a session's stream is there; whether it is new."""
        name = name_of(stream_id)
        try:
            self._shard.lifetimes.renew(self._shard.find(name))
        except StreamNotFoundError:
            pass
        else:
            return False
        asked = CreateRequest(DEFAULT, self._ttl_s)

        def create(done: Callable[..., None]) -> None:
            self._shard.create(name, asked, lambda _context, outcome: done(outcome), None)

        try:
            outcome = await result_of(create)
        except StreamExistsError:
            return False
        except HoldfastError as error:
            raise ProxyStorageError(f"The stream was not created: {error.message}") from None
        assert isinstance(outcome, StreamCreated)
        return outcome.created

    def find_open(self, stream_id: str) -> int:
        """The number of a stream that takes responses; raises if there is none, or it is closed."""
        try:
            stream = self._shard.find(name_of(stream_id))
        except StreamNotFoundError:
            raise ProxyStreamNotFoundError(stream_id) from None
        if stream.closed:
            raise ProxyStreamClosedError(stream.tail)
        return stream.number

    async def abort(self, stream_id: str, response_id: int | None) -> None:
        """End responses; returns once that is durable."""
        desk = self._desks.get(stream_id)
        if desk is None:
            return
        ended = desk.abort(response_id)
        await _all_done(ended)

    def abort_all(self, stream_id: str) -> None:
        """End all responses of a stream ahead of what is written to it next, or raise."""
        desk = self._desks.get(stream_id)
        if desk is not None and any(each.recording.is_waiting for each in desk.abort(None)):
            raise UnavailableError("Responses of this stream have not ended yet. Try again later.")


async def _all_done(responses: list[Response]) -> None:
    try:
        async with asyncio.timeout(ABORT_TIMEOUT_S):
            for response in responses:
                await response.done.wait()
    except TimeoutError:
        raise ProxyStorageError(
            "The upstreams were cancelled, but that is not stored yet: the log takes nothing now."
        ) from None


async def _answering(work: Coroutine[Any, Any, None], request: Request, slot: Slot) -> None:
    """Have errors answered; what happens after the answer concerns nobody but the stream."""
    try:
        await work
    except HoldfastError as error:
        request.abandon_body(slot)
        respond_error(slot, error)
    except asyncio.CancelledError:
        slot.abort()
        raise
    except Exception:  # noqa: BLE001 (a defect in one call must not end the server)
        _log.exception("a request to the proxy failed")
        request.abandon_body(slot)
        respond_error(slot, HoldfastError("The server has a defect here; its log says more."))
