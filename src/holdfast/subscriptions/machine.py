"""The state machine of a subscription: its stored state, and functions from one state to the next.

States, and how to tell them apart:

    IDLE       no wake
    SENDING    webhook: a wake, and `next_attempt_ms` says when to deliver it
    WAITING    webhook: a wake that was delivered; a callback or the lease ends it
    OFFERED    pull-wake: a wake that no worker has claimed
    HELD       pull-wake: a wake with a holder; an ack, a release or the lease ends it

Rules:

- Pending work starts a wake, unless there is one. Each wake has a new id and the next generation.
  Requests that name another wake are fenced off.
- A lease is a deadline. Webhook: it runs from the delivery; each valid callback and each repeated
  delivery extends it. Pull-wake: it runs from the claim, and each ack extends it.
- A failed delivery is repeated with the same wake, after 1 s, 2 s, … 60 s. That extends the lease,
  so that a new wake does not reach a failing receiver any sooner.
- A valid callback shows that the wake has arrived, whatever the delivery's own response was.
- Nothing happens by itself: `next_action` says what to do with a state at a given time, and is
  asked again after every change. So a restart needs nothing but the state.

A subscription is stored as one document, and one small document for each link. A link that says no
more than "matched by the pattern, nothing acknowledged" is *implied* and has no document, since the
pattern and the stream's existence say the same. So a newly matched stream costs no write.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast.errors import (
    AckRefusedError,
    AlreadyClaimedError,
    NoPendingWorkError,
    SubscriptionError,
    WakeFencedError,
)
from holdfast.subscriptions.paths import path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

BEFORE_FIRST: Final = -1
# How a stream was linked; it may be both.
GLOB: Final = 1
EXPLICIT: Final = 2

SUBSCRIPTION_PREFIX: Final = "subscription/"
LINK_PREFIX: Final = "link/"

Type = Literal["webhook", "pull-wake"]


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription's configuration, and the state of its current wake."""

    id: str
    type: Type
    # Random: tokens of an earlier subscription with the same id are not valid for this one.
    incarnation: int
    config_hash: str
    base_url: str
    created_ms: int
    lease_ttl_ms: int
    pattern: str | None = None
    webhook_url: str | None = None
    # The stream's name; the API shows its path.
    wake_stream: str | None = None
    description: str | None = None

    # The number of wakes so far, which fences off old ones.
    generation: int = 0
    wake_id: str | None = None
    # The worker that has claimed the wake; only of pull-wake.
    holder: str | None = None
    # When the lease on the wake ends.
    lease_ms: int | None = None
    # Failed deliveries in a row, and when the next one is due. None: nothing is to be sent.
    failures: int = 0
    next_attempt_ms: int | None = None


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stream of a subscription, and how far it is acknowledged."""

    acked: int
    kinds: int
    # The stream's number, which a later stream of the same name does not have. 0: none yet.
    number: int = 0

    @property
    def implied(self) -> bool:
        return self.acked == BEFORE_FIRST and self.kinds == GLOB

    def with_acked(self, acked: int) -> Link:
        return Link(acked, self.kinds, self.number)

    def with_kinds(self, kinds: int) -> Link:
        return Link(self.acked, kinds, self.number)

    def is_pending(self, tail: int) -> bool:
        return tail > (self.acked if self.acked > 0 else 0)


class Step(msgspec.Struct, frozen=True):
    """A change of one subscription: its new state, and the links that change.

    None deletes the subscription, or the link.
    """

    subscription: Subscription | None
    links: Mapping[str, Link | None] = {}


_encode = encode_subscription = msgspec.msgpack.Encoder().encode
decode_subscription = msgspec.msgpack.Decoder(Subscription).decode
decode_link = msgspec.msgpack.Decoder(Link).decode


def encode_link(link: Link | None) -> bytes | None:
    """The document of a link; None for an implied one."""
    return None if link is None or link.implied else _encode(link)


def subscription_key(subscription_id: str) -> str:
    return SUBSCRIPTION_PREFIX + subscription_id


def link_key(subscription_id: str, name: str) -> str:
    return f"{LINK_PREFIX}{subscription_id}/{name}"


def parse_link_key(key: str) -> tuple[str, str]:
    """The subscription's id and the stream's name in a link's key; an id has no slash."""
    subscription_id, _, name = key[len(LINK_PREFIX) :].partition("/")
    return subscription_id, name


RETRY_FIRST_MS: Final = 1_000
RETRY_MAX_MS: Final = 60_000
JITTER_PERMILLE: Final = 200


class Action(Enum):
    EXPIRE = "expire"
    WITHDRAW = "withdraw"
    WAKE = "wake"
    DELIVER = "deliver"
    OFFER = "offer"
    REST = "rest"


def next_action(
    state: Subscription, now_ms: int, *, pending: bool, sending: bool, offer_ms: int | None
) -> Action:
    """What to do now; REST for nothing before `next_deadline_ms`.

    While a delivery is under way (`sending`) its outcome decides, not the lease. `offer_ms` is when
    to write the wake to the wake stream; None once it is there.
    """
    if state.wake_id is None:
        return Action.WAKE if pending else Action.REST
    if sending:
        return Action.REST
    if state.lease_ms is not None and state.lease_ms <= now_ms:
        return Action.EXPIRE
    if state.type == "webhook":
        due_ms = state.next_attempt_ms
        return Action.DELIVER if due_ms is not None and due_ms <= now_ms else Action.REST
    if state.holder is not None:
        return Action.REST
    if not pending:
        # Otherwise later work would find a wake in place, and no worker would be notified.
        return Action.WITHDRAW
    return Action.OFFER if offer_ms is not None and offer_ms <= now_ms else Action.REST


def next_deadline_ms(state: Subscription, *, sending: bool, offer_ms: int | None) -> int | None:
    """When to ask `next_action` again if nothing happens before."""
    if state.wake_id is None or sending:
        return None
    deadlines = [state.lease_ms, state.next_attempt_ms]
    if state.type == "pull-wake" and state.holder is None:
        deadlines.append(offer_ms)
    return min((each for each in deadlines if each is not None), default=None)


def start_wake(state: Subscription, wake_id: str, now_ms: int) -> Subscription:
    assert state.wake_id is None, "one wake at a time"
    assert state.holder is None, "without a wake there is no holder"
    wake = replace(state, generation=state.generation + 1, wake_id=wake_id)
    if state.type == "pull-wake":
        return wake
    return replace(wake, next_attempt_ms=now_ms, lease_ms=now_ms + state.lease_ttl_ms)


def end_wake(state: Subscription) -> Subscription:
    return replace(state, wake_id=None, holder=None, lease_ms=None, next_attempt_ms=None)


# Webhooks.


def delivered(state: Subscription, now_ms: int) -> Subscription:
    """The receiver has the wake: its response or its callback shows that."""
    return replace(state, failures=0, next_attempt_ms=None, lease_ms=now_ms + state.lease_ttl_ms)


def delivery_failed(state: Subscription, now_ms: int, jitter_permille: int) -> Subscription:
    failures = state.failures + 1
    due_ms = now_ms + retry_delay_ms(failures, jitter_permille)
    return replace(
        state, failures=failures, next_attempt_ms=due_ms, lease_ms=due_ms + state.lease_ttl_ms
    )


def retry_delay_ms(failures: int, jitter_permille: int) -> int:
    assert abs(jitter_permille) <= JITTER_PERMILLE, "a fifth more or less"
    doublings = min(failures - 1, 10)
    delay_ms = min(RETRY_FIRST_MS << doublings, RETRY_MAX_MS)
    return delay_ms + delay_ms * jitter_permille // 1000


def awaits_delivery(state: Subscription, wake_id: str) -> bool:
    """Whether the outcome of a delivery still matters."""
    return state.wake_id == wake_id and state.next_attempt_ms is not None


# Pull-wake.


def check_claim(state: Subscription, *, pending: bool) -> None:
    check_type(state, "pull-wake")
    if state.holder is not None:
        raise AlreadyClaimedError(state.holder, state.generation)
    if not pending:
        raise NoPendingWorkError("Everything is acknowledged: there is nothing to claim.")


def claim(state: Subscription, worker: str, now_ms: int) -> Subscription:
    assert state.wake_id is not None, "there is a wake to claim"
    assert state.holder is None, "one holder at a time"
    return replace(state, holder=worker, lease_ms=now_ms + state.lease_ttl_ms)


# Both.


def check_type(state: Subscription, wanted: str) -> None:
    if state.type != wanted:
        raise SubscriptionError(
            f"This request is for {wanted} subscriptions; {state.id!r} has type {state.type}."
        )


def check_fence(
    state: Subscription, token_generation: int, wake_id: str | None, generation: int | None
) -> None:
    """Raise unless token and request both name the current wake."""
    if (
        state.wake_id is None
        or wake_id != state.wake_id
        or generation != state.generation
        or token_generation != state.generation
        or (state.type == "pull-wake" and state.holder is None)
    ):
        raise WakeFencedError(
            f"This wake is over: the subscription is at generation {state.generation}"
            f"{'' if state.wake_id else ', and idle'}."
        )


def extend(state: Subscription, now_ms: int) -> Subscription:
    """The holder of the wake has called."""
    if state.type == "webhook":
        return delivered(state, now_ms)
    return replace(state, lease_ms=now_ms + state.lease_ttl_ms)


def acknowledge(
    links: Mapping[str, Link],
    acks: Iterable[tuple[str, int]],
    tail_of: Callable[[str], int],
) -> dict[str, Link]:
    """The links that the acknowledgements change; raises if any of these is not valid."""
    changed: dict[str, Link] = {}
    for name, offset in acks:
        link = changed.get(name) or links.get(name)
        path = path_of(name)
        if link is None:
            raise AckRefusedError(f"The stream {path!r} is not linked to this subscription.")
        if offset < link.acked:
            raise AckRefusedError(f"{path!r} is acknowledged up to {link.acked:020d} already.")
        if offset > tail_of(name):
            raise AckRefusedError(f"Offset {offset:020d} is past the tail of {path!r}.")
        if offset > link.acked:
            changed[name] = link.with_acked(offset)
    return changed
