"""The proxy of a server: calls to upstreams whose responses outlive every connection.

response = await client.proxy.create(
    "https://api.example.com/v1/chat", body={"stream": True}, upstream_authorization="Bearer sk-…"
)
async for event in response.follow().events():
    print(event.data)

Rules:

- A request to an upstream may cost money. It is retried only if it was certainly not begun.
- The client's own credentials are for the proxy; the upstream's are `upstream_authorization`.
- A signed URL is a credential: no error message and no `repr` shows one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypedDict, Unpack
from urllib.parse import urljoin, urlsplit

import msgspec

from holdfast.client.calls import NO_RETRY, Calls, Value, value_of, was_refused
from holdfast.client.proxy_frames import FrameReading, Position, ProxySource, Renew
from holdfast.client.proxy_response import ProxyResponse, ResponseReading
from holdfast.client.reading import Live
from holdfast.client.stream import Stream, StreamHead
from holdfast.client.urls import below, is_url
from holdfast.errors import (
    BadAnswerError,
    HoldfastError,
    InvalidJsonError,
    InvalidRequestError,
    SignatureExpiredError,
)
from holdfast.net.outbound import OutboundResponse
from holdfast.protocol.content import JSON
from holdfast.protocol.headers import START, UPSTREAM_METHODS

# How long an upstream may take to begin its response, on top of the usual time limit; servers
# allow a minute.
UPSTREAM_S: Final = 60.0
# Headers that the client sets itself, or that are about one connection.
_RESERVED: Final = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "session-id",
        "stream-signed-url-ttl",
        "transfer-encoding",
        "upstream-authorization",
        "upstream-method",
        "upstream-url",
        "use-stream-url",
    }
)
_encode = msgspec.json.Encoder().encode


class AuthorizationOptions(TypedDict, total=False):
    """What a request sends to an upstream or an authorisation endpoint besides its URL.

    The body is bytes or text as it is, or any other value to be sent as JSON. `url_ttl_s` is the
    lifetime of the signed URL.
    """

    headers: Mapping[str, str] | None
    body: Any
    upstream_authorization: Value | None
    url_ttl_s: int | None


class UpstreamOptions(AuthorizationOptions, total=False):
    """The options of a call to an upstream, whose response must begin within `timeout_s`."""

    method: str
    timeout_s: float | None


class Proxy:
    """The proxy of one server; its requests raise NotFoundError if it is off."""

    def __init__(self, calls: Calls, url: str) -> None:
        self.url = url
        self._calls = calls

    def __repr__(self) -> str:
        return f"Proxy({self.url!r})"

    async def create(self, upstream_url: str, **options: Unpack[UpstreamOptions]) -> ProxyResponse:
        """Call an upstream, and have its response recorded in a new stream.

        Options: `method` (POST), `headers`, `body` (bytes, text, or a value sent as JSON),
        `upstream_authorization`, `url_ttl_s` and `timeout_s`. Returns once the response begins;
        UpstreamError says that the upstream refused. Leaving does not stop the response: `abort`
        does.
        """
        return await self._call({}, upstream_url, default_id=1, **options)

    async def append(
        self, stream_url: str, upstream_url: str, **options: Unpack[UpstreamOptions]
    ) -> ProxyResponse:
        """The same into an existing stream, by its signed URL, which may have expired."""
        return await self._call({"Use-Stream-URL": stream_url}, upstream_url, **options)

    async def connect(
        self,
        session_id: str,
        *,
        auth_url: str | None = None,
        **options: Unpack[AuthorizationOptions],
    ) -> ProxySession:
        """Open a session: one stream for responses that belong together, under a name of yours.

        `auth_url` is asked first whether that is allowed, with the options `headers`, `body` and
        `upstream_authorization`. They and `url_ttl_s` are kept for when the session's URL expires.
        """
        is_text = session_id.isascii() and session_id.isprintable()
        if not is_text or not session_id or session_id != session_id.strip():
            raise InvalidRequestError(
                "A session id is printable ASCII, with no space at its beginning or end."
            )

        async def connected() -> OutboundResponse:
            request = await _proxy_request(auth_url, None, **options)
            return await self._calls.request(
                "POST",
                self.url,
                headers=request.headers | {"Session-Id": session_id},
                body=request.body,
                timeout_s=self._limit_s(request),
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

        Start at the beginning, at an offset between two frames, or at the `state` of an earlier
        reading. `renew` is a function, async or not, that gets a fresh URL when this one expires.
        """
        source = ProxySource(self._calls, url, renew)
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
        """Read all frames of a stream, by its signed URL; responses may be interleaved."""
        source = ProxySource(self._calls, url, renew)
        return FrameReading(source, offset=offset, state=state, live=live)

    async def abort(self, url: str, response_id: int | None = None) -> None:
        """Stop the responses that are still being written to a stream, by its signed URL.

        The data that has arrived stays. Aborting is fine if no response is under way. With a
        response id only that response is stopped, if the server supports it.
        """
        params = {"action": "abort"}
        if response_id is not None:
            if response_id < 1:
                raise InvalidRequestError(f"response_id is {response_id}: they count from 1.")
            params["response"] = str(response_id)
        await self._calls.request("PATCH", url, params=params)

    async def head(self, stream_id: str) -> StreamHead:
        """A stream's metadata."""
        return await self._stream(stream_id).head()

    async def delete(self, stream_id: str) -> None:
        """Stop the responses under way, and delete the stream if it exists."""
        await self._stream(stream_id).delete()

    def _stream(self, stream_id: str) -> Stream:
        url = below(self.url, stream_id)
        return Stream(self._calls, stream_id, url, url)

    async def _call(
        self,
        stream: dict[str, str],
        upstream_url: str,
        *,
        default_id: int | None = None,
        method: str = "POST",
        timeout_s: float | None = None,
        **options: Unpack[AuthorizationOptions],
    ) -> ProxyResponse:
        request = await _proxy_request(upstream_url, method, **options)
        failures = 0
        while True:
            try:
                reply = await self._calls.request(
                    "POST",
                    self.url,
                    headers=request.headers | stream,
                    body=request.body,
                    repeatable=False,
                    timeout_s=timeout_s or self._limit_s(request),
                    retry=NO_RETRY,
                )
                break
            except HoldfastError as error:
                if not was_refused(error):
                    raise
                failures += 1
                await self._calls.wait(failures, error)
        response_id = _response_id_of(reply, default=default_id)
        url = _signed_url_of(reply, self.url)
        return ProxyResponse(
            stream_id_of(url),
            response_id,
            reply.headers.get("upstream-content-type", ""),
            reply.headers.get("stream-start-offset", START),
            url,
            ProxySource(self._calls, url),
        )

    def _limit_s(self, request: _ProxyRequest) -> float:
        # Allow for a slow connection.
        return self._calls.timeouts.request_s + UPSTREAM_S + len(request.body) / 1_000_000


class ProxySession:
    """A connected session; `created` says whether its stream is new.

    The session id leads to the stream from anywhere. Every response brings a new signed URL; when
    the latest has expired, connecting again gets another one.
    """

    def __init__(
        self,
        proxy: Proxy,
        calls: Calls,
        session_id: str,
        connect: Callable[[], Awaitable[OutboundResponse]],
    ) -> None:
        self.session_id = session_id
        self.stream_id = ""
        self.created = False
        self._proxy = proxy
        self._connect = connect
        self._source = ProxySource(calls, "", self._fresh_url, of_session=True)

    def __repr__(self) -> str:
        return f"ProxySession({self.session_id!r})"

    @property
    def url(self) -> str:
        """The newest signed URL, which allows reading and aborting until it expires."""
        return self._source.url

    async def request(self, upstream_url: str, **options: Unpack[UpstreamOptions]) -> ProxyResponse:
        """Call an upstream, and have its response recorded in the session's stream."""
        # The response starts after what was read so far, if the server does not say where.
        begin = self._source.position
        response = await self._proxy.append(self.url, upstream_url, **options)
        self._source.url = response.url
        return replace(response, _source=self._source, _position=begin)

    def follow(
        self,
        response_id: int = 1,
        *,
        offset: str = START,
        state: str | None = None,
        live: Live = True,
    ) -> ResponseReading:
        """Read one response of the session while it is still being written."""
        return ResponseReading(self._source, response_id, offset=offset, state=state, live=live)

    def frames(
        self, *, offset: str = START, state: str | None = None, live: Live = True
    ) -> FrameReading:
        """Read all frames of the session; responses may be interleaved."""
        return FrameReading(self._source, offset=offset, state=state, live=live)

    async def abort(self, response_id: int | None = None) -> None:
        """Stop the responses that are still being written: all of them, or one."""
        url = self.url
        try:
            await self._proxy.abort(url, response_id)
        except SignatureExpiredError as error:
            if not self._source.can_renew(error):
                raise
            await self._proxy.abort(await self._source.renew(url), response_id)

    async def renew(self) -> str:
        """Connect again, and return a fresh signed URL; readers do this by themselves."""
        return await self._source.renew(self.url)

    async def _fresh_url(self) -> str:
        reply = await self._connect()
        url = _signed_url_of(reply, self._proxy.url)
        self.stream_id, self.created = stream_id_of(url), reply.status == 201
        if self.created:
            # The stream was deleted meanwhile: the new one is read from its beginning.
            self._source.position = Position()
        return url


class _ProxyRequest(NamedTuple):
    headers: dict[str, str]
    body: bytes


async def _proxy_request(
    url: str | None,
    method: str | None,
    *,
    headers: Mapping[str, str] | None = None,
    body: Any = b"",
    upstream_authorization: Value | None = None,
    url_ttl_s: int | None = None,
) -> _ProxyRequest:
    """Check a request to the proxy before anything is sent."""
    sent = _own_headers(headers or {})
    content, content_type = _body_bytes(body)
    if content_type and "content-type" not in {name.lower() for name in sent}:
        sent["Content-Type"] = content_type
    if url is not None:
        if not (is_url(url) and url.isascii() and url.isprintable() and " " not in url):
            raise InvalidRequestError(
                f"{url[:80]!r} is not an upstream URL: expected http://… or https://…, "
                "percent-encoded."
            )
        sent["Upstream-URL"] = url
    if method is not None:
        if method.upper() not in UPSTREAM_METHODS:
            raise InvalidRequestError(
                f"Unknown method {method[:20]!r}: use {', '.join(UPSTREAM_METHODS)}."
            )
        sent["Upstream-Method"] = method.upper()
    if upstream_authorization is not None:
        value = await value_of(upstream_authorization)
        # The message must not contain the secret.
        if not (value.isascii() and value.isprintable() and value.strip()):
            raise InvalidRequestError("upstream_authorization must be printable ASCII characters.")
        sent["Upstream-Authorization"] = value
    if url_ttl_s is not None:
        if url_ttl_s < 0:
            raise InvalidRequestError(f"url_ttl_s is {url_ttl_s}: expected 0 or more.")
        sent["Stream-Signed-URL-TTL"] = str(url_ttl_s)
    return _ProxyRequest(sent, content)


def _own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name in headers:
        if name.lower() == "authorization":
            raise InvalidRequestError(
                "Authorization is for the proxy: pass the upstream's as upstream_authorization."
            )
        if name.lower() in _RESERVED:
            raise InvalidRequestError(f"{name} is set by the client and cannot be passed.")
    return dict(headers)


def _body_bytes(body: Any) -> tuple[bytes, str]:
    """Encode a body, and return its content type if it is JSON."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), ""
    if isinstance(body, str):
        return body.encode(), ""
    try:
        return _encode(body), JSON
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidJsonError(f"The body cannot be written as JSON: {error}.") from None


def _signed_url_of(reply: OutboundResponse, proxy_url: str) -> str:
    location = reply.headers.get("location", "")
    if not location:
        raise BadAnswerError("The response has no Location: is this a proxy's URL?")
    try:
        url = urljoin(proxy_url, location)
        _ = urlsplit(url).port
    except ValueError:
        raise BadAnswerError("The Location of the response is not a URL.") from None
    return url


def stream_id_of(url: str) -> str:
    """The id of the stream that a signed URL is for."""
    return urlsplit(url).path.rpartition("/")[2]


def _response_id_of(reply: OutboundResponse, *, default: int | None) -> int:
    text = reply.headers.get("stream-response-id", "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text)):
        raise BadAnswerError("The response has no valid Stream-Response-Id.")
    return int(text)
