"""`holdfast create | info | close | delete | fork | snapshot … | bootstrap`."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

from cyclopts import App, Parameter

from holdfast.cli.client.connection import StreamName, client_command
from holdfast.cli.client.output import Output, one_line, payload_document, payload_field
from holdfast.cli.client.sources import Sources
from holdfast.client import Client, Message, Snapshot
from holdfast.errors import SettingsError
from holdfast.protocol.content import DEFAULT, JSON, is_text, media_type

snapshot = App(name="snapshot", help="Publish, get and delete snapshots.", help_format="plaintext")


@client_command
async def create(
    client: Client,
    output: Output,
    stream: StreamName,
    /,
    *,
    content_type: Annotated[
        str, Parameter(help="Content type, fixed for life. (default application/octet-stream)")
    ] = DEFAULT,
    ttl: Annotated[
        int | None, Parameter(help="Seconds after its last use until the stream expires.")
    ] = None,
    expires_at: Annotated[str | None, Parameter(help="Expiry time, RFC 3339.")] = None,
    data: Annotated[str | None, Parameter(help="A first message.")] = None,
    closed: Annotated[bool, Parameter(negative="", help="Create it closed.")] = False,
) -> None:
    """Create a stream. Repeating this with the same configuration is no error."""
    messages = [] if data is None else [data.encode()]
    created = await client.stream(stream).create(
        content_type, ttl_s=ttl, expires_at=expires_at, closed=closed, messages=messages
    )
    verb = "created" if created.created else "already exists:"
    output.say({"stream": stream} | asdict(created), f"{verb} {stream} ({created.content_type})")


@client_command
async def info(client: Client, output: Output, stream: StreamName, /) -> None:
    """Show a stream's metadata."""
    head = asdict(await client.stream(stream).head())
    known = {"stream": stream} | {key: value for key, value in head.items() if value is not None}
    width = max(map(len, known))
    lines = [f"{key.replace('_', ' '):{width}}  {_shown(value)}" for key, value in known.items()]
    output.show({"stream": stream} | head, "\n".join(lines))


def _shown(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


@client_command
async def close(client: Client, output: Output, stream: StreamName, /) -> None:
    """Close a stream: no more appends are possible, and readers see its end."""
    closed = await client.stream(stream).close()
    document = {"stream": stream, "closed": True, "next_offset": closed.next_offset}
    output.say(document, f"closed {stream} at {closed.next_offset}")


@client_command
async def delete(client: Client, output: Output, stream: StreamName, /) -> None:
    """Delete a stream and its data."""
    await client.stream(stream).delete()
    output.say({"stream": stream, "deleted": True}, f"deleted {stream}")


@client_command
async def fork(
    client: Client,
    output: Output,
    source: Annotated[str, Parameter(help="Stream to fork.")],
    target: Annotated[str, Parameter(help="Stream to create.")],
    /,
    *,
    offset: Annotated[
        str | None, Parameter(help="Where the fork leaves the source. (default its tail)")
    ] = None,
    sub_offset: Annotated[
        int | None, Parameter(help="JSON messages, or bytes of the append, after --offset.")
    ] = None,
    ttl: Annotated[
        int | None, Parameter(help="Seconds after its last use until the fork expires.")
    ] = None,
) -> None:
    """Create a stream that shares another one's content up to an offset."""
    created = await client.stream(target).fork(
        client.stream(source), offset=offset, sub_offset=sub_offset, ttl_s=ttl
    )
    document = {"stream": target, "source": source} | asdict(created)
    output.say(document, f"forked {source} as {target} at {created.next_offset}")


@snapshot.command
@client_command
async def publish(
    client: Client,
    output: Output,
    stream: StreamName,
    offset: Annotated[str, Parameter(help="Offset up to which the snapshot holds everything.")],
    file: Annotated[
        str, Parameter(help="File, or - for stdin. (default -)", allow_leading_hyphen=True)
    ] = "-",
    /,
    *,
    content_type: Annotated[
        str, Parameter(help="The snapshot's content type. (default application/octet-stream)")
    ] = DEFAULT,
    if_match: Annotated[
        str | None, Parameter(help="Publish it only if the stream has this ETag.")
    ] = None,
) -> None:
    """Publish a stream's state at an offset; the messages before it are dropped."""
    if file.startswith("-") and file != "-":
        raise SettingsError(f"there is no option {file}; a file of that name is ./{file}")
    source = Sources((), [file], lines=False, framed=False)
    source.check()
    source.invite(output)
    body = b"".join([content async for content in source.messages(DEFAULT)])
    await client.stream(stream).snapshots.publish(
        offset, body, content_type=content_type, if_match=if_match
    )
    document = {"stream": stream, "offset": offset, "bytes": len(body)}
    output.say(document, f"published a snapshot of {stream} at {offset} ({len(body)} bytes)")


@snapshot.command
@client_command
async def get(
    client: Client,
    output: Output,
    stream: StreamName,
    /,
    *,
    offset: Annotated[str | None, Parameter(help="Only the snapshot at this offset.")] = None,
) -> None:
    """Print the current snapshot."""
    found = await client.stream(stream).snapshots.get(offset)
    if output.as_json:
        output.document(_snapshot_document(stream, found))
    else:
        output.write_payload(found.payload, found.content_type)
    output.notice(f"snapshot at {found.offset} ({found.content_type})")


@snapshot.command(name="delete")
@client_command
async def delete_snapshot(
    client: Client,
    output: Output,
    stream: StreamName,
    offset: Annotated[str, Parameter(help="The snapshot's offset.")],
    /,
) -> None:
    """Delete a snapshot; servers refuse to delete the current one."""
    await client.stream(stream).snapshots.delete(offset)
    document = {"stream": stream, "offset": offset, "deleted": True}
    output.say(document, f"deleted the snapshot of {stream} at {offset}")


@client_command
async def bootstrap(
    client: Client,
    output: Output,
    stream: StreamName,
    /,
    *,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", help="Continue as messages arrive.")
    ] = False,
) -> None:
    """Print a stream's snapshot and every message since.

    With -f a newer snapshot that replaces messages is printed when it is reached.
    """
    source = client.stream(stream)
    content_type = await source.known_content_type()
    async with aclosing(source.bootstrap_and_follow(live=follow)) as items:
        async for item in items:
            if isinstance(item, Snapshot):
                _print_snapshot(output, stream, item)
            else:
                _print_message(output, item, content_type)


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
