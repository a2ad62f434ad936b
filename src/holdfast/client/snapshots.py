"""Snapshots of a stream, and its bootstrap: the snapshot and the messages since, as they come."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from holdfast.client.answers import is_set, next_offset
from holdfast.client.calls import Calls
from holdfast.client.messages import JSON_LENGTHS, Message, Views
from holdfast.client.urls import below
from holdfast.errors import BadAnswerError
from holdfast.net.outbound import OutboundStream
from holdfast.protocol.headers import START
from holdfast.protocol.multipart import MultipartParser, PartPiece, boundary_of

# The largest snapshot that is handed out in one piece.
SNAPSHOT_BYTES_MAX: Final = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Snapshot(Views):
    """The state of a stream at an offset; of a stream without one it is empty, at `-1`."""

    payload: bytes
    content_type: str
    offset: str

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return self.offset != START


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
    ) -> None:
        """Publish the state as it is at an offset; what is before it may be forgotten then.

        A body in pieces is sent as it comes, and only once.
        """
        url, headers = below(self._url, "snapshot", offset), {"Content-Type": content_type}
        if isinstance(body, bytes):
            silence_s = self._calls.timeouts.silence_s
            # What a slow line needs for a large body is not a sign of trouble.
            timeout_s = self._calls.timeouts.request_s + len(body) / 1_000_000 + silence_s
            await self._calls.request("PUT", url, headers=headers, body=body, timeout_s=timeout_s)
            return
        async with self._calls.stream("PUT", url, headers=headers, body=body):
            pass

    async def get(self, offset: str | None = None) -> Snapshot:
        """The snapshot that is visible; or only if it is at this offset."""
        url = below(self._url, "snapshot", *(() if offset is None else (offset,)))
        answer = await self._calls.request("GET", url)
        return Snapshot(
            answer.body,
            answer.headers.get("content-type", ""),
            answer.headers.get("stream-snapshot-offset", START),
        )

    async def delete(self, offset: str) -> None:
        """Delete the snapshot at an offset; servers refuse the one that readers need."""
        await self._calls.request("DELETE", below(self._url, "snapshot", offset))


class Bootstrap:
    """The answer to a bootstrap: read the snapshot first, then iterate over the messages."""

    def __init__(self, answer: OutboundStream) -> None:
        headers = dict(answer.headers)
        self.snapshot_offset = headers.get("stream-snapshot-offset", START)
        self.next_offset = next_offset(headers)
        self.up_to_date = is_set(headers, "stream-up-to-date")
        self.closed = is_set(headers, "stream-closed")
        # What the type of a part's message is; the first part's is the snapshot's.
        self.content_type = ""
        self._lengths = headers.get("stream-message-lengths")
        self._parser = MultipartParser(boundary_of(headers.get("content-type", "")))
        self._pieces = self._all_pieces(answer.chunks())
        self._snapshot_read = False

    @property
    def counts_bytes(self) -> bool:
        """Whether the server counts offsets in bytes, and says so."""
        return self._lengths is not None

    async def _all_pieces(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[PartPiece]:
        async for chunk in chunks:
            for piece in self._parser.feed(chunk):
                yield piece
        self._parser.finish()

    async def snapshot_pieces(self) -> AsyncIterator[PartPiece]:
        """The snapshot as it arrives, for one that is too large to be held."""
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
        """The messages since the snapshot, as they arrive; the snapshot is passed over if unread.

        They have offsets of their own where the server counts them in bytes. Otherwise reading on
        is possible from the end alone, and that is what the last one says.
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
            # Which one is the last shows when there is no other.
            if held is not None:
                yield held
            held = Message(payload, start, start)
        if held is not None:
            yield Message(held.payload, start, self.next_offset)


def _number(offset: str) -> int:
    return int(offset) if offset.isdigit() else 0


@asynccontextmanager
async def open_bootstrap(calls: Calls, url: str) -> AsyncIterator[Bootstrap]:
    """Ask for the bootstrap of a stream, whose answer is read inside the block."""
    async with calls.stream("GET", below(url, "bootstrap")) as answer:
        yield Bootstrap(answer)
