"""What is kept of a subscription: its document, and one small document for each link.

A link that says nothing but "found by the pattern, nothing acknowledged" is *implied*: it has no
document, since the pattern and the stream's existence say the same. So finding a stream costs no
write, and neither does a crash before one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

BEFORE_FIRST: Final = -1
# How a stream came to be linked; it may be both.
GLOB: Final = 1
EXPLICIT: Final = 2

SUBSCRIPTION_PREFIX: Final = "subscription/"
LINK_PREFIX: Final = "link/"

Type = Literal["webhook", "pull-wake"]


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription's configuration, and where its present wake stands."""

    id: str
    type: Type
    # Drawn at creation: tokens of an earlier subscription with the same id are none of this one's.
    incarnation: int
    config_hash: str
    base_url: str
    created_ms: int
    lease_ttl_ms: int
    pattern: str | None = None
    webhook_url: str | None = None
    # A stream's name, unlike the path that the API speaks of.
    wake_stream: str | None = None
    description: str | None = None

    # The number of wakes so far: the fence.
    generation: int = 0
    wake_id: str | None = None
    # The worker that has claimed the wake; only of pull-wake.
    holder: str | None = None
    # When the wake is taken from who has it.
    lease_ms: int | None = None
    # Deliveries that failed in a row, and when the next one is due. None: nothing is to be sent.
    failures: int = 0
    next_attempt_ms: int | None = None


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stream of a subscription, and how far it is processed."""

    acked: int
    kinds: int
    # The stream's number, so that one created anew under the name is told apart. 0: none yet.
    number: int = 0

    @property
    def implied(self) -> bool:
        """Whether the pattern alone says all of this."""
        return self.acked == BEFORE_FIRST and self.kinds == GLOB

    def with_acked(self, acked: int) -> Link:
        """The same link, processed up to another offset."""
        return Link(acked, self.kinds, self.number)

    def with_kinds(self, kinds: int) -> Link:
        """The same link, made in other ways."""
        return Link(self.acked, kinds, self.number)

    def is_pending(self, tail: int) -> bool:
        """Whether a stream with this tail holds something that is not acknowledged."""
        return tail > (self.acked if self.acked > 0 else 0)


class Step(msgspec.Struct, frozen=True):
    """A change of one subscription: what it becomes, and the links that differ.

    No subscription, or no link, means that it goes.
    """

    subscription: Subscription | None
    links: Mapping[str, Link | None] = {}


_encode = msgspec.msgpack.Encoder().encode
decode_subscription = msgspec.msgpack.Decoder(Subscription).decode
decode_link = msgspec.msgpack.Decoder(Link).decode


def encode_subscription(subscription: Subscription) -> bytes:
    """The document of a subscription."""
    return _encode(subscription)


def encode_link(link: Link | None) -> bytes | None:
    """The document of a link, or None for one that has none."""
    return None if link is None or link.implied else _encode(link)


def subscription_key(subscription_id: str) -> str:
    """Where a subscription's document is kept."""
    return SUBSCRIPTION_PREFIX + subscription_id


def link_key(subscription_id: str, name: str) -> str:
    """Where a link's document is kept; an id holds no slash."""
    return f"{LINK_PREFIX}{subscription_id}/{name}"


def parse_link_key(key: str) -> tuple[str, str]:
    """The subscription's id and the stream's name behind a key."""
    subscription_id, _, name = key[len(LINK_PREFIX) :].partition("/")
    return subscription_id, name
