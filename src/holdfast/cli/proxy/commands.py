"""The commands of `holdfast proxy`.

They are named by import path, so that the help of all of them loads none.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Protocol

from cyclopts import App, Parameter

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
    check_signed_url,
    check_stream,
    check_ttl,
    parse_headers,
    typed,
)
from holdfast.cli.proxy.printing import Place, print_frames, print_response
from holdfast.client import START, Client, FrameReading, ProxyResponse, ResponseReading
from holdfast.client.proxy import stream_id_of
from holdfast.client.urls import is_url
from holdfast.errors import SettingsError
from holdfast.protocol.headers import UPSTREAM_METHODS

commands = App(
    name="proxy",
    help="Call upstreams through the server, which records their responses.",
    help_format="plaintext",
    default_parameter=Parameter(show_default=False),
)


@commands.command
def request(
    upstream: Annotated[str, Parameter(help="URL to call, which the server must allow.")],
    /,
    *,
    method: Annotated[
        str | None,
        Parameter(
            name=["--method", "-X"],
            help="GET, POST, PUT, PATCH or DELETE. (default POST with --data, else GET)",
        ),
    ] = None,
    header: Headers = None,
    data: Data = None,
    upstream_authorization: Authorization = None,
    session: SessionId = None,
    append_to: Annotated[
        str | None, Parameter(help="Signed URL of a stream to append the response to, in quotes.")
    ] = None,
    ttl: Ttl = None,
    follow: Annotated[
        bool, Parameter(help="Print the response as it arrives (the default), or its signed URL.")
    ] = True,
    sse: Annotated[
        bool, Parameter(negative="", help="Print the data of Server-Sent Events, one a line.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Call an upstream through the server's proxy, and print its response as it arrives."""
    _check(upstream, method, session, append_to, ttl)
    body, headers = Body(data), parse_headers(header)
    credentials = authorization_of(upstream_authorization)

    async def work(client: Client, output: Output) -> int:
        content = await body.read(output)
        options: dict[str, Any] = {
            "method": method or ("POST" if body.is_given else "GET"),
            "headers": typed(headers, content),
            "body": content,
            "upstream_authorization": credentials,
            "url_ttl_s": ttl,
        }
        try:
            response = await _sent(client, upstream, session, append_to, options)
        except asyncio.CancelledError:
            output.notice("Stopped before the upstream answered; it may have been called.")
            raise
        if output.as_json or not follow:
            output.show(_document(response), response.url)
        if not follow:
            return 0
        place = Place(response.url, session, response.response_id)
        return await print_response(
            output, response.follow(), place, content_type=response.content_type, sse=sse
        )

    return run(server, work)


def _check(
    upstream: str, method: str | None, session: str | None, append_to: str | None, ttl: int | None
) -> None:
    if not is_url(upstream):
        raise SettingsError(f"{upstream[:40]!r} is no URL: write http://… or https://…")
    if method is not None and method.upper() not in UPSTREAM_METHODS:
        allowed = ", ".join(UPSTREAM_METHODS)
        raise SettingsError(f"--method must be one of {allowed}, not {method[:20]!r}")
    if session is not None and append_to is not None:
        raise SettingsError("--session and --append-to do not go together: both name a stream")
    if append_to is not None:
        check_signed_url(append_to)
    check_ttl(ttl)


async def _sent(
    client: Client,
    upstream: str,
    session: str | None,
    append_to: str | None,
    options: dict[str, Any],
) -> ProxyResponse:
    proxy = client.proxy
    if session is not None:
        connected = await proxy.connect(session)
        return await connected.request(upstream, **options)
    if append_to is not None:
        return await proxy.append(append_to, upstream, **options)
    return await proxy.create(upstream, **options)


def _document(response: ProxyResponse) -> dict[str, object]:
    return {
        "url": response.url,
        "stream_id": response.stream_id,
        "response_id": response.response_id,
        "content_type": response.content_type,
        "offset": response.offset,
    }


@commands.command
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


@commands.command
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


@commands.command
def follow(
    url: SignedUrl = None,
    /,
    *,
    response: ResponseId = None,
    from_: Annotated[
        str,
        Parameter(
            name="--from",
            help="Offset to start at: -1 (the start), or a next_offset. (default -1)",
            allow_leading_hyphen=True,
        ),
    ] = START,
    exit_: Annotated[
        bool,
        Parameter(name=["--exit", "-e"], negative="", help="Stop at what there is so far."),
    ] = False,
    sse: Annotated[
        bool, Parameter(negative="", help="Print the data of Server-Sent Events, one a line.")
    ] = False,
    frames: Annotated[
        bool,
        Parameter(
            negative="", help="Print all frames, of all responses, as JSON; until it is closed."
        ),
    ] = False,
    session: SessionId = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Print a response of a proxy stream while it is written; the first one unless told otherwise.

    With --session a signed URL is not needed, and one that expires is renewed.
    """
    check_stream(url, session)
    check_response_id(response)
    if frames and (sse or response is not None):
        raise SettingsError("--frames is for all responses: leave out --response and --sse")

    async def work(client: Client, output: Output) -> int:
        stream = await opened(client, url, session)
        if frames:
            await print_frames(output, stream.frames(offset=from_, live=not exit_))
            return 0
        number = response or 1
        reading = stream.follow(number, offset=from_, live=not exit_)
        place = Place(url or "", session, number)
        return await print_response(output, reading, place, sse=sse)

    return run(server, work)
