"""`holdfast snapshot … | bootstrap`: the state of a stream, and how to start from it."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

from cyclopts import App, Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output, one_line, payload_document, payload_field
from holdfast.cli.client.sources import Sources
from holdfast.cli.client.streams import StreamName
from holdfast.client import Client, Message, Snapshot
from holdfast.errors import SettingsError
from holdfast.protocol.content import DEFAULT, JSON, is_text, media_type

__all__ = ["bootstrap", "snapshot"]

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


@snapshot.command
def delete(
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
