"""Calls of upstreams: an answer is a success to be recorded, or an error to be told."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    HoldfastError,
    OutboundError,
    OutboundRefusedError,
    RedirectNotAllowedError,
    UpstreamError,
    UpstreamNotAllowedError,
    UpstreamTimeoutError,
)
from holdfast.net.decoding import Decoder, decoder_for
from holdfast.net.outbound import Outbound, joined
from holdfast.proxy.forwarding import recorded_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.http.exchange import Request
    from holdfast.net.outbound import OutboundStream
    from holdfast.net.targets import Policy
    from holdfast.proxy.asking import UpstreamRequest
    from holdfast.settings import ProxySettings

ERROR_BYTES_MAX: Final = 64 * 1024
# Shorter bodies are sent in one piece, once they are complete.
WHOLE_BODY_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """A successful answer, as it is recorded: without its encoding where that can be undone."""

    status: int
    headers: dict[str, str]
    content_type: str
    pieces: AsyncIterator[bytes]


class Upstreams:
    """Calls upstreams, as the allowlist and the settings have it."""

    def __init__(self, policy: Policy, settings: ProxySettings) -> None:
        self._policy = policy
        self._settings = settings
        self._outbound = Outbound(
            policy, connections_max=settings.upstreams_max, calls_max=settings.upstreams_max
        )

    def check(self, url: str) -> None:
        """Raise unless the URL may be called; its addresses are checked when it is."""
        try:
            self._policy.check_url(url)
        except OutboundRefusedError as error:
            raise UpstreamNotAllowedError(error.message) from None

    @asynccontextmanager
    async def call(self, asked: UpstreamRequest, request: Request) -> AsyncIterator[UpstreamAnswer]:
        """A successful answer whose body is still to come; errors are raised."""
        settings = self._settings
        headers = dict(asked.headers)
        body = await _body(request, headers)
        try:
            async with self._outbound.stream(
                asked.method,
                asked.url,
                headers,
                body,
                silence_s=settings.inactivity_timeout_s,
                header_timeout_s=settings.header_timeout_s,
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise await _refusal(answer, settings.header_timeout_s)
                yield _success(answer)
        except OutboundRefusedError as error:
            raise UpstreamNotAllowedError(error.message) from None
        except OutboundError as error:
            if error.late:
                raise UpstreamTimeoutError(error.message) from None
            raise UpstreamError(error.message) from None

    async def approves(self, asked: UpstreamRequest, request: Request) -> str:
        """Ask an endpoint; the reason if it does not approve. Its answer's body does not matter."""
        try:
            async with self.call(asked, request):
                return ""
        except UpstreamError as error:
            if error.upstream_status is None:
                return error.message
            return f"The endpoint answered {error.upstream_status}."
        except RedirectNotAllowedError:
            return "The endpoint answered with a redirect."
        except UpstreamTimeoutError:
            return "The endpoint did not answer in time."

    async def aclose(self) -> None:
        """Close every connection."""
        await self._outbound.aclose()


async def _body(request: Request, headers: dict[str, bytes]) -> bytes | AsyncIterator[bytes]:
    """The body to be sent: whole if it is short, else as it arrives."""
    length = request.headers.get(b"content-length")
    if request.stream is None:
        return request.body
    pieces = request.pieces()
    if length is None:
        # With HTTP/2 there may be a body though nothing announces it.
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


def _success(answer: OutboundStream) -> UpstreamAnswer:
    headers = recorded_headers(answer.headers)
    content_type = headers.get("content-type", "")
    decoder = decoder_for(headers.get("content-encoding", ""))
    if decoder is not None:
        del headers["content-encoding"]
        headers.pop("content-length", None)
    return UpstreamAnswer(answer.status, headers, content_type, _body_of(answer, decoder))


def _body_of(answer: OutboundStream, decoder: Decoder | None) -> AsyncIterator[bytes]:
    """The pieces of an answer's body, without their encoding if there is one to be undone."""
    return answer.chunks() if decoder is None else _decoded(answer, decoder)


async def _decoded(answer: OutboundStream, decoder: Decoder) -> AsyncIterator[bytes]:
    async for chunk in answer.chunks():
        for piece in decoder.feed(chunk):
            yield piece
    decoder.finish()


async def _refusal(answer: OutboundStream, timeout_s: float) -> HoldfastError:
    """The error that an answer stands for, with what it says."""
    if 300 <= answer.status < 400:
        return RedirectNotAllowedError("Proxy cannot follow redirects")
    headers = joined(answer.headers)
    decoder = decoder_for(headers.get("content-encoding", ""))
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in _body_of(answer, decoder):
                body += piece[: ERROR_BYTES_MAX - len(body)]
                if len(body) >= ERROR_BYTES_MAX:
                    break
    except (OutboundError, TimeoutError):
        # What has come of it is better than nothing.
        pass
    return UpstreamError(
        f"The upstream answered {answer.status}.",
        upstream_status=answer.status,
        content_type=headers.get("content-type", ""),
        body=bytes(body),
    )
