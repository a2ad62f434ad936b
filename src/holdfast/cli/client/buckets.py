"""`holdfast bucket … | ls`: buckets and the streams in them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from holdfast.cli.client.connection import client_command
from holdfast.cli.client.output import Output, time_text
from holdfast.cli.terminal import as_bytes
from holdfast.client import START, Client, StreamInfo
from holdfast.errors import BucketNotFoundError, SettingsError
from holdfast.protocol.names import DEFAULT_BUCKET

bucket = App(name="bucket", help="Create, show, delete and watch buckets.", help_format="plaintext")
BucketId = Annotated[str, Parameter(help="Bucket.")]
Prefix = Annotated[str, Parameter(help="Only streams whose id starts with this.")]


@bucket.command
@client_command
async def create(
    client: Client,
    output: Output,
    bucket_id: BucketId,
    /,
    *,
    exist_ok: Annotated[
        bool, Parameter(negative="", help="An existing bucket is no error.")
    ] = False,
) -> None:
    """Create a bucket."""
    is_new = await client.bucket(bucket_id).create(exist_ok=exist_ok)
    verb = "created the bucket" if is_new else "already exists:"
    output.say({"bucket": bucket_id, "created": is_new}, f"{verb} {bucket_id}")


@bucket.command
@client_command
async def info(client: Client, output: Output, bucket_id: BucketId, /) -> None:
    """Show a bucket's size."""
    found = await client.bucket(bucket_id).info()
    text = (
        f"bucket      {found.bucket_id}\nstreams     {found.streams}\n"
        f"bytes       {found.bytes} ({as_bytes(found.bytes)})\n"
        f"created     {time_text(found.created_at_ms)}\n"
        f"last write  {time_text(found.last_write_at_ms)}"
    )
    output.show(msgspec.to_builtins(found), text)


@bucket.command
@client_command
async def delete(client: Client, output: Output, bucket_id: BucketId, /) -> None:
    """Delete an empty bucket."""
    await client.bucket(bucket_id).delete()
    output.say({"bucket": bucket_id, "deleted": True}, f"deleted the bucket {bucket_id}")


@bucket.command
@client_command
async def changes(
    client: Client,
    output: Output,
    bucket_id: BucketId,
    /,
    *,
    after: Annotated[
        str,
        Parameter(help="Cursor, -1 (all that are kept), or now.", allow_leading_hyphen=True),
    ] = START,
    prefix: Prefix = "",
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", help="Continue as changes arrive.")
    ] = False,
) -> None:
    """Show the appends, creations and deletions in a bucket."""
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


@bucket.command
@client_command
async def scan(
    client: Client,
    output: Output,
    bucket_id: BucketId,
    /,
    *,
    after: Annotated[str, Parameter(help="Only data appended after this cursor.")] = "",
    until: Annotated[str, Parameter(help="Only data appended up to this cursor.")] = "",
    prefix: Prefix = "",
) -> None:
    """Show the plan by which jobs read a whole bucket."""
    plan = await client.bucket(bucket_id).scan(after=after, until=until, prefix=prefix)
    divided = plan.parts or plan.partitions
    size_bytes = sum(each.bytes for each in divided)
    hot_bytes = sum(each.bytes for each in plan.hot)
    text = (
        f"partitions   {len(divided)} ({as_bytes(size_bytes)} in packs)\n"
        f"store        {plan.store or '(none)'}\n"
        f"hot          {len(plan.hot)} ({as_bytes(hot_bytes)} not in packs yet)\n"
        f"next cursor  {plan.next_cursor}"
    )
    output.show(msgspec.to_builtins(plan), text)


@client_command
async def ls(
    client: Client,
    output: Output,
    bucket_id: Annotated[
        str, Parameter(help="Bucket. (default the one of streams without a bucket)")
    ] = DEFAULT_BUCKET,
    /,
    *,
    prefix: Prefix = "",
    after: Annotated[str, Parameter(help="Only streams whose id sorts after this.")] = "",
    limit: Annotated[int | None, Parameter(help="Maximum number of streams.")] = None,
    long: Annotated[
        bool, Parameter(name=["--long", "-l"], negative="", help="Show size, time and type too.")
    ] = False,
) -> None:
    """List the streams of a bucket in the order of their ids."""
    if limit is not None and limit < 0:
        raise SettingsError("--limit must not be negative")
    if limit == 0:
        return
    streams = client.bucket(bucket_id).streams(
        prefix=prefix, after=after, page_size=min(1000, limit or 1000)
    )
    count = 0
    try:
        async for stream in streams:
            name = output.name(stream.stream_id)
            output.show(msgspec.to_builtins(stream), _long(stream, name) if long else name)
            count += 1
            if count == limit:
                return
    except BucketNotFoundError:
        # The default bucket appears with its first stream, and nobody can create it.
        if bucket_id != DEFAULT_BUCKET:
            raise


def _long(stream: StreamInfo, name: str) -> str:
    written = time_text(stream.last_write_at_ms or stream.created_at_ms)
    return (
        f"{stream.status:6}  {as_bytes(stream.tail_offset):>10}  {written}  "
        f"{stream.content_type:24}  {name}"
    )
