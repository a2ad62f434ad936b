"""Buckets: their streams, what changes in them, and plans to read them as a whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final, Literal

import msgspec

from holdfast.client.calls import Calls
from holdfast.client.json_answers import decode, lines
from holdfast.client.retry import Pacing, may_repeat
from holdfast.client.types import (
    BucketInfo,
    ChangePage,
    Record,
    ScanEnd,
    ScanPartition,
    ScanPlan,
    ScanRange,
    StreamInfo,
)
from holdfast.client.urls import below
from holdfast.errors import HoldfastError, OutboundError
from holdfast.protocol.headers import START
from holdfast.protocol.sse import SseParser

PAGE_STREAMS_MAX: Final = 1000


class _Listing(msgspec.Struct):
    streams: list[StreamInfo]
    next_cursor: str | None = None
    has_more: bool = False


class Bucket:
    """A bucket by its id; nothing is sent before something is asked for."""

    def __init__(self, calls: Calls, bucket_id: str, url: str) -> None:
        self.bucket_id = bucket_id
        self.url = url
        self._calls = calls

    def __repr__(self) -> str:
        return f"Bucket({self.bucket_id!r})"

    async def create(self, *, exist_ok: bool = False) -> bool:
        """Create the bucket; BucketExistsError if that was done before, unless that is fine.

        Returns whether it is new.
        """
        try:
            await self._calls.request("PUT", self.url, repeatable=exist_ok)
        except HoldfastError as error:
            if exist_ok and error.code == "bucket_exists":
                return False
            raise
        return True

    async def info(self) -> BucketInfo:
        """How much the bucket holds."""
        return decode((await self._calls.request("GET", self.url)).body, BucketInfo)

    async def delete(self) -> None:
        """Delete the bucket, which must be empty."""
        await self._calls.request("DELETE", self.url)

    async def streams(
        self, *, prefix: str = "", after: str = "", page_size: int = PAGE_STREAMS_MAX
    ) -> AsyncIterator[StreamInfo]:
        """Every stream whose id starts with a prefix and comes behind `after`, in order."""
        url = below(self.url, "streams")
        while True:
            params = {"limit": str(page_size)}
            params |= {"prefix": prefix} if prefix else {}
            params |= {"after": after} if after else {}
            page = decode((await self._calls.request("GET", url, params=params)).body, _Listing)
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
        """What happened in the bucket since a cursor, page by page; with `live` on and on.

        Pages without changes come, too: their cursor is further on. CursorGoneError says that the
        changes since `after` are not kept any longer: scan, and go on from the scan's cursor.
        """
        params = {"after": after} | ({"prefix": prefix} if prefix else {})
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
            asked = params | ({"live": "long-poll"} if live else {})
            answer = await self._calls.request("GET", url, params=asked, timeout_s=limit_s)
            yield decode(answer.body, ChangePage)
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
            # Servers begin with an event: the next attempt comes after a pause.
            raise OutboundError("An SSE connection ended without a single event.")

    async def scan(
        self,
        *,
        after: str = "",
        until: str = "",
        prefix: str = "",
        partition_bytes: int | None = None,
    ) -> ScanPlan:
        """The plan to read everything that was appended after one cursor and up to another."""
        params = _given(
            after=after, until=until, prefix=prefix, partition_bytes=_text(partition_bytes)
        )
        url = below(self.url, "streams", "scan")
        return decode((await self._calls.request("GET", url, params=params)).body, ScanPlan)

    async def until(
        self,
        after: str = "",
        bytes: int | None = None,  # noqa: A002 (the server's word)
        messages: int | None = None,
        prefix: str = "",
    ) -> ScanEnd:
        """How far a stretch of the log goes that has at most so many bytes and messages."""
        params = _given(after=after, prefix=prefix, bytes=_text(bytes), messages=_text(messages))
        url = below(self.url, "streams", "scan", "until")
        return decode((await self._calls.request("GET", url, params=params)).body, ScanEnd)

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
        """Where the bytes are: of a plan's partition, or between cursors and stream ids.

        What is given besides a partition takes the place of what the partition says.
        """
        if partition is not None:
            after, until = after or partition.after, until or partition.until
            first, last = first or partition.first_stream_id, last or partition.last_stream_id
        params = _given(after=after, until=until, prefix=prefix, first=first, last=last)
        path = below(self.url, "streams", "scan", "ranges")
        async for found in lines(self._calls, path, params, ScanRange):
            yield found

    async def records(
        self,
        *,
        after: str = "",
        until: str = "",
        prefix: str = "",
        first: str = "",
        last: str = "",
    ) -> AsyncIterator[Record]:
        """The messages that are not in packs yet, in the order of the log.

        With `first` and `last` only those of streams from one id to the other, both included.
        """
        params = _given(after=after, until=until, prefix=prefix, first=first, last=last)
        path = below(self.url, "streams", "records")
        async for found in lines(self._calls, path, params, Record):
            yield found


def _given(**params: str) -> dict[str, str]:
    return {name: value for name, value in params.items() if value}


def _text(number: int | None) -> str:
    return "" if number is None else str(number)
