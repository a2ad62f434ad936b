"""Calls to upstreams. Responses with status 2xx are recorded; all others become errors."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    HoldfastError,
    OutboundError,
    OutboundRefusedError,
    OverloadedError,
    RedirectNotAllowedError,
    UpstreamError,
    UpstreamNotAllowedError,
    UpstreamTimeoutError,
)
from holdfast.net.decoding import Decoder, decoder_for
from holdfast.net.outbound import Outbound, OutboundStream, joined
from holdfast.proxy.upstream_request import recorded_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from holdfast.http.exchange import Request
    from holdfast.net.targets import Policy
    from holdfast.proxy.upstream_request import UpstreamCall
    from holdfast.settings import ProxySettings

    # Takes a piece of the body, and says whether it takes more at once.
    Take = Callable[[bytes], bool]
    # Waits until more is taken, and says whether it ever will be.
    Room = Callable[[], Awaitable[bool]]
    Deliver = Callable[[Take, Room], Awaitable[None]]

ERROR_BYTES_MAX: Final = 64 * 1024
# Shorter request bodies are sent in one piece, once they are complete.
WHOLE_BODY_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """A successful response as it is recorded: decoded, if its encoding is one we know."""

    status: int
    headers: dict[str, str]
    content_type: str
    # Passes on the body as it arrives, to its end.
    deliver: Deliver


class Upstreams:
    """Calls upstreams within the allowlist and the settings' limits."""

    def __init__(self, policy: Policy, settings: ProxySettings) -> None:
        self._policy = policy
        self._settings = settings
        self._outbound = Outbound(
            policy, connections_max=settings.upstreams_max, calls_max=settings.upstreams_max
        )

    def check(self, url: str) -> None:
        """Raise unless the URL may be called; its addresses are checked on connecting."""
        try:
            self._policy.check_url(url)
        except OutboundRefusedError as error:
            raise UpstreamNotAllowedError(error.message) from None

    @asynccontextmanager
    async def call(self, call: UpstreamCall, request: Request) -> AsyncIterator[UpstreamResponse]:
        """A successful response whose body is still to come; all others are raised."""
        settings = self._settings
        headers = dict(call.headers)
        body = await _request_body(request, headers)
        try:
            async with self._outbound.stream(
                call.method,
                call.url,
                headers,
                body,
                silence_s=settings.inactivity_timeout_s,
                header_timeout_s=settings.header_timeout_s,
            ) as response:
                if not 200 <= response.status < 300:
                    raise await _error_of(response, settings.header_timeout_s)
                yield _success(response)
        except OutboundRefusedError as error:
            raise UpstreamNotAllowedError(error.message) from None
        except OutboundError as error:
            if error.late:
                raise UpstreamTimeoutError(error.message) from None
            raise UpstreamError(error.message) from None

    async def refusal(self, call: UpstreamCall, request: Request) -> str:
        """Why an endpoint does not approve; empty if it does. Its response's body is ignored."""
        try:
            async with self.call(call, request):
                return ""
        except UpstreamError as error:
            if error.upstream_status is None:
                return error.message
            return f"The endpoint responded with {error.upstream_status}."
        except RedirectNotAllowedError:
            return "The endpoint responded with a redirect."
        except UpstreamTimeoutError:
            return "The endpoint did not respond in time."

    async def aclose(self) -> None:
        await self._outbound.aclose()


async def _request_body(
    request: Request, headers: dict[str, bytes]
) -> bytes | AsyncIterator[bytes]:
    """The body to be sent: whole if it is short, else as it arrives."""
    length = request.headers.get(b"content-length")
    if request.stream is None:
        return request.body
    pieces = request.pieces()
    if length is None:
        # With HTTP/2 there may be a body that no header announces.
        async for first in pieces:
            if first:
                return _chained(first, pieces)
        return b""
    if int(length) <= WHOLE_BODY_BYTES_MAX:
        return b"".join([piece async for piece in pieces])
    headers["content-length"] = length
    return pieces


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _success(response: OutboundStream) -> UpstreamResponse:
    headers = recorded_headers(response.headers)
    content_type = headers.get("content-type", "")
    decoder = decoder_for(headers.get("content-encoding", ""))
    if decoder is not None:
        del headers["content-encoding"]
        headers.pop("content-length", None)

    async def deliver(take: Take, room: Room) -> None:
        await _deliver(response, decoder, take, room)

    return UpstreamResponse(response.status, headers, content_type, deliver)


async def _deliver(
    response: OutboundStream, decoder: Decoder | None, take: Take, room: Room
) -> None:
    if decoder is None:
        while not await response.pass_on(take):
            if not await room():
                return
        return
    # A few encoded bytes may stand for very many: each piece may have to wait for room.
    while chunk := await response.next_chunk():
        for piece in decoder.feed(chunk):
            if not take(piece) and not await room():
                return
    decoder.finish()


async def _error_of(response: OutboundStream, timeout_s: float) -> HoldfastError:
    """The error that a response stands for, with the beginning of its body."""
    if 300 <= response.status < 400:
        return RedirectNotAllowedError("Proxy cannot follow redirects")
    headers = joined(response.headers)
    decoder = decoder_for(headers.get("content-encoding", ""))
    body = bytearray()

    def take(piece: bytes) -> bool:
        body.extend(piece[: ERROR_BYTES_MAX - len(body)])
        return len(body) < ERROR_BYTES_MAX

    async def full() -> bool:
        return False

    try:
        async with asyncio.timeout(timeout_s):
            await _deliver(response, decoder, take, full)
    except (OutboundError, TimeoutError):
        # A part of the body is better than nothing.
        pass
    return UpstreamError(
        f"The upstream responded with {response.status}.",
        upstream_status=response.status,
        content_type=headers.get("content-type", ""),
        body=bytes(body),
    )


class Admission:
    """Limits the upstreams that are called at one time, in all and for one client."""

    def __init__(self, upstreams_max: int, client_upstreams_max: int) -> None:
        self._upstreams_max = upstreams_max
        self._client_upstreams_max = client_upstreams_max
        self._by_client: defaultdict[str, int] = defaultdict(int)
        self.under_way = 0
        self.refusals = 0

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """Room for one upstream of a client while the block lasts, or OverloadedError."""
        if self.under_way >= self._upstreams_max:
            self.refusals += 1
            raise OverloadedError(
                f"{self._upstreams_max} upstream responses are under way already. Try again later."
            )
        if self._by_client[client] >= self._client_upstreams_max:
            self.refusals += 1
            raise OverloadedError(
                f"{self._client_upstreams_max} upstream responses are under way for this client "
                "already. Try again later."
            )
        self.under_way += 1
        self._by_client[client] += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]
