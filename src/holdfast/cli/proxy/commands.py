"""`holdfast proxy`: call upstreams through the server, which records their responses.

Interrupting a command or breaking its connection does not stop a response.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Protocol

from cyclopts import App, Parameter

from holdfast.cli.client.connection import client_command
from holdfast.cli.client.output import Output
from holdfast.cli.proxy.inputs import (
    Authorization,
    Data,
    Headers,
    RequestBody,
    ResponseId,
    SessionId,
    SignedUrl,
    Ttl,
    authorization_of,
    check_signed_url,
    check_stream,
    check_ttl,
    parse_headers,
    typed,
)
from holdfast.cli.proxy.printing import ResponseName, print_frames, print_response
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
AsEvents = Annotated[
    bool, Parameter(negative="", help="Print the data of Server-Sent Events, one a line.")
]


@commands.command
@client_command
async def request(
    client: Client,
    output: Output,
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
    sse: AsEvents = False,
) -> int:
    """Call an upstream, and print its response as it arrives."""
    _check(upstream, method, session, append_to, ttl)
    body, headers = RequestBody(data), parse_headers(header)
    credentials = authorization_of(upstream_authorization)
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
        output.notice("Stopped before the upstream responded; it may have been called.")
        raise
    if output.as_json or not follow:
        output.show(_document(response), response.url)
    if not follow:
        return 0
    name = ResponseName(response.url, session, response.response_id)
    return await print_response(
        output, response.follow(), name, content_type=response.content_type, sse=sse
    )


def _check(
    upstream: str, method: str | None, session: str | None, append_to: str | None, ttl: int | None
) -> None:
    if not is_url(upstream):
        raise SettingsError(f"{upstream[:40]!r} is not a URL: write http://… or https://…")
    if method is not None and method.upper() not in UPSTREAM_METHODS:
        allowed = ", ".join(UPSTREAM_METHODS)
        raise SettingsError(f"--method must be one of {allowed}, not {method[:20]!r}")
    if session is not None and append_to is not None:
        raise SettingsError("--session and --append-to cannot be combined: both name a stream")
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
    names = ("url", "stream_id", "response_id", "content_type", "offset")
    return {name: getattr(response, name) for name in names}


@commands.command
@client_command
async def connect(
    client: Client,
    output: Output,
    session: Annotated[str, Parameter(help="Session id, any name of your choice.")],
    /,
    *,
    auth_url: Annotated[
        str | None, Parameter(help="Endpoint that is asked first whether this is allowed.")
    ] = None,
    header: Headers = None,
    data: Data = None,
    upstream_authorization: Authorization = None,
    ttl: Ttl = None,
) -> None:
    """Connect a session, and print the signed URL of its stream.

    The stream is created if necessary.
    """
    check_ttl(ttl)
    body, headers = RequestBody(data), parse_headers(header)
    credentials = authorization_of(upstream_authorization)
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


@commands.command
@client_command
async def follow(
    client: Client,
    output: Output,
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
        Parameter(name=["--exit", "-e"], negative="", help="Stop at the present end."),
    ] = False,
    sse: AsEvents = False,
    frames: Annotated[
        bool,
        Parameter(negative="", help="Print the frames of all responses as JSON, until it closes."),
    ] = False,
    session: SessionId = None,
) -> int:
    """Print a response while it is being written, by default the stream's first.

    With --session no signed URL is needed, and an expired one is renewed.
    """
    check_stream(url, session, response)
    if frames and (sse or response is not None):
        raise SettingsError("--frames prints all responses: leave out --response and --sse")
    stream = await _opened(client, url, session)
    if frames:
        await print_frames(output, stream.frames(offset=from_, live=not exit_))
        return 0
    number = response or 1
    reading = stream.follow(number, offset=from_, live=not exit_)
    return await print_response(output, reading, ResponseName(url or "", session, number), sse=sse)


@commands.command
@client_command
async def abort(
    client: Client,
    output: Output,
    url: SignedUrl = None,
    /,
    *,
    response: ResponseId = None,
    session: SessionId = None,
) -> None:
    """Stop responses that are being written; the data that has arrived stays.

    Without --response all responses of the stream are stopped. It is no error if there is none.
    """
    check_stream(url, session, response)
    stream = await _opened(client, url, session)
    await stream.abort(response)
    what = "all responses" if response is None else f"response {response}"
    document = {"stream_id": stream.stream_id, "response_id": response, "aborted": True}
    output.say(document, f"stopped {what} in {stream.stream_id}")


class _ProxyStream(Protocol):
    """A proxy stream, by its session or its signed URL."""

    stream_id: str

    def follow(self, response_id: int, *, offset: str, live: bool) -> ResponseReading: ...

    def frames(self, *, offset: str, live: bool) -> FrameReading: ...

    async def abort(self, response_id: int | None = None) -> None: ...


class _SignedStream:
    def __init__(self, client: Client, url: str) -> None:
        self.stream_id = stream_id_of(url)
        self.follow = partial(client.proxy.follow, url)
        self.frames = partial(client.proxy.frames, url)
        self.abort = partial(client.proxy.abort, url)


async def _opened(client: Client, url: str | None, session: str | None) -> _ProxyStream:
    """The stream named by a session, which renews its URL, or by a signed URL."""
    if session is None:
        assert url is not None, "checked before"
        return _SignedStream(client, url)
    connected = await client.proxy.connect(session)
    if url is not None and stream_id_of(url) != connected.stream_id:
        raise SettingsError("the URL and the --session name different streams: leave one out")
    return connected
