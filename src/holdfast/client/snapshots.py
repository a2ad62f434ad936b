"""Snapshots of a stream, and its bootstrap: the snapshot and the messages since."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.client.calls import Calls, decode, may_repeat
from holdfast.client.failures import error_of
from holdfast.client.messages import (
    JSON_LENGTHS,
    Assembler,
    Batch,
    Framing,
    Lengths,
    Message,
    Views,
    is_set,
    next_offset,
)
from holdfast.client.reading import Live, Reading
from holdfast.client.urls import below
from holdfast.errors import BadAnswerError, HoldfastError, OffsetGoneError
from holdfast.net.outbound import OutboundStream
from holdfast.protocol.headers import START
from holdfast.protocol.multipart import MultipartParser, PartPiece, boundary_of

# The largest snapshot that is returned in one piece.
SNAPSHOT_BYTES_MAX: Final = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Snapshot(Views):
    """The state of a stream at an offset; without a snapshot it is empty, at offset `-1`."""

    payload: bytes
    content_type: str
    offset: str

    @property
    def exists(self) -> bool:
        """Whether the stream has a snapshot."""
        return self.offset != START


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A snapshot to be published together with those of other streams."""

    stream_id: str
    offset: str
    payload: bytes
    content_type: str = "application/octet-stream"
    if_match: str | None = None

    def encoded(self) -> list[bytes]:
        """The snapshot as it is in the body of the request: a line of JSON, then its bytes."""
        line = {"stream_id": self.stream_id, "offset": self.offset, "length": len(self.payload)}
        line["content_type"] = self.content_type
        if self.if_match is not None:
            line["if_match"] = self.if_match
        return [msgspec.json.encode(line), b"\n", self.payload]


class _Published(msgspec.Struct):
    """What became of one of many snapshots."""

    status: int
    error: dict[str, Any] | None = None


class _AllPublished(msgspec.Struct):
    snapshots: list[_Published]


async def publish_all(
    calls: Calls,
    url: str,
    snapshots: Sequence[NewSnapshot],
    *,
    prefix: str = "",
    created_until: str = "",
) -> list[HoldfastError | None]:
    """Publish snapshots of several streams in one request; `url` is that of the bucket."""
    body = b"".join(part for each in snapshots for part in each.encoded())
    response = await calls.request(
        "POST",
        below(url, "streams", "snapshots"),
        params={"prefix": prefix} | ({"created_until": created_until} if created_until else {}),
        headers={"Content-Type": "application/octet-stream"},
        body=body,
        # A conditional one that was carried out unnoticed would fail when repeated.
        repeatable=all(each.if_match is None for each in snapshots),
        timeout_s=_upload_s(calls, body),
    )
    results = decode(response.body, _AllPublished).snapshots
    if len(results) != len(snapshots):
        raise BadAnswerError(f"{len(snapshots)} snapshots were sent, and {len(results)} answered.")
    return [
        None if each.error is None else error_of(each.status, {}, msgspec.json.encode(each.error))
        for each in results
    ]


def _upload_s(calls: Calls, body: bytes) -> float:
    """How long an upload may take; allows for a slow connection."""
    return calls.timeouts.request_s + len(body) / 1_000_000 + calls.timeouts.silence_s


class Snapshots:
    """The snapshots of one stream."""

    def __init__(self, calls: Calls, url: str) -> None:
        self._calls = calls
        self._url = url

    async def publish(
        self,
        offset: str,
        body: bytes | AsyncIterable[bytes],
        *,
        content_type: str = "application/octet-stream",
        if_match: str | None = None,
        created_until: str = "",
    ) -> None:
        """Publish the state at an offset; the server may then drop everything before it.

        With `if_match`, an ETag of the stream, only if the stream is still in that state; with
        `created_until`, a cursor, only if it was not created after that. A body in pieces is sent
        as it is produced, and is never retried.
        """
        url, headers = below(self._url, "snapshot", offset), {"Content-Type": content_type}
        if if_match is not None:
            headers["If-Match"] = if_match
        params = {"created_until": created_until} if created_until else None
        if isinstance(body, bytes):
            await self._calls.request(
                "PUT",
                url,
                params=params,
                headers=headers,
                body=body,
                timeout_s=_upload_s(self._calls, body),
            )
            return
        async with self._calls.stream("PUT", url, params=params, headers=headers, body=body):
            pass

    async def get(self, offset: str | None = None) -> Snapshot:
        """The current snapshot; with an offset only if it is there."""
        url = below(self._url, "snapshot", *(() if offset is None else (offset,)))
        response = await self._calls.request("GET", url)
        return Snapshot(
            response.body,
            response.headers.get("content-type", ""),
            response.headers.get("stream-snapshot-offset", START),
        )

    async def delete(self, offset: str) -> None:
        """Delete the snapshot at an offset; servers refuse to delete the current one."""
        await self._calls.request("DELETE", below(self._url, "snapshot", offset))


class Bootstrap:
    """The response to a bootstrap request: the snapshot comes first, then the messages."""

    def __init__(self, response: OutboundStream) -> None:
        headers = dict(response.headers)
        self.snapshot_offset = headers.get("stream-snapshot-offset", START)
        self.next_offset = next_offset(headers)
        self.up_to_date = is_set(headers, "stream-up-to-date")
        self.closed = is_set(headers, "stream-closed")
        # The content type of the latest message.
        self.content_type = ""
        self._lengths = headers.get("stream-message-lengths")
        self._parser = MultipartParser(boundary_of(headers.get("content-type", "")))
        self._pieces = self._all_pieces(response.chunks())
        self._snapshot_read = False

    @property
    def counts_bytes(self) -> bool:
        """Whether the server says that offsets count bytes."""
        return self._lengths is not None

    async def _all_pieces(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[PartPiece]:
        async for chunk in chunks:
            for piece in self._parser.feed(chunk):
                yield piece
        self._parser.finish()

    async def snapshot_pieces(self) -> AsyncIterator[PartPiece]:
        """The snapshot as it arrives, for one that is too large for memory."""
        self._snapshot_read = True
        async for piece in self._pieces:
            yield piece
            if piece.ends:
                return
        raise BadAnswerError("The bootstrap has no first part.")

    async def snapshot(self) -> Snapshot:
        """The whole snapshot; empty, at offset `-1`, if there is none."""
        data, content_type, size_bytes = [], "", 0
        async for piece in self.snapshot_pieces():
            size_bytes += len(piece.data)
            if size_bytes > SNAPSHOT_BYTES_MAX:
                raise BadAnswerError(f"The snapshot exceeds {SNAPSHOT_BYTES_MAX} bytes.")
            data.append(piece.data)
            content_type = piece.headers.get("content-type", "")
        return Snapshot(b"".join(data), content_type, self.snapshot_offset)

    async def messages(self) -> AsyncIterator[Message]:
        """The messages since the snapshot, as they arrive; a snapshot not read yet is skipped.

        They have their own offsets if those count bytes. Otherwise a read can continue only from
        the end, which is the `next_offset` of the last message.
        """
        if not self._snapshot_read:
            async for _ in self.snapshot_pieces():
                pass
        start = self.snapshot_offset
        at = 0 if start == START else _number(start)
        held: Message | None = None
        parts: list[bytes] = []
        async for piece in self._pieces:
            parts.append(piece.data)
            if not piece.ends:
                continue
            payload = b"".join(parts)
            parts.clear()
            self.content_type = piece.headers.get("content-type", "")
            if self.counts_bytes:
                end = at + len(payload) + (self._lengths == JSON_LENGTHS)
                yield Message(payload, f"{at:020d}", f"{end:020d}")
                at = end
                continue
            # Hold each message until the next: only the last one has the end's offset.
            if held is not None:
                yield held
            held = Message(payload, start, start)
        if held is not None:
            yield Message(held.payload, start, self.next_offset)


def _number(offset: str) -> int:
    return int(offset) if offset.isdigit() else 0


@asynccontextmanager
async def open_bootstrap(calls: Calls, url: str) -> AsyncIterator[Bootstrap]:
    """Request the bootstrap of a stream; the response is read inside the block."""
    async with calls.stream("GET", below(url, "bootstrap")) as response:
        yield Bootstrap(response)


Item = Snapshot | Message


async def bootstrap_and_follow(
    calls: Calls, url: str, read_url: str, *, live: Live = True, framing: Framing | None = None
) -> AsyncGenerator[Item, None]:
    """The snapshot, the messages since, and every later one; after a 410 again from a snapshot."""
    failures = 0
    while True:
        at = START
        try:
            async with open_bootstrap(calls, url) as response:
                yield await response.snapshot()
                unframed = _Unframed(framing, response)
                async for message in response.messages():
                    for each in unframed.feed(message):
                        yield each
                at, closed = unframed.end(response.next_offset), response.closed
            if closed or not live:
                return
            async with Reading(calls, read_url, offset=at, live=live, framing=framing) as reading:
                async for message in reading:
                    failures = 0
                    yield message
            return
        except OffsetGoneError as error:
            # A newer snapshot has replaced the messages that would have come next.
            failures += 1
            if failures > 1:
                await calls.wait(failures, error)
        except HoldfastError as error:
            # The bootstrap broke off: repeat it from its snapshot on.
            if at != START or not may_repeat(error, repeatable=True):
                raise
            failures += 1
            await calls.wait(failures, error)


class _Unframed:
    """Cuts the messages of a bootstrap, each of which is one append, into framed messages."""

    def __init__(self, framing: Framing | None, response: Bootstrap) -> None:
        self._assembler = None if framing is None else Assembler(framing)
        self._lengths: Lengths | None = () if response.counts_bytes else None
        self._end = response.snapshot_offset

    def feed(self, message: Message) -> list[Message]:
        if self._assembler is None:
            return [message]
        append = Batch(
            message.payload, "", message.offset, message.next_offset, lengths=self._lengths
        )
        messages = self._assembler.feed(append)
        self._end = messages[-1].next_offset if messages else self._end
        return messages

    def end(self, next_offset: str) -> str:
        """Where to continue: at the beginning of an incomplete message, if there is one."""
        if self._assembler is None or not self._assembler.is_within_message:
            return next_offset
        return self._end
