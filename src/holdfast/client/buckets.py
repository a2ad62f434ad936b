"""Buckets: their streams, their changes, and scans of everything in them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from holdfast.client.calls import Calls, Pacing, decode, decode_packed, may_repeat
from holdfast.client.urls import below
from holdfast.errors import HoldfastError, OutboundError
from holdfast.format.packs import PackInfo, PackStreams, ScanPart, ScanRange
from holdfast.protocol.headers import START
from holdfast.protocol.sse import SseParser

if TYPE_CHECKING:
    from holdfast.client.snapshots import NewSnapshot

PAGE_STREAMS_MAX: Final = 1000


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream in a bucket's listing."""

    stream_id: str
    status: str
    content_type: str
    tail_offset: int
    created_at_ms: int
    last_write_at_ms: int | None = None


class BucketInfo(msgspec.Struct, frozen=True):
    """The size of a bucket."""

    bucket_id: str
    streams: int
    bytes: int
    created_at_ms: int | None = None
    last_write_at_ms: int | None = None


class Change(msgspec.Struct, frozen=True):
    """One append, creation or deletion in a bucket."""

    stream_id: str
    offset: int = 0
    length: int = 0
    created: bool = False
    deleted: bool = False


class ChangePage(msgspec.Struct, frozen=True):
    """Changes up to a cursor from which to continue."""

    changes: list[Change]
    next_cursor: str
    up_to_date: bool = False


class ScanPartition(msgspec.Struct, frozen=True):
    """The part of a scan by names for one worker: streams whose bytes are in packs."""

    shard: int
    first_stream_id: str
    last_stream_id: str
    after: str
    until: str
    bytes: int
    ranges: int


class ScanHot(msgspec.Struct, frozen=True):
    """A part of what is not in packs yet: streams from one id to another, both included."""

    shard: int
    first_stream_id: str
    last_stream_id: str
    after: str
    until: str
    bytes: int


class ScanPlan(msgspec.Struct, frozen=True):
    """A plan to read a whole bucket."""

    bucket_id: str
    after: str
    until: str
    flushed: str
    store: str
    # By names.
    partitions: list[ScanPartition]
    # By packs: what to read, and where that is now.
    parts: list[ScanPart]
    packs: list[PackInfo]
    hot: list[ScanHot]
    next_cursor: str
    prefix: str = ""
    # The id in the store's marker.
    store_id: str = ""
    # Streams of which some data in this range is gone.
    lost: list[str] = []


class ScanEnd(msgspec.Struct, frozen=True):
    """The end of a stretch of the log of limited size, and roughly what is in it."""

    bucket_id: str
    after: str
    until: str
    latest: str
    bytes: int
    messages: int
    # The store of the log that the cursors refer to.
    store_id: str = ""
    # When the first message after `after` was written, at the earliest; None if there is none.
    first_ms: int | None = None


class ScanForks(msgspec.Struct, frozen=True):
    """Forks that inherit something: from one id to another, both included."""

    first_stream_id: str
    last_stream_id: str
    forks: int
    # What they inherit, together.
    bytes: int


class _ForkPlan(msgspec.Struct):
    parts: list[ScanForks]


class Record(msgspec.Struct, frozen=True):
    """A message that is not in packs yet, or that a fork inherits."""

    stream_id: str
    stream: int
    offset: int
    next_offset: int
    timestamp_ms: int
    position: int
    content_type: str
    payload: bytes


class _Listing(msgspec.Struct):
    streams: list[StreamInfo]
    next_cursor: str | None = None
    has_more: bool = False


class Bucket:
    """A bucket; creating this object sends no request."""

    def __init__(self, calls: Calls, bucket_id: str, url: str) -> None:
        self.bucket_id = bucket_id
        self.url = url
        self._calls = calls

    def __repr__(self) -> str:
        return f"Bucket({self.bucket_id!r})"

    async def create(self, *, exist_ok: bool = False) -> bool:
        """Create the bucket and return whether it is new.

        An existing bucket is a BucketExistsError unless `exist_ok`.
        """
        try:
            await self._calls.request("PUT", self.url, repeatable=exist_ok)
        except HoldfastError as error:
            if exist_ok and error.code == "bucket_exists":
                return False
            raise
        return True

    async def info(self) -> BucketInfo:
        """The number of streams and bytes in the bucket."""
        return await self._calls.fetch(self.url, BucketInfo)

    async def delete(self) -> None:
        """Delete the bucket, which must be empty."""
        await self._calls.request("DELETE", self.url)

    async def streams(
        self, *, prefix: str = "", after: str = "", page_size: int = PAGE_STREAMS_MAX
    ) -> AsyncIterator[StreamInfo]:
        """The streams whose id starts with `prefix` and sorts after `after`, in order."""
        url = below(self.url, "streams")
        while True:
            params = _given(limit=str(page_size), prefix=prefix, after=after)
            page = await self._calls.fetch(url, _Listing, params)
            for stream in page.streams:
                yield stream
            if not page.has_more or not page.next_cursor:
                return
            after = page.next_cursor

    async def changes(
        self,
        after: str = START,
        *,
        prefix: str = "",
        live: bool | Literal["sse", "long-poll"] = False,
    ) -> AsyncGenerator[ChangePage, None]:
        """The changes in the bucket since a cursor, page by page; with `live` without end.

        A page without changes still moves the cursor. CursorGoneError says that the changes since
        `after` are no longer kept: scan, and continue from the scan's cursor.
        """
        params = _given(after=after, prefix=prefix)
        failures = 0
        pacing = Pacing(self._calls.clock, self._calls.retry)
        while True:
            brought = False
            pacing.begin()
            try:
                async with aclosing(self._pages(params, live)) as pages:
                    async for page in pages:
                        failures = 0
                        brought = brought or bool(page.changes) or not page.up_to_date
                        params["after"] = page.next_cursor
                        yield page
                        if page.up_to_date and not live:
                            return
                await pacing.end(brought=brought)
            except HoldfastError as error:
                if not live or not may_repeat(error, repeatable=True):
                    raise
                failures += 1
                await self._calls.wait(failures, error, self._calls.retry.for_ever())

    async def _pages(
        self, params: dict[str, str], live: bool | Literal["sse", "long-poll"]
    ) -> AsyncGenerator[ChangePage, None]:
        url, limit_s = below(self.url, "streams", "changes"), self._calls.timeouts.live_s
        if not live or live == "long-poll":
            query = params | ({"live": "long-poll"} if live else {})
            response = await self._calls.request("GET", url, params=query, timeout_s=limit_s)
            yield decode(response.body, ChangePage)
            return
        parser, seen = SseParser(), False
        async with self._calls.stream(
            "GET", url, params=params | {"live": "sse"}, silence_s=limit_s, lasts=True
        ) as stream:
            async for piece in stream.chunks():
                for event in parser.feed(piece):
                    if event.kind == "changes":
                        seen = True
                        yield decode(event.data, ChangePage)
        if not seen:
            # Servers send an event first, so something is wrong: pause before the next attempt.
            raise OutboundError("An SSE connection ended without a single event.")

    async def publish_snapshots(
        self, snapshots: Sequence[NewSnapshot], *, prefix: str = "", created_until: str = ""
    ) -> list[HoldfastError | None]:
        """Publish snapshots of several streams in one request, up to 500.

        Each is published, or refused with the error at its place in the result. Streams that were
        created after the cursor `created_until` are refused. `prefix` is that of all their ids, for
        a token that is restricted to it.
        """
        from holdfast.client.snapshots import publish_all  # noqa: PLC0415 (loaded on first use)

        return await publish_all(
            self._calls, self.url, snapshots, prefix=prefix, created_until=created_until
        )

    async def scan(
        self,
        *,
        after: str = "",
        until: str = "",
        prefix: str = "",
        first: str = "",
        last: str = "",
        from_ms: int | None = None,
        to_ms: int | None = None,
        by: Literal["names", "packs"] | None = None,
        partition_bytes: int | None = None,
        partitions: int | None = None,
        since: str = "",
        lost: int | None = None,
    ) -> ScanPlan:
        """A plan to read everything appended after one cursor and up to another.

        It is divided by stream names, by packs, or by default as the server thinks best, into parts
        of about `partition_bytes` and at least about `partitions` of them. `from_ms` and `to_ms`
        leave out what is known to have been appended before or after. Messages that were gone at
        the cursor `since` are not listed as lost; of streams with others, the first 100 by name are
        listed, or as many as `lost`.
        """
        params = _given(
            after=after,
            until=until,
            prefix=prefix,
            first=first,
            last=last,
            from_ms=from_ms,
            to_ms=to_ms,
            by=by,
            partition_bytes=partition_bytes,
            partitions=partitions,
            since=since,
            lost=lost,
        )
        url = below(self.url, "streams", "scan")
        return await self._calls.fetch(url, ScanPlan, params, self._calls.timeouts.plan_s)

    async def pack_streams(
        self,
        pack: str,
        *,
        prefix: str = "",
        first_stream: int | None = None,
        last_stream: int | None = None,
        numbers: Sequence[int] = (),
    ) -> PackStreams:
        """What a pack does not say about its streams: which are gone, and the names of some.

        Names are those of streams whose id starts with `prefix`.
        """
        params = _given(
            pack=pack,
            prefix=prefix,
            first_stream=first_stream,
            last_stream=last_stream,
            numbers=",".join(map(str, numbers)),
        )
        url = below(self.url, "streams", "scan", "pack")
        limit_s = self._calls.timeouts.plan_s
        response = await self._calls.request("GET", url, params=params, timeout_s=limit_s)
        return decode_packed(response.body, PackStreams)

    async def until(
        self,
        after: str = "",
        bytes: int | None = None,  # noqa: A002 (the server's word)
        messages: int | None = None,
        prefix: str = "",
        *,
        ms: int | None = None,
        from_ms: int | None = None,
    ) -> ScanEnd:
        """The cursor up to which at most this many bytes and messages were appended.

        `ms` limits the time between the first of them and the last. What is known to have been
        appended before `from_ms` is skipped.
        """
        params = _given(
            after=after, prefix=prefix, bytes=bytes, messages=messages, ms=ms, from_ms=from_ms
        )
        url = below(self.url, "streams", "scan", "until")
        return await self._calls.fetch(url, ScanEnd, params, self._calls.timeouts.plan_s)

    async def ranges(
        self,
        partition: ScanPartition | None = None,
        *,
        after: str = "",
        until: str = "",
        first: str = "",
        last: str = "",
        prefix: str = "",
    ) -> AsyncIterator[ScanRange]:
        """Where the bytes of a plan's partition, or between cursors and stream ids, are stored.

        Arguments given besides a partition override it.
        """
        if partition is not None:
            after, until = after or partition.after, until or partition.until
            first, last = first or partition.first_stream_id, last or partition.last_stream_id
        params = _given(after=after, until=until, prefix=prefix, first=first, last=last)
        url = below(self.url, "streams", "scan", "ranges")
        async for each in self._calls.lines(url, ScanRange, params):
            yield each

    async def records(
        self,
        *,
        after: str = "",
        until: str = "",
        prefix: str = "",
        first: str = "",
        last: str = "",
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> AsyncIterator[Record]:
        """The messages that are not in packs yet, in log order.

        `first` and `last` limit them to streams with ids in that range, both included, `from_ms`
        and `to_ms` to times.
        """
        params = _given(
            after=after,
            until=until,
            prefix=prefix,
            first=first,
            last=last,
            from_ms=from_ms,
            to_ms=to_ms,
        )
        url = below(self.url, "streams", "records")
        async for each in self._calls.lines(url, Record, params):
            yield each

    async def forks(
        self,
        *,
        after: str = "",
        until: str = "",
        prefix: str = "",
        first: str = "",
        last: str = "",
        partition_bytes: int | None = None,
    ) -> list[ScanForks]:
        """The forks created after one cursor and up to another, in parts of about that size."""
        params = _given(
            after=after,
            until=until,
            prefix=prefix,
            first=first,
            last=last,
            partition_bytes=partition_bytes,
        )
        url = below(self.url, "streams", "scan", "forks")
        return (await self._calls.fetch(url, _ForkPlan, params)).parts

    async def inherited(
        self,
        *,
        after: str = "",
        until: str = "",
        prefix: str = "",
        first: str = "",
        last: str = "",
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> AsyncIterator[Record]:
        """The messages that these forks inherit, by stream id and offset.

        They count as appended when the fork was created, at that position and time.
        """
        params = _given(
            after=after,
            until=until,
            prefix=prefix,
            first=first,
            last=last,
            from_ms=from_ms,
            to_ms=to_ms,
        )
        url = below(self.url, "streams", "scan", "inherited")
        async for each in self._calls.lines(url, Record, params):
            yield each


def _given(**params: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in params.items() if value not in {"", None}}
