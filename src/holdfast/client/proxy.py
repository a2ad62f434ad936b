"""The proxy of a server: calls to other servers whose responses outlive every connection.

response = await client.proxy.create(
    "https://api.example.com/v1/chat", body={"stream": True}, upstream_authorization="Bearer sk-…"
)
async for event in response.follow().events():
    print(event.data)

Rules:

- A request to an upstream may cost money. It is sent again only if it certainly was not begun.
- The client's own credentials are for the proxy; the upstream's are `upstream_authorization`.
- A signed URL is a credential itself: no error and no `repr` here shows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.client.calls import Answer, Calls, Value
from holdfast.client.proxy_reading import FrameReading
from holdfast.client.proxy_requests import (
    UpstreamRequest,
    check_session_id,
    response_id_of,
    signed_url_of,
    stream_id_of,
    upstream_request,
)
from holdfast.client.proxy_response import ProxyResponse, ResponseReading
from holdfast.client.proxy_session import ProxySession
from holdfast.client.proxy_source import Renew, Source
from holdfast.client.reading import Live
from holdfast.client.retry import NO_RETRY, was_refused
from holdfast.client.stream import Stream
from holdfast.client.types import StreamHead
from holdfast.client.urls import below
from holdfast.errors import HoldfastError, InvalidRequestError
from holdfast.protocol.headers import START

# How long an upstream may take to begin its response, besides what any request may take; servers
# give it a minute.
UPSTREAM_S: Final = 60.0


class Proxy:
    """The proxy of one server; NotFoundError if it is off there."""

    def __init__(self, calls: Calls, url: str) -> None:
        self.url = url
        self._calls = calls

    def __repr__(self) -> str:
        return f"Proxy({self.url!r})"

    async def create(
        self,
        upstream_url: str,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        body: Any = b"",
        upstream_authorization: Value | None = None,
        url_ttl_s: int | None = None,
        timeout_s: float | None = None,
    ) -> ProxyResponse:
        """Call an upstream, and have its response recorded in a new stream.

        Returns once the response begins, which must be within `timeout_s`. The body is bytes or
        text as it is, or a value that is sent as JSON. UpstreamError says that the upstream
        refused. What is under way is not stopped by leaving: `abort` does that.
        """
        request = await upstream_request(
            upstream_url,
            method=method,
            headers=headers,
            body=body,
            authorization=upstream_authorization,
            url_ttl_s=url_ttl_s,
        )
        answer = await self._post(request, {}, timeout_s)
        return self._response(answer, response_id_of(answer, default=1))

    async def append(
        self,
        stream_url: str,
        upstream_url: str,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        body: Any = b"",
        upstream_authorization: Value | None = None,
        url_ttl_s: int | None = None,
        timeout_s: float | None = None,
    ) -> ProxyResponse:
        """The same into a stream that is there, by its signed URL, which may have expired."""
        request = await upstream_request(
            upstream_url,
            method=method,
            headers=headers,
            body=body,
            authorization=upstream_authorization,
            url_ttl_s=url_ttl_s,
        )
        answer = await self._post(request, {"Use-Stream-URL": stream_url}, timeout_s)
        return self._response(answer, response_id_of(answer))

    async def connect(
        self,
        session_id: str,
        *,
        auth_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = b"",
        upstream_authorization: Value | None = None,
        url_ttl_s: int | None = None,
    ) -> ProxySession:
        """A session: one stream for all responses that belong together, under a name of yours.

        `auth_url` is asked first whether that is allowed, with `upstream_authorization` and the
        body. All of this is kept for when the session's URL expires.
        """
        check_session_id(session_id)

        async def connected() -> Answer:
            request = await upstream_request(
                auth_url,
                headers=headers,
                body=body,
                authorization=upstream_authorization,
                url_ttl_s=url_ttl_s,
            )
            return await self._calls.request(
                "POST",
                self.url,
                headers=request.headers | {"Session-Id": session_id},
                body=request.body,
                timeout_s=self._limit_s(request, None),
            )

        session = ProxySession(self, self._calls, session_id, connected)
        await session.renew()
        return session

    def follow(
        self,
        url: str,
        response_id: int = 1,
        *,
        offset: str = START,
        state: str | None = None,
        live: Live = True,
        renew: Renew | None = None,
    ) -> ResponseReading:
        """Read one response of a stream, by its signed URL, while it is still being written.

        From the start, an offset between two frames, or the `state` of an earlier reading. `renew`
        is a function, async or not, that gets another URL when this one has expired.
        """
        source = Source(self._calls, url, renew)
        return ResponseReading(source, response_id, offset=offset, state=state, live=live)

    def frames(
        self,
        url: str,
        *,
        offset: str = START,
        state: str | None = None,
        live: Live = True,
        renew: Renew | None = None,
    ) -> FrameReading:
        """Read all frames of a stream, by its signed URL: those of several responses mixed."""
        source = Source(self._calls, url, renew)
        return FrameReading(source, offset=offset, state=state, live=live)

    async def abort(self, url: str, response_id: int | None = None) -> None:
        """Stop what upstreams are still sending to a stream, by its signed URL.

        What has arrived stays. It is no error if nothing is under way. With a response's id only
        that one is stopped, where the server can do that.
        """
        params = {"action": "abort"}
        if response_id is not None:
            if response_id < 1:
                raise InvalidRequestError(f"response_id is {response_id}: they count from 1.")
            params["response"] = str(response_id)
        await self._calls.request("PATCH", url, params=params)

    async def head(self, stream_id: str) -> StreamHead:
        """What is known of a stream, without its data."""
        return await self._stream(stream_id).head()

    async def delete(self, stream_id: str) -> None:
        """Stop what is under way, and delete a stream; it is no error if there is none."""
        await self._stream(stream_id).delete()

    def _stream(self, stream_id: str) -> Stream:
        url = below(self.url, stream_id)
        return Stream(self._calls, stream_id, url, url)

    async def _post(
        self, request: UpstreamRequest, headers: dict[str, str], timeout_s: float | None
    ) -> Answer:
        failures = 0
        while True:
            try:
                return await self._calls.request(
                    "POST",
                    self.url,
                    headers=request.headers | headers,
                    body=request.body,
                    repeatable=False,
                    timeout_s=self._limit_s(request, timeout_s),
                    retry=NO_RETRY,
                )
            except HoldfastError as error:
                if not was_refused(error):
                    raise
                failures += 1
                await self._calls.wait(failures, error)

    def _limit_s(self, request: UpstreamRequest, timeout_s: float | None) -> float:
        # What a slow line needs for a large body is not a sign of trouble.
        return timeout_s or (
            self._calls.timeouts.request_s + UPSTREAM_S + len(request.body) / 1_000_000
        )

    def _response(self, answer: Answer, response_id: int) -> ProxyResponse:
        url = signed_url_of(answer, self.url)
        return ProxyResponse(
            stream_id_of(url),
            response_id,
            answer.headers.get("upstream-content-type", ""),
            answer.headers.get("stream-start-offset", START),
            url,
            Source(self._calls, url),
        )
