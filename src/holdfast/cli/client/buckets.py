"""`holdfast bucket … | ls`: buckets and what is in them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output, time_text
from holdfast.cli.terminal import as_bytes
from holdfast.client import START, Client, StreamInfo
from holdfast.errors import BucketNotFoundError, SettingsError
from holdfast.protocol.names import DEFAULT_BUCKET

bucket = App(name="bucket", help="Create, show, delete and watch buckets.", help_format="plaintext")
BucketId = Annotated[str, Parameter(help="Bucket.")]


@bucket.command
def create(
    bucket_id: BucketId,
    /,
    *,
    exist_ok: Annotated[
        bool, Parameter(negative="", help="No error if it is there already.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Create a bucket."""

    async def work(client: Client, output: Output) -> None:
        is_new = await client.bucket(bucket_id).create(exist_ok=exist_ok)
        verb = "created the bucket" if is_new else "was there already:"
        output.say({"bucket": bucket_id, "created": is_new}, f"{verb} {bucket_id}")

    return run(server, work)


@bucket.command
def info(bucket_id: BucketId, /, *, server: Server = DEFAULT_SERVER) -> int:
    """Show how much a bucket holds."""

    async def work(client: Client, output: Output) -> None:
        found = await client.bucket(bucket_id).info()
        text = (
            f"bucket      {found.bucket_id}\nstreams     {found.streams}\n"
            f"bytes       {found.bytes} ({as_bytes(found.bytes)})\n"
            f"created     {time_text(found.created_at_ms)}\n"
            f"last write  {time_text(found.last_write_at_ms)}"
        )
        output.show(msgspec.to_builtins(found), text)

    return run(server, work)


@bucket.command
def delete(bucket_id: BucketId, /, *, server: Server = DEFAULT_SERVER) -> int:
    """Delete a bucket, which must be empty."""

    async def work(client: Client, output: Output) -> None:
        await client.bucket(bucket_id).delete()
        output.say({"bucket": bucket_id, "deleted": True}, f"deleted the bucket {bucket_id}")

    return run(server, work)


@bucket.command
def changes(
    bucket_id: BucketId,
    /,
    *,
    after: Annotated[
        str, Parameter(help="Cursor; -1: all that is kept, now: none.", allow_leading_hyphen=True)
    ] = START,
    prefix: Annotated[str, Parameter(help="Only streams whose id starts so.")] = "",
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", help="Go on as changes come.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Show what happens to the streams of a bucket: appends, creations, deletions."""

    async def work(client: Client, output: Output) -> None:
        cursor = after
        async for page in client.bucket(bucket_id).changes(after, prefix=prefix, live=follow):
            cursor = page.next_cursor
            for change in page.changes:
                kind = "created" if change.created else "deleted" if change.deleted else "appended"
                output.show(
                    msgspec.to_builtins(change) | {"cursor": cursor},
                    f"{kind}\t{output.name(change.stream_id)}\t{change.offset}\t{change.length}",
                )
        output.notice(f"cursor {cursor}")

    return run(server, work)


@bucket.command
def scan(
    bucket_id: BucketId,
    /,
    *,
    after: Annotated[str, Parameter(help="Only what came after this cursor.")] = "",
    until: Annotated[str, Parameter(help="Only what came up to this cursor.")] = "",
    prefix: Annotated[str, Parameter(help="Only streams whose id starts so.")] = "",
    server: Server = DEFAULT_SERVER,
) -> int:
    """Show the plan by which jobs read a bucket as a whole."""

    async def work(client: Client, output: Output) -> None:
        plan = await client.bucket(bucket_id).scan(after=after, until=until, prefix=prefix)
        size_bytes = sum(each.bytes for each in plan.partitions)
        hot = "none" if plan.hot is None else f"{plan.hot.after} to {plan.hot.until}"
        text = (
            f"partitions   {len(plan.partitions)} ({as_bytes(size_bytes)} in packs)\n"
            f"store        {plan.store or '(none)'}\n"
            f"hot          {hot}\n"
            f"next cursor  {plan.next_cursor}"
        )
        output.show(msgspec.to_builtins(plan), text)

    return run(server, work)


def ls(
    bucket_id: Annotated[
        str, Parameter(help="Bucket. (default the one of plain ids)")
    ] = DEFAULT_BUCKET,
    /,
    *,
    prefix: Annotated[str, Parameter(help="Only streams whose id starts so.")] = "",
    after: Annotated[str, Parameter(help="Only streams behind this id.")] = "",
    limit: Annotated[int | None, Parameter(help="At most so many.")] = None,
    long: Annotated[
        bool, Parameter(name=["--long", "-l"], negative="", help="Size, times and type as well.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> int:
    """List the streams of a bucket, in the order of their ids."""
    if limit is not None and limit < 0:
        raise SettingsError("--limit must not be negative")

    async def work(client: Client, output: Output) -> None:
        left = limit
        if left == 0:
            return
        page = 1000 if left is None else min(1000, left)
        try:
            async for stream in client.bucket(bucket_id).streams(
                prefix=prefix, after=after, page_size=page
            ):
                name = output.name(stream.stream_id)
                shown = _long(stream, name) if long else name
                output.show(msgspec.to_builtins(stream), shown)
                if left is not None:
                    left -= 1
                    if left == 0:
                        return
        except BucketNotFoundError:
            # It comes with its first stream, and nobody can create it.
            if bucket_id != DEFAULT_BUCKET:
                raise

    return run(server, work)


def _long(stream: StreamInfo, name: str) -> str:
    written = time_text(stream.last_write_at_ms or stream.created_at_ms)
    return (
        f"{stream.status:6}  {as_bytes(stream.tail_offset):>10}  {written}  "
        f"{stream.content_type:24}  {name}"
    )
