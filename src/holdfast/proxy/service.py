"""The proxy's operations: create, append, connect, abort, close.

Each POST is a task that lives as long as the upstream's response: it calls the upstream, responds
to its client once the Start frame is durable, and then records the body. The client may leave at
any time; only an abort, the end of the stream or the end of the server ends the task early.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily

from holdfast.engine.counters import Histogram
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
from holdfast.http.metrics import counter, gauge, histogram
from holdfast.http.responses import respond_error, result_of
from holdfast.protocol.content import DEFAULT
from holdfast.protocol.frames import Outcome
from holdfast.protocol.headers import header_value
from holdfast.proxy.access import name_of
from holdfast.proxy.stream_responses import StreamResponses, end_open_responses
from holdfast.proxy.upstreams import Admission

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from prometheus_client.core import Metric

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.http.exchange import Request, Slot
    from holdfast.proxy.recording import ProxiedResponse
    from holdfast.proxy.upstream_request import UpstreamCall
    from holdfast.proxy.upstreams import Upstreams
    from holdfast.settings import ProxySettings

    # The headers of a successful response that lead to the stream.
    Locate = Callable[[str], bytes]

_log = logging.getLogger(__name__)
ABORT_TIMEOUT_S: Final = 15.0


class ProxyService:
    def __init__(
        self, shard: Shard, clock: Clock, settings: ProxySettings, upstreams: Upstreams
    ) -> None:
        self._shard = shard
        self._clock = clock
        self._settings = settings
        self.upstreams = upstreams
        self._admission = Admission(settings.upstreams_max, settings.client_upstreams_max)
        self.counters = ProxyCounters(self._admission)
        self._by_stream: dict[str, StreamResponses] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Those that wait for the approval of a session.
        self._approvals: set[asyncio.Task[None]] = set()
        self._stopped = False

    def start(self) -> None:
        """End what an earlier server left open."""
        end_open_responses(self._shard, self._responses_of)

    def stop(self) -> None:
        """Start no further calls, and end every response with an Error frame."""
        self._stopped = True
        for task in list(self._approvals):
            task.cancel()
        error = UpstreamError("The server is shutting down.")
        for responses in list(self._by_stream.values()):
            responses.fail_all(error)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.upstreams.aclose()

    def _responses_of(self, stream_id: str) -> StreamResponses:
        responses = self._by_stream.get(stream_id)
        if responses is None:
            responses = self._by_stream[stream_id] = StreamResponses(
                self._shard,
                self._clock,
                stream_id,
                ttl_s=self._ttl_s,
                on_ended=self.counters.ended,
                on_idle=self._forget,
            )
        return responses

    @property
    def _ttl_s(self) -> int | None:
        return self._settings.stream_ttl_s or None

    def _forget(self, responses: StreamResponses) -> None:
        if self._by_stream.get(responses.stream_id) is responses:
            del self._by_stream[responses.stream_id]

    def spawn(self, work: Coroutine[Any, Any, None], request: Request, slot: Slot) -> None:
        """Run work that responds later, and goes on if its client leaves."""
        task = asyncio.get_running_loop().create_task(_responding(work, request, slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def respond(
        self,
        request: Request,
        slot: Slot,
        call: UpstreamCall,
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
        responses = self._responses_of(stream_id)
        responses.calls.add(task)
        if number is not None:
            responses.watch()
        response: ProxiedResponse | None = None
        try:
            with self._admission.one(client):
                async with self.upstreams.call(call, request) as upstream:
                    self.counters.header_us.observe_s(self._clock.monotonic_s() - started_s)
                    response, start = await responses.begin(
                        upstream.status, upstream.headers, number=number
                    )
                    responses.calls.discard(task)
                    response.recording.first_stored = lambda: self._first_frame(started_s)
                    # The upstream may have responded without reading all of the body.
                    request.abandon_body(slot)
                    slot.respond(
                        201 if number is None else 200,
                        locate(stream_id)
                        + b"Upstream-Content-Type: %b\r\nStream-Response-Id: %d\r\n"
                        b"Stream-Start-Offset: %020d\r\nCache-Control: no-store\r\n"
                        % (header_value(upstream.content_type), response.id, start),
                    )
                    await response.record(
                        upstream,
                        bytes_max=self._settings.response_bytes_max,
                        silence_s=self._settings.inactivity_timeout_s,
                    )
        except asyncio.CancelledError:
            # A response has its own end; before there is one the client still waits for ours.
            if response is None:
                raise self._why_cancelled(stream_id, number) from None
        finally:
            responses.calls.discard(task)
            responses.close_if_idle()

    def _why_cancelled(self, stream_id: str, number: int | None) -> HoldfastError:
        if self._stopped:
            return UnavailableError("The server is shutting down.")
        stream = self._shard.staged(name_of(stream_id))
        if stream is None or stream.gone or number not in {None, stream.number}:
            return ProxyStreamNotFoundError(stream_id)
        if stream.closed:
            return ProxyStreamClosedError(stream.tail)
        return UpstreamError("The call was aborted before the upstream responded.")

    def _first_frame(self, started_s: float) -> None:
        self.counters.first_frame_us.observe_s(self._clock.monotonic_s() - started_s)

    async def connect(
        self,
        request: Request,
        slot: Slot,
        call: UpstreamCall | None,
        locate: Locate,
        *,
        client: str,
        stream_id: str,
    ) -> None:
        """Respond with the URL of a session's stream, which is created if there is none."""
        if call is None:
            async for _ in request.pieces():
                pass
        else:
            await self._approval(call, request, client)
        created = await self._ensure(stream_id)
        request.abandon_body(slot)
        slot.respond(201 if created else 200, locate(stream_id) + b"Cache-Control: no-store\r\n")

    async def _approval(self, call: UpstreamCall, request: Request, client: str) -> None:
        """Ask an endpoint whether the session may be connected to; raises if not."""
        if self._stopped:
            raise UnavailableError("The server is shutting down.")
        task = asyncio.current_task()
        assert task is not None, "a request is a task"
        self._approvals.add(task)
        try:
            with self._admission.one(client):
                refusal = await self.upstreams.refusal(call, request)
        except asyncio.CancelledError:
            raise UnavailableError("The server is shutting down.") from None
        finally:
            self._approvals.discard(task)
        if refusal:
            raise ConnectRejectedError(f"The session was not approved. {refusal}")

    async def _ensure(self, stream_id: str) -> bool:
        """Create a session's stream if there is none; returns whether it is new."""
        name = name_of(stream_id)
        try:
            self._shard.lifetimes.renew(self._shard.find(name))
        except StreamNotFoundError:
            pass
        else:
            return False
        creation = CreateRequest(DEFAULT, self._ttl_s)

        def create(done: Callable[..., None]) -> None:
            self._shard.create(name, creation, lambda _context, outcome: done(outcome), None)

        try:
            outcome = await result_of(create)
        except StreamExistsError:
            return False
        except HoldfastError as error:
            raise ProxyStorageError(f"The stream was not created: {error.message}") from None
        assert isinstance(outcome, StreamCreated)
        return outcome.created

    def find_open(self, stream_id: str) -> int:
        """The number of a stream that is not closed; raises if there is none."""
        try:
            stream = self._shard.find(name_of(stream_id))
        except StreamNotFoundError:
            raise ProxyStreamNotFoundError(stream_id) from None
        if stream.closed:
            raise ProxyStreamClosedError(stream.tail)
        return stream.number

    async def abort(self, stream_id: str, response_id: int | None) -> None:
        """End responses; returns once that is durable."""
        responses = self._by_stream.get(stream_id)
        if responses is not None:
            await _all_done(responses.abort(response_id))

    def abort_all(self, stream_id: str) -> None:
        """End all responses of a stream before its next write, or raise."""
        responses = self._by_stream.get(stream_id)
        if responses is not None and any(
            response.recording.is_waiting for response in responses.abort(None)
        ):
            raise UnavailableError("Responses of this stream have not ended yet. Try again later.")


async def _all_done(responses: list[ProxiedResponse]) -> None:
    try:
        async with asyncio.timeout(ABORT_TIMEOUT_S):
            for response in responses:
                await response.done.wait()
    except TimeoutError:
        raise ProxyStorageError(
            "The upstreams were cancelled, but that is not stored yet: the log accepts no writes "
            "at present."
        ) from None


async def _responding(work: Coroutine[Any, Any, None], request: Request, slot: Slot) -> None:
    """Respond with the error that the work raises, unless it has responded already."""
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


_ENDS = (Outcome.COMPLETE, Outcome.ABORTED, Outcome.FAILED)


class ProxyCounters:
    """Totals since start, as metrics."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._ended = dict.fromkeys(_ENDS, 0)
        self._bytes = 0
        self.header_us = Histogram()
        self.first_frame_us = Histogram()

    def ended(self, response: ProxiedResponse) -> None:
        """Count a response; one whose stream went away was aborted with it."""
        self._ended[response.outcome or Outcome.ABORTED] += 1
        self._bytes += response.body_bytes

    def metrics(self) -> Iterator[Metric]:
        yield gauge(
            "holdfast_proxy_upstreams",
            "Upstreams that were called and are not done.",
            self._admission.under_way,
        )
        responses = CounterMetricFamily(
            "holdfast_proxy_responses", "Responses that have ended.", labels=["outcome"]
        )
        for outcome, count in self._ended.items():
            responses.add_metric([outcome.value], count)
        yield responses
        yield counter("holdfast_proxy_bytes", "Bytes of bodies recorded.", self._bytes)
        yield counter(
            "holdfast_proxy_refusals",
            "Requests refused because too many upstreams were under way.",
            self._admission.refusals,
        )
        yield histogram(
            "holdfast_proxy_header_seconds",
            "From a request to the head of the upstream's response.",
            self.header_us,
            1e-6,
        )
        yield histogram(
            "holdfast_proxy_first_frame_seconds",
            "From a request until the first Data frame is durable.",
            self.first_frame_us,
            1e-6,
        )
