"""`holdfast proxy request`: call an upstream, and print its response as it arrives.

The response is recorded by the server: Ctrl-C, or a broken connection, does not stop it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output
from holdfast.cli.proxy.inputs import (
    Authorization,
    Body,
    Data,
    Headers,
    SessionId,
    Ttl,
    authorization_of,
    check_signed_url,
    check_ttl,
    parse_headers,
    typed,
)
from holdfast.cli.proxy.printing import Place, print_response
from holdfast.client import Client, ProxyResponse
from holdfast.client.urls import is_url
from holdfast.errors import SettingsError
from holdfast.protocol.headers import UPSTREAM_METHODS

__all__ = ["request"]


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
