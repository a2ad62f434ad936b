"""`holdfast proxy follow`: a response while it is written, from its beginning or from an offset."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output
from holdfast.cli.proxy.inputs import (
    ResponseId,
    SessionId,
    SignedUrl,
    check_response_id,
    check_stream,
)
from holdfast.cli.proxy.printing import Place, print_frames, print_response
from holdfast.cli.proxy.sessions import opened
from holdfast.client import START, Client
from holdfast.errors import SettingsError

__all__ = ["follow"]


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
