"""`holdfast create | info | close | delete | fork`: one request each."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

from cyclopts import App, Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output, one_line, payload_document, payload_field
from holdfast.cli.client.sources import Sources
from holdfast.client import Client, Message, Snapshot
from holdfast.errors import SettingsError
from holdfast.protocol.content import DEFAULT, JSON, is_text, media_type

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


snapshot = App(name="snapshot", help="Publish, get and delete snapshots.", help_format="plaintext")


@snapshot.command
def publish(
    stream: StreamName,
    offset: Annotated[str, Parameter(help="The offset up to which it holds everything.")],
    file: Annotated[
        str, Parameter(help="File, or - for stdin. (default -)", allow_leading_hyphen=True)
    ] = "-",
    /,
    *,
    content_type: Annotated[
        str, Parameter(help="Its content type. (default application/octet-stream)")
    ] = DEFAULT,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Publish a stream's state at an offset; what is before it is given up."""
    if file.startswith("-") and file != "-":
        raise SettingsError(f"there is no option {file}; a file of that name is ./{file}")

    source = Sources((), [file], lines=False, framed=False)
    source.check()

    async def work(client: Client, output: Output) -> None:
        source.invite(output)
        body = b"".join([content async for content in source.messages(DEFAULT)])
        await client.stream(stream).snapshots.publish(offset, body, content_type=content_type)
        document = {"stream": stream, "offset": offset, "bytes": len(body)}
        output.say(document, f"published a snapshot of {stream} at {offset} ({len(body)} bytes)")

    return run(server, work)


@snapshot.command
def get(
    stream: StreamName,
    /,
    *,
    offset: Annotated[str | None, Parameter(help="Only the one at this offset.")] = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Print the snapshot that is visible."""

    async def work(client: Client, output: Output) -> None:
        found = await client.stream(stream).snapshots.get(offset)
        if output.as_json:
            output.document(_snapshot_document(stream, found))
        else:
            output.write_payload(found.payload, found.content_type)
        output.notice(f"snapshot at {found.offset} ({found.content_type})")

    return run(server, work)


@snapshot.command(name="delete")
def delete_snapshot(
    stream: StreamName,
    offset: Annotated[str, Parameter(help="The snapshot's offset.")],
    /,
    *,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Delete a snapshot; servers refuse the one that readers need."""

    async def work(client: Client, output: Output) -> None:
        await client.stream(stream).snapshots.delete(offset)
        document = {"stream": stream, "offset": offset, "deleted": True}
        output.say(document, f"deleted the snapshot of {stream} at {offset}")

    return run(server, work)


def bootstrap(
    stream: StreamName,
    /,
    *,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", help="Go on as messages come.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Print a stream's snapshot and every message since.

    With -f it goes on; if a newer snapshot takes the place of messages, that is printed next.
    """

    async def work(client: Client, output: Output) -> None:
        source = client.stream(stream)
        content_type = await source.known_content_type()
        async with aclosing(source.bootstrap_and_follow(live=follow)) as items:
            async for item in items:
                if isinstance(item, Snapshot):
                    _print_snapshot(output, stream, item)
                else:
                    _print_message(output, item, content_type)

    return run(server, work)


def _print_snapshot(output: Output, stream: str, item: Snapshot) -> None:
    if output.as_json:
        output.document({"snapshot": _snapshot_document(stream, item)})
    elif item.exists:
        output.write_payload(item.payload, item.content_type)
        if is_text(media_type(item.content_type)) and not item.payload.endswith(b"\n"):
            output.write(b"\n")


def _print_message(output: Output, item: Message, content_type: str) -> None:
    if output.as_json:
        output.document(payload_document(item, content_type))
    elif media_type(content_type) == JSON:
        output.write(one_line(item.payload) + b"\n")
    else:
        output.write_payload(item.payload, content_type)


def _snapshot_document(stream: str, found: Snapshot) -> dict[str, object]:
    document = {"stream": stream, "offset": found.offset, "content_type": found.content_type}
    return document | (payload_field(found.payload, found.content_type) if found.exists else {})
