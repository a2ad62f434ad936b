"""A stream and its operations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.client.calls import Calls, Retry
from holdfast.client.messages import Framing, check_framing, is_set, message_bytes, request_body
from holdfast.client.producer import Appended, Producer, ProducerLimits, ProducerStamp
from holdfast.client.reading import Live, Reading
from holdfast.client.urls import without_secrets
from holdfast.errors import ConflictError, ContentTypeMismatchError
from holdfast.net.outbound import OutboundResponse
from holdfast.protocol.content import media_type
from holdfast.protocol.headers import START

if TYPE_CHECKING:
    from holdfast.client.snapshots import Bootstrap, Item, Snapshots


@dataclass(frozen=True, slots=True)
class Created:
    """The result of creating a stream; `created` is False if it existed already."""

    created: bool
    content_type: str
    next_offset: str
    closed: bool
    etag: str | None


@dataclass(frozen=True, slots=True)
class StreamHead:
    """The metadata of a stream; None where the server sends none."""

    content_type: str
    next_offset: str
    closed: bool
    etag: str | None
    ttl_s: int | None
    expires_at: str | None
    snapshot_offset: str | None
    earliest_offset: str | None


class Stream:
    """A stream; creating this object sends no request.

    An append needs the stream's content type and fetches it unless `content_type` is given.
    """

    def __init__(
        self,
        calls: Calls,
        name: str,
        url: str,
        bucketed_url: str,
        *,
        content_type: str | None = None,
        framing: Framing | None = None,
    ) -> None:
        check_framing(framing)
        self.name = name
        self.url = url
        self.content_type = content_type
        self.framing: Framing | None = framing
        self._bucketed_url = bucketed_url
        self._calls = calls

    def __repr__(self) -> str:
        return f"Stream({without_secrets(self.name)!r})"

    @cached_property
    def snapshots(self) -> Snapshots:
        """The stream's snapshots."""
        from holdfast.client.snapshots import Snapshots  # noqa: PLC0415 (loaded on first use)

        return Snapshots(self._calls, self._bucketed_url)

    async def create(
        self,
        content_type: str | None = None,
        *,
        ttl_s: int | None = None,
        expires_at: str | None = None,
        closed: bool = False,
        messages: Iterable[Any] = (),
        if_match: str | None = None,
    ) -> Created:
        """Create the stream, with initial `messages` if given.

        Creating it again with the same configuration is fine; with another one it is a
        StreamExistsError. `expires_at` is an RFC 3339 time.
        """
        content_type = content_type or self.content_type or "application/octet-stream"
        headers = {"Content-Type": content_type}
        _set(headers, "Stream-TTL", ttl_s)
        _set(headers, "Stream-Expires-At", expires_at)
        _set(headers, "Stream-Closed", "true" if closed else None)
        _set(headers, "If-Match", if_match)
        media = media_type(content_type)
        encoded = [message_bytes(each, media, self.framing) for each in messages]
        body = request_body(encoded, media) if encoded else b""
        response = await self._calls.request(
            "PUT", self.url, headers=headers, body=body, repeatable=if_match is None
        )
        return self._created(response, content_type)

    async def fork(
        self,
        source: Stream,
        *,
        offset: str | None = None,
        sub_offset: int | None = None,
        content_type: str | None = None,
        ttl_s: int | None = None,
    ) -> Created:
        """Create this stream as a fork of another one, at an offset or at its tail."""
        headers = {"Stream-Forked-From": source.path}
        _set(headers, "Content-Type", content_type or self.content_type)
        _set(headers, "Stream-Fork-Offset", offset)
        _set(headers, "Stream-Fork-Sub-Offset", sub_offset)
        _set(headers, "Stream-TTL", ttl_s)
        response = await self._calls.request("PUT", self.url, headers=headers)
        return self._created(response, content_type or "")

    async def append(
        self,
        message: Any,
        *,
        seq: str | None = None,
        close: bool = False,
        if_match: str | None = None,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Append one message: any value on a JSON stream (bytes are JSON text), else bytes or str.

        It is retried only if it was certainly not stored; a `producer` makes every retry safe.
        `close` closes the stream in the same step.
        """
        return await self.append_many(
            [message], seq=seq, close=close, if_match=if_match, producer=producer
        )

    async def append_many(
        self,
        messages: Iterable[Any],
        *,
        seq: str | None = None,
        close: bool = False,
        if_match: str | None = None,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Append messages in one request, all or none.

        On a byte stream that is not framed they become one message.
        """
        content_type = await self.known_content_type()
        media = media_type(content_type)
        body = request_body([message_bytes(each, media, self.framing) for each in messages], media)
        return await self.post(
            body, content_type, seq=seq, close=close, if_match=if_match, producer=producer
        )

    async def close(
        self, *, producer: ProducerStamp | None = None, if_match: str | None = None
    ) -> Appended:
        """Close the stream: no more appends are possible, and readers see its end."""
        return await self.post(b"", None, close=True, if_match=if_match, producer=producer)

    async def post(
        self,
        body: bytes,
        content_type: str | None,
        *,
        seq: str | None = None,
        close: bool = False,
        if_match: str | None = None,
        producer: ProducerStamp | None = None,
        lengths: Sequence[int] = (),
        retry: Retry | None = None,
    ) -> Appended:
        """Append an encoded body; `lengths` are those of its messages, if they are several."""
        headers: dict[str, str] = {}
        _set(headers, "Content-Type", content_type)
        _set(headers, "Stream-Seq", seq)
        _set(headers, "Stream-Closed", "true" if close else None)
        _set(headers, "If-Match", if_match)
        _set(headers, "Stream-Message-Lengths", ",".join(map(str, lengths)) or None)
        if producer is not None:
            headers |= {
                "Producer-Id": producer.producer_id,
                "Producer-Epoch": str(producer.epoch),
                "Producer-Seq": str(producer.seq),
            }
            _set(headers, "Producer-Digest", producer.digest)
        try:
            response = await self._calls.request(
                "POST",
                self.url,
                headers=headers,
                body=body,
                # A conditional request that was carried out unnoticed would fail when repeated.
                repeatable=producer is not None or (not body and if_match is None),
                retry=retry,
            )
        except ConflictError as error:
            # The stream may have been replaced by another one; other servers have no code for that.
            if type(error) in {ConflictError, ContentTypeMismatchError}:
                self.content_type = None
            raise
        # A close without data is always 204.
        return _appended(response, duplicate=producer is not None and bool(body))

    async def head(self) -> StreamHead:
        """The stream's metadata."""
        headers = (await self._calls.request("HEAD", self.url)).headers
        ttl = headers.get("stream-ttl")
        self.content_type = headers.get("content-type", "application/octet-stream")
        return StreamHead(
            content_type=self.content_type,
            next_offset=headers.get("stream-next-offset", START),
            closed=is_set(headers, "stream-closed"),
            etag=headers.get("etag"),
            ttl_s=int(ttl) if ttl is not None and ttl.isdigit() else None,
            expires_at=headers.get("stream-expires-at"),
            snapshot_offset=headers.get("stream-snapshot-offset"),
            earliest_offset=headers.get("stream-earliest-offset"),
        )

    async def delete(self) -> None:
        """Delete the stream and its data."""
        await self._calls.request("DELETE", self.url)

    def read(
        self,
        offset: str = START,
        *,
        live: Live = False,
        last: int | None = None,
        max_bytes: int | None = None,
        cursor: str | None = None,
    ) -> Reading:
        """Read from an offset to the tail, or with `live` until the stream is closed.

        `offset` is `-1` (the start), `now`, or one from a message, batch or reading. `last` starts
        this many messages before the tail instead, if the server supports it.
        """
        return Reading(
            self._calls,
            self.url,
            offset=offset,
            live=live,
            framing=self.framing,
            last=last,
            max_bytes=max_bytes,
            cursor=cursor,
        )

    def producer(
        self,
        producer_id: str,
        *,
        epoch: int | None = None,
        auto_claim: bool = False,
        limits: ProducerLimits | None = None,
    ) -> Producer:
        """A writer whose appends are stored exactly once; use it as a context manager.

        With an `epoch` it continues what was begun under that epoch: the n-th message is stored
        once, however often a program runs again with the same messages.
        """
        return Producer(
            self._calls, self, producer_id, epoch=epoch, auto_claim=auto_claim, limits=limits
        )

    def bootstrap(self) -> AbstractAsyncContextManager[Bootstrap]:
        """The snapshot and every message since, in one response that is read as it arrives."""
        from holdfast.client.snapshots import open_bootstrap  # noqa: PLC0415 (loaded on first use)

        return open_bootstrap(self._calls, self._bucketed_url)

    def bootstrap_and_follow(self, *, live: Live = True) -> AsyncGenerator[Item, None]:
        """A snapshot, the messages since, and with `live` every later one.

        async for item in stream.bootstrap_and_follow():
            if isinstance(item, Snapshot):
                state = load(item)         # start again from here
            else:
                state = fold(state, item)  # one more message
        """
        from holdfast.client.snapshots import bootstrap_and_follow  # noqa: PLC0415 (as above)

        return bootstrap_and_follow(
            self._calls, self._bucketed_url, self.url, live=live, framing=self.framing
        )

    @property
    def path(self) -> str:
        """The path of the stream's URL, which identifies it on its server."""
        return "/" + self.url.partition("://")[2].partition("/")[2].partition("?")[0]

    async def known_content_type(self) -> str:
        """The stream's content type, fetched once."""
        if self.content_type is None:
            return (await self.head()).content_type
        return self.content_type

    def _created(self, response: OutboundResponse, content_type: str) -> Created:
        self.content_type = response.headers.get("content-type", content_type)
        return Created(
            created=response.status == 201,
            content_type=self.content_type,
            next_offset=response.headers.get("stream-next-offset", START),
            closed=is_set(response.headers, "stream-closed"),
            etag=response.headers.get("etag"),
        )


def _set(headers: dict[str, str], name: str, value: object) -> None:
    if value is not None:
        headers[name] = str(value)


def _appended(response: OutboundResponse, *, duplicate: bool) -> Appended:
    headers = response.headers
    seq = headers.get("producer-seq", "")
    return Appended(
        next_offset=headers.get("stream-next-offset", ""),
        closed=is_set(headers, "stream-closed"),
        etag=headers.get("etag"),
        duplicate=duplicate and response.status == 204,
        producer_seq=int(seq) if seq.isdigit() else None,
        producer_digest=headers.get("producer-digest"),
    )
