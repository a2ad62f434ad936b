"""A session of the proxy: one stream for responses that belong together, such as a conversation.

The session's id leads to the stream, whoever connects with it from wherever. Its signed URL is
replaced by the one of every answer, and by connecting again when it has expired.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.client.calls import Answer, Calls, Value
from holdfast.client.proxy_frames import Position
from holdfast.client.proxy_reading import FrameReading
from holdfast.client.proxy_requests import signed_url_of, stream_id_of
from holdfast.client.proxy_response import ProxyResponse, ResponseReading
from holdfast.client.proxy_source import Source
from holdfast.client.reading import Live
from holdfast.errors import SignatureExpiredError
from holdfast.protocol.headers import START

if TYPE_CHECKING:
    from holdfast.client.proxy import Proxy


class ProxySession:
    """A session that was connected; `created` is whether its stream is new."""

    def __init__(
        self,
        proxy: Proxy,
        calls: Calls,
        session_id: str,
        connect: Callable[[], Awaitable[Answer]],
    ) -> None:
        self.session_id = session_id
        self.stream_id = ""
        self.created = False
        self._proxy = proxy
        self._connect = connect
        self._source = Source(calls, "", self._fresh_url, of_session=True)

    def __repr__(self) -> str:
        return f"ProxySession({self.session_id!r})"

    @property
    def url(self) -> str:
        """The newest signed URL: whoever has it may read and abort until it expires."""
        return self._source.url

    async def request(
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
        """Call an upstream, and have its response recorded in the session's stream."""
        # All that comes of it lies behind what was read before, if the server does not tell where.
        begin = self._source.position
        response = await self._proxy.append(
            self.url,
            upstream_url,
            method=method,
            headers=headers,
            body=body,
            upstream_authorization=upstream_authorization,
            url_ttl_s=url_ttl_s,
            timeout_s=timeout_s,
        )
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
        """Read all frames of the session: those of several responses mixed."""
        return FrameReading(self._source, offset=offset, state=state, live=live)

    async def abort(self, response_id: int | None = None) -> None:
        """Stop what upstreams are still sending: all of them, or one response."""
        url = self.url
        try:
            await self._proxy.abort(url, response_id)
        except SignatureExpiredError as error:
            if not self._source.can_renew(error):
                raise
            await self._proxy.abort(await self._source.renew(url), response_id)

    async def renew(self) -> str:
        """Connect again, and return a fresh signed URL; readers do so by themselves."""
        return await self._source.renew(self.url)

    async def _fresh_url(self) -> str:
        answer = await self._connect()
        url = signed_url_of(answer, self._proxy.url)
        self.stream_id, self.created = stream_id_of(url), answer.status == 201
        if self.created:
            # It was deleted meanwhile: the new one starts from its beginning.
            self._source.position = Position()
        return url
