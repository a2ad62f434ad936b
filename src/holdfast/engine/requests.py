"""What callers ask of a shard, and what it answers."""

from __future__ import annotations

import msgspec

from holdfast.protocol.producer import Producer, ProducerState


class ForkRequest(msgspec.Struct, frozen=True):
    """Which stream to fork, and where.

    `source` is the number of the stream that the offset was resolved for; 0 if it was not. Only a
    fork that exists already is confirmed without that. `asked_offset` is as asked for.
    """

    name: str
    offset: int | None = None
    asked_offset: int | None = None
    sub_offset: int = 0
    source: int = 0


class CreateRequest(msgspec.Struct, frozen=True):
    """A PUT: what the stream shall be, and its first content if any.

    The content type may be None for a fork, which takes over that of its source.
    """

    content_type: str | None
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    close: bool = False
    body: bytes = b""
    producer: Producer | None = None
    seq: bytes | None = None
    fork: ForkRequest | None = None
    if_match: bytes | None = None
    # Whether the bucket has to exist beforehand.
    needs_bucket: bool = False


class AppendRequest(msgspec.Struct, gc=False):
    """A POST: `media` is None where the request has no content type."""

    body: bytes
    media: str | None = None
    close: bool = False
    producer: Producer | None = None
    seq: bytes | None = None
    if_match: bytes | None = None
    # Whether it is taken even if its bucket is full.
    over_quota: bool = False


class Created(msgspec.Struct, gc=False):
    """The stream exists; `created` tells whether this request made it."""

    created: bool
    content_type: str
    tail: int
    closed: bool
    number: int = 0


class Appended(msgspec.Struct, gc=False):
    """The append is durable; `added` tells whether this request added bytes.

    It did not if it only closed the stream, or if an earlier request had done the same already.
    """

    tail: int
    closed: bool = False
    producer: ProducerState | None = None
    added: bool = True
    number: int = 0


class Deleted(msgspec.Struct, gc=False):
    """The stream or bucket is gone."""


class BucketCreated(msgspec.Struct, gc=False):
    """The bucket is there."""


class SnapshotPublished(msgspec.Struct, gc=False):
    """The snapshot is visible, and the stream starts there."""

    offset: int
    tail: int
