"""The state machine of a subscription: pure functions from one state to the next.

States, and what tells them apart:

    IDLE       no wake
    SENDING    webhook: a wake, and `next_attempt_ms` says when it is to be delivered
    WAITING    webhook: a wake that was delivered; a callback or the lease ends it
    OFFERED    pull-wake: a wake that nobody has claimed
    HELD       pull-wake: a wake with a holder; its ack, its release or the lease ends it

Rules:

- Work that is pending starts a wake, unless there is one. Each wake has a new id and the next
  generation. Whoever speaks of another wake is fenced off.
- A lease is a deadline. Webhook: it runs from the delivery on, each valid callback moves it, and
  so does each delivery that is tried again. Pull-wake: from the claim on, each ack moves it.
- A delivery that fails is repeated with the same wake, after 1 s, 2 s, … 60 s. That moves the
  lease, so that no new wake reaches a failing receiver any sooner.
- A valid callback shows that the wake has arrived, whatever became of the delivery's answer.
- Nothing here happens by itself: `next_action` says what is to be done with a state at a time, and
  is asked again after every change. So a restart needs nothing but the state.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

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

    from holdfast.subscriptions.model import Link, Subscription

RETRY_FIRST_MS: Final = 1_000
RETRY_MAX_MS: Final = 60_000
JITTER_PERMILLE: Final = 200


class Action(Enum):
    """What is to be done with a subscription now."""

    EXPIRE = "expire"
    WITHDRAW = "withdraw"
    WAKE = "wake"
    DELIVER = "deliver"
    OFFER = "offer"
    REST = "rest"


def next_action(
    state: Subscription, now_ms: int, *, pending: bool, sending: bool, offer_ms: int | None
) -> Action:
    """What to do now; REST if that is nothing before `next_deadline_ms`.

    `sending` tells whether a delivery is under way, whose end will say more than the lease.
    `offer_ms` is when the wake is to be written to the wake stream, None once it is there.
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
        # Otherwise later work would find a wake in place, and nobody would hear of it.
        return Action.WITHDRAW
    return Action.OFFER if offer_ms is not None and offer_ms <= now_ms else Action.REST


def next_deadline_ms(state: Subscription, *, sending: bool, offer_ms: int | None) -> int | None:
    """When `next_action` is to be asked again, if nothing happens before."""
    if state.wake_id is None or sending:
        return None
    deadlines = [state.lease_ms, state.next_attempt_ms]
    if state.type == "pull-wake" and state.holder is None:
        deadlines.append(offer_ms)
    return min((each for each in deadlines if each is not None), default=None)


def start_wake(state: Subscription, wake_id: str, now_ms: int) -> Subscription:
    """Idle, and work is pending: the next generation begins."""
    assert state.wake_id is None, "one wake at a time"
    assert state.holder is None, "nobody holds what is not there"
    wake = replace(state, generation=state.generation + 1, wake_id=wake_id)
    if state.type == "pull-wake":
        return wake
    return replace(wake, next_attempt_ms=now_ms, lease_ms=now_ms + state.lease_ttl_ms)


def end_wake(state: Subscription) -> Subscription:
    """Nobody has the wake any more."""
    return replace(state, wake_id=None, holder=None, lease_ms=None, next_attempt_ms=None)


# Webhooks.


def delivered(state: Subscription, now_ms: int) -> Subscription:
    """The receiver has the wake: by its answer, or because it calls back."""
    return replace(state, failures=0, next_attempt_ms=None, lease_ms=now_ms + state.lease_ttl_ms)


def delivery_failed(state: Subscription, now_ms: int, jitter_permille: int) -> Subscription:
    """The delivery is to be repeated later."""
    failures = state.failures + 1
    due_ms = now_ms + retry_delay_ms(failures, jitter_permille)
    return replace(
        state, failures=failures, next_attempt_ms=due_ms, lease_ms=due_ms + state.lease_ttl_ms
    )


def retry_delay_ms(failures: int, jitter_permille: int) -> int:
    """How long to wait after so many failures in a row."""
    assert abs(jitter_permille) <= JITTER_PERMILLE, "a fifth more or less"
    doublings = min(failures - 1, 10)
    delay_ms = min(RETRY_FIRST_MS << doublings, RETRY_MAX_MS)
    return delay_ms + delay_ms * jitter_permille // 1000


def awaits_delivery(state: Subscription, wake_id: str) -> bool:
    """Whether the outcome of a delivery still matters: nothing has overtaken it."""
    return state.wake_id == wake_id and state.next_attempt_ms is not None


# Pull-wake.


def check_claim(state: Subscription, *, pending: bool) -> None:
    """Raise unless the subscription can be claimed now."""
    check_type(state, "pull-wake")
    if state.holder is not None:
        raise AlreadyClaimedError(state.holder, state.generation)
    if not pending:
        raise NoPendingWorkError("Everything is acknowledged: there is nothing to claim.")


def claim(state: Subscription, worker: str, now_ms: int) -> Subscription:
    """The worker holds the wake from now on."""
    assert state.wake_id is not None, "there is a wake to claim"
    assert state.holder is None, "one holder at a time"
    return replace(state, holder=worker, lease_ms=now_ms + state.lease_ttl_ms)


# Both.


def check_type(state: Subscription, wanted: str) -> None:
    """Raise if the request is for subscriptions of the other type."""
    if state.type != wanted:
        raise SubscriptionError(f"This is for {wanted} subscriptions, and {state.id!r} is none.")


def check_fence(
    state: Subscription, token_generation: int, wake_id: str | None, generation: int | None
) -> None:
    """Raise unless token and request both speak of the present wake."""
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
    """A sign of life from who has the wake."""
    if state.type == "webhook":
        return delivered(state, now_ms)
    return replace(state, lease_ms=now_ms + state.lease_ttl_ms)


def acknowledge(
    links: Mapping[str, Link],
    acks: Iterable[tuple[str, int]],
    tail_of: Callable[[str], int],
) -> dict[str, Link]:
    """The links as the acknowledgements leave them, only those that change; or raise for all."""
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
