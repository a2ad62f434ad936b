"""What callers ask of a shard, and what it answers."""

from __future__ import annotations

import msgspec

from holdfast.protocol.producer import Producer, ProducerState


class CreateRequest(msgspec.Struct, frozen=True):
    """A PUT: what the stream shall be, and its first content if any."""

    content_type: str
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    close: bool = False
    body: bytes = b""
    producer: Producer | None = None
    seq: bytes | None = None


class AppendRequest(msgspec.Struct, gc=False):
    """A POST: `media` is None where the request has no content type."""

    body: bytes
    media: str | None = None
    close: bool = False
    producer: Producer | None = None
    seq: bytes | None = None


class Created(msgspec.Struct, gc=False):
    """The stream exists; `created` tells whether this request made it."""

    created: bool
    content_type: str
    tail: int
    closed: bool


class Appended(msgspec.Struct, gc=False):
    """The append is durable; `added` tells whether this request added bytes.

    It did not if it only closed the stream, or if an earlier request had done the same already.
    """

    tail: int
    closed: bool = False
    producer: ProducerState | None = None
    added: bool = True


class Deleted(msgspec.Struct, gc=False):
    """The stream is gone."""
