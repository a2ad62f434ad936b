"""`holdfast proxy connect | abort`, and how the other commands find a stream."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Protocol

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output
from holdfast.cli.proxy.inputs import (
    Authorization,
    Body,
    Data,
    Headers,
    ResponseId,
    SessionId,
    SignedUrl,
    Ttl,
    authorization_of,
    check_response_id,
    check_stream,
    check_ttl,
    parse_headers,
    typed,
)
from holdfast.client import Client, FrameReading, ResponseReading
from holdfast.client.proxy_requests import stream_id_of
from holdfast.errors import SettingsError

__all__ = ["abort", "connect", "opened"]


def connect(
    session: Annotated[str, Parameter(help="The session's id, any name of your own.")],
    /,
    *,
    auth_url: Annotated[
        str | None, Parameter(help="URL that is asked first whether this is allowed.")
    ] = None,
    header: Headers = None,
    data: Data = None,
    upstream_authorization: Authorization = None,
    ttl: Ttl = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Connect a session, and print the signed URL of its stream, which is created if need be."""
    check_ttl(ttl)
    body, headers = Body(data), parse_headers(header)
    credentials = authorization_of(upstream_authorization)

    async def work(client: Client, output: Output) -> None:
        content = await body.read(output)
        found = await client.proxy.connect(
            session,
            auth_url=auth_url,
            headers=typed(headers, content),
            body=content,
            upstream_authorization=credentials,
            url_ttl_s=ttl,
        )
        document = {
            "session": session,
            "url": found.url,
            "stream_id": found.stream_id,
            "created": found.created,
        }
        output.show(document, found.url)

    return run(server, work)


def abort(
    url: SignedUrl = None,
    /,
    *,
    response: ResponseId = None,
    session: SessionId = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Stop what upstreams are still sending; what has arrived stays.

    Without --response all of the stream's. It is no error if nothing is under way.
    """
    check_stream(url, session)
    check_response_id(response)

    async def work(client: Client, output: Output) -> None:
        stream = await opened(client, url, session)
        await stream.abort(response)
        what = "everything under way" if response is None else f"response {response}"
        document = {"stream_id": stream.stream_id, "response_id": response, "aborted": True}
        output.say(document, f"stopped {what} in {stream.stream_id}")

    return run(server, work)


class _Stream(Protocol):
    """What can be done with a proxy stream, however it was found."""

    stream_id: str

    def follow(self, response_id: int, *, offset: str, live: bool) -> ResponseReading: ...

    def frames(self, *, offset: str, live: bool) -> FrameReading: ...

    async def abort(self, response_id: int | None = None) -> None: ...


class _Signed:
    """A stream by its signed URL alone."""

    def __init__(self, client: Client, url: str) -> None:
        self.stream_id = stream_id_of(url)
        self.follow = partial(client.proxy.follow, url)
        self.frames = partial(client.proxy.frames, url)
        self.abort = partial(client.proxy.abort, url)


async def opened(client: Client, url: str | None, session: str | None) -> _Stream:
    """The stream that is meant; one of a session has a fresh URL, and gets another in time."""
    if session is None:
        assert url is not None, "checked before"
        return _Signed(client, url)
    connected = await client.proxy.connect(session)
    if url is not None and stream_id_of(url) != connected.stream_id:
        raise SettingsError(
            "the URL is of another stream than the --session: leave one of them out"
        )
    return connected
