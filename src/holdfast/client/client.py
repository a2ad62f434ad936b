"""The client of a server."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

from holdfast.client.auth import Auth, Basic
from holdfast.client.calls import Calls, OnRetry, Retry, Timeouts, Value
from holdfast.client.messages import Framing
from holdfast.client.stream import Stream
from holdfast.client.urls import below, encode_path, is_url, parse_base, split_name
from holdfast.clock import Clock, SystemClock
from holdfast.net.outbound import Outbound, OutboundResponse
from holdfast.net.targets import AnyTarget

if TYPE_CHECKING:
    from holdfast.client.buckets import Bucket
    from holdfast.client.proxy import Proxy
    from holdfast.client.storage import Storage

DEFAULT_URL: Final = "http://127.0.0.1:4437"
STREAMS_PATH: Final = "/v1/stream"
PROXY_PATH: Final = "/v1/proxy"
CONNECTIONS_MAX: Final = 4096
# Including requests that wait for a connection.
CALLS_MAX: Final = 65_536
# Other servers may send a whole stream in one response.
ANSWER_BYTES_MAX: Final = 1024 * 1024 * 1024


class Client:
    """The client of a server; use it as a context manager.

    async with Client("http://127.0.0.1:4437") as client:
        stream = client.stream("demo/hello")
        await stream.create("text/plain")
        await stream.append("hello")
        async for message in stream.read():
            print(message.text)

    `auth`, `headers` and `params` are sent with every request to this server; a value may be a
    function that is called each time. `tls` is for this client alone, which sets the context's ALPN
    protocols. `streams_path` and `proxy_path` say where other servers have their streams and their
    proxy.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        auth: Auth | None = None,
        headers: Mapping[str, Value] | None = None,
        params: Mapping[str, Value] | None = None,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        on_retry: OnRetry | None = None,
        tls: ssl.SSLContext | None = None,
        streams_path: str = STREAMS_PATH,
        proxy_path: str = PROXY_PATH,
        connections_max: int = CONNECTIONS_MAX,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        address = parse_base(url)
        if auth is None and address.username:
            auth = Basic(address.username, address.password)
        self.url = address.base
        self._streams_url = address.base + "/" + streams_path.strip("/")
        self._outbound = Outbound(
            AnyTarget(),
            tls=tls,
            loads_certificates=False,
            connections_max=connections_max,
            calls_max=CALLS_MAX,
        )
        self._calls = Calls(
            self._outbound,
            clock or SystemClock(),
            home=address.base,
            auth=auth,
            headers=headers or {},
            params=params or {},
            timeouts=timeouts or Timeouts(),
            retry=retry or Retry(),
            answer_bytes_max=answer_bytes_max,
            on_retry=on_retry,
        )
        self._proxy_url = address.base + "/" + proxy_path.strip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; requests under way fail."""
        self._calls.close()
        await self._outbound.aclose()

    def stream(
        self, name: str, *, content_type: str | None = None, framing: Framing | None = None
    ) -> Stream:
        """A stream: `bucket/id`, an id in the default bucket, or a full URL.

        The snapshots and the bootstrap of a stream given by URL are below that URL.
        """
        if is_url(name):
            url = bucketed_url = name
        else:
            url = f"{self._streams_url.rstrip('/')}/{encode_path(name)}"
            bucketed_url = below(self.url, *split_name(name))
        return Stream(
            self._calls, name, url, bucketed_url, content_type=content_type, framing=framing
        )

    def bucket(self, bucket_id: str) -> Bucket:
        """A bucket by its id."""
        from holdfast.client.buckets import Bucket  # noqa: PLC0415 (loaded on first use)

        return Bucket(self._calls, bucket_id, below(self.url, bucket_id))

    async def bucket_ids(self) -> list[str]:
        """The ids of all buckets of a Holdfast server."""
        answer = await self._calls.fetch(
            below(self.url, "cluster", "buckets"), dict[str, list[str]]
        )
        return answer["buckets"]

    @cached_property
    def storage(self) -> Storage:
        """The server's packs and object store."""
        from holdfast.client.storage import Storage  # noqa: PLC0415 (loaded on first use)

        return Storage(self._calls, self.url)

    @cached_property
    def proxy(self) -> Proxy:
        """The server's proxy."""
        from holdfast.client.proxy import Proxy  # noqa: PLC0415 (loaded on first use)

        return Proxy(self._calls, self._proxy_url)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        repeatable: bool = False,
    ) -> OutboundResponse:
        """Send any other request, such as for `/metrics`; error responses are raised."""
        return await self._calls.request(
            method,
            f"{self.url}/{path.lstrip('/')}",
            params=params,
            headers=headers,
            body=body,
            repeatable=repeatable or method in {"GET", "HEAD"},
        )
