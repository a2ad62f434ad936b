"""The proxy for code that is not async: the faces of what is in `proxy.py` and beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from holdfast.client.loop_thread import (
    Facade,
    Items,
    blocking,
    facing,
    facing_answer,
    iterating,
)
from holdfast.client.proxy import Proxy
from holdfast.client.proxy_reading import FrameReading
from holdfast.client.proxy_response import ProxyResponse, ResponseReading
from holdfast.client.proxy_session import ProxySession
from holdfast.protocol.frames import Frame, Outcome


class SyncFrameReading(Facade):
    """All frames of a proxy stream as they come: iterate over it, once."""

    _inner: FrameReading

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Frame, str]]:
        return Items(self._thread, aiter(self._inner))

    @property
    def offset(self) -> str:
        """The last place between two frames that was passed."""
        return self._inner.offset

    @property
    def state(self) -> str:
        """Exactly behind the last thing handed out: give it back to a later read."""
        return self._inner.state

    @property
    def closed(self) -> bool:
        """Whether the stream is closed, and all of it was read."""
        return self._inner.closed

    close = blocking(FrameReading.aclose)


class SyncResponseReading(Facade):
    """A response being read: its bytes, events, frames or all of it, once."""

    _inner: ResponseReading

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def response_id(self) -> int:
        """Which response of the stream it is."""
        return self._inner.response_id

    @property
    def outcome(self) -> Outcome:
        """How the response ended, if it has."""
        return self._inner.outcome

    @property
    def offset(self) -> str:
        """The last place between two frames that was passed."""
        return self._inner.offset

    @property
    def state(self) -> str:
        """Exactly behind the last thing handed out: give it back to a later read."""
        return self._inner.state

    start = blocking(ResponseReading.start)
    read = blocking(ResponseReading.read)
    bytes = iterating(ResponseReading.bytes)
    events = iterating(ResponseReading.events)
    frames = iterating(ResponseReading.frames)
    close = blocking(ResponseReading.aclose)


class SyncProxyResponse(Facade):
    """A response that the proxy records: where to read it, now or at any later time."""

    _inner: ProxyResponse

    @property
    def stream_id(self) -> str:
        """The stream that it is in."""
        return self._inner.stream_id

    @property
    def response_id(self) -> int:
        """Which response of the stream it is."""
        return self._inner.response_id

    @property
    def content_type(self) -> str:
        """The upstream's, as it is known before the response is read."""
        return self._inner.content_type

    @property
    def offset(self) -> str:
        """Where its first frame is; `-1` if the server does not tell."""
        return self._inner.offset

    @property
    def url(self) -> str:
        """The signed URL: whoever has it may read and abort until it expires."""
        return self._inner.url

    follow = facing(ProxyResponse.follow, SyncResponseReading)


class SyncProxySession(Facade):
    """A session that was connected; `created` is whether its stream is new."""

    _inner: ProxySession

    @property
    def session_id(self) -> str:
        """As it was given."""
        return self._inner.session_id

    @property
    def stream_id(self) -> str:
        """The stream that its responses are in."""
        return self._inner.stream_id

    @property
    def created(self) -> bool:
        """Whether the stream is new."""
        return self._inner.created

    @property
    def url(self) -> str:
        """The newest signed URL: whoever has it may read and abort until it expires."""
        return self._inner.url

    request = facing_answer(ProxySession.request, SyncProxyResponse)
    follow = facing(ProxySession.follow, SyncResponseReading)
    frames = facing(ProxySession.frames, SyncFrameReading)
    abort = blocking(ProxySession.abort)
    renew = blocking(ProxySession.renew)


class SyncProxy(Facade):
    """The proxy of one server."""

    _inner: Proxy

    @property
    def url(self) -> str:
        """Where it is."""
        return self._inner.url

    create = facing_answer(Proxy.create, SyncProxyResponse)
    append = facing_answer(Proxy.append, SyncProxyResponse)
    connect = facing_answer(Proxy.connect, SyncProxySession)
    follow = facing(Proxy.follow, SyncResponseReading)
    frames = facing(Proxy.frames, SyncFrameReading)
    abort = blocking(Proxy.abort)
    head = blocking(Proxy.head)
    delete = blocking(Proxy.delete)
