"""`holdfast create | info | close | delete | fork`: one request each."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output
from holdfast.client import Client

__all__ = ["StreamName", "close", "create", "delete", "fork", "info"]

StreamName = Annotated[str, Parameter(help="Stream: BUCKET/ID, an ID alone, or a URL.")]


def create(
    stream: StreamName,
    /,
    *,
    content_type: Annotated[
        str, Parameter(help="Content type for life. (default application/octet-stream)")
    ] = "application/octet-stream",
    ttl: Annotated[
        int | None, Parameter(help="Seconds after the last use at which the stream ends.")
    ] = None,
    expires_at: Annotated[str | None, Parameter(help="When it ends, RFC 3339.")] = None,
    data: Annotated[str | None, Parameter(help="A first message.")] = None,
    closed: Annotated[bool, Parameter(negative="", help="Create it closed.")] = False,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Create a stream. It is no error if it is there already with the same configuration."""

    async def work(client: Client, output: Output) -> None:
        messages = [] if data is None else [data.encode()]
        created = await client.stream(stream).create(
            content_type, ttl_s=ttl, expires_at=expires_at, closed=closed, messages=messages
        )
        verb = "created" if created.created else "was there already:"
        output.say(
            {"stream": stream} | asdict(created), f"{verb} {stream} ({created.content_type})"
        )

    return run(server, work)


def info(stream: StreamName, /, *, server: Server = DEFAULT_SERVER) -> int:
    """Show what is known of a stream."""

    async def work(client: Client, output: Output) -> None:
        head = asdict(await client.stream(stream).head())
        known = {"stream": stream} | {
            key: value for key, value in head.items() if value is not None
        }
        width = max(map(len, known))
        lines = [
            f"{key.replace('_', ' '):{width}}  {_shown(value)}" for key, value in known.items()
        ]
        output.show({"stream": stream} | head, "\n".join(lines))

    return run(server, work)


def _shown(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def close(stream: StreamName, /, *, server: Server = DEFAULT_SERVER) -> int:
    """Close a stream: nothing can be appended any more, and readers learn that it is over."""

    async def work(client: Client, output: Output) -> None:
        closed = await client.stream(stream).close()
        document = {"stream": stream, "closed": True, "next_offset": closed.next_offset}
        output.say(document, f"closed {stream} at {closed.next_offset}")

    return run(server, work)


def delete(stream: StreamName, /, *, server: Server = DEFAULT_SERVER) -> int:
    """Delete a stream and its data."""

    async def work(client: Client, output: Output) -> None:
        await client.stream(stream).delete()
        output.say({"stream": stream, "deleted": True}, f"deleted {stream}")

    return run(server, work)


def fork(
    source: Annotated[str, Parameter(help="Stream to fork.")],
    target: Annotated[str, Parameter(help="Stream to create.")],
    /,
    *,
    offset: Annotated[
        str | None, Parameter(help="Where the fork leaves the source. (default its tail)")
    ] = None,
    sub_offset: Annotated[
        int | None, Parameter(help="So many JSON messages, or bytes of the append, further on.")
    ] = None,
    ttl: Annotated[
        int | None, Parameter(help="Seconds after the last use at which it ends.")
    ] = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Create a stream that starts as another one was at an offset, and goes on by itself."""

    async def work(client: Client, output: Output) -> None:
        created = await client.stream(target).fork(
            client.stream(source), offset=offset, sub_offset=sub_offset, ttl_s=ttl
        )
        document = {"stream": target, "source": source} | asdict(created)
        output.say(document, f"forked {source} as {target} at {created.next_offset}")

    return run(server, work)
