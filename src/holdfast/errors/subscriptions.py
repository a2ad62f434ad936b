"""Errors about subscriptions."""

from __future__ import annotations

from holdfast.errors.root import HoldfastError


class SubscriptionError(HoldfastError):
    """A request about a subscription is malformed.

    Its codes, and those of what derives from it, are spelled as the protocol spells them.
    """

    code = "INVALID_REQUEST"
    status = 400


class WebhookUrlRejectedError(SubscriptionError):
    """The webhook's URL is one that this server must not call."""

    code = "WEBHOOK_URL_REJECTED"


class WakeTokenInvalidError(SubscriptionError):
    """No token of a wake, or one that was not made for this subscription."""

    code = "TOKEN_INVALID"
    status = 401


class WakeTokenExpiredError(SubscriptionError):
    """The token was good, a long time ago."""

    code = "TOKEN_EXPIRED"
    status = 401


class SubscriptionNotFoundError(SubscriptionError):
    """The subscription does not exist, or was deleted."""

    code = "SUBSCRIPTION_NOT_FOUND"
    status = 404

    def __init__(self, subscription: str) -> None:
        super().__init__(f"There is no subscription {subscription!r}. Create it with PUT first.")


class SubscriptionExistsError(SubscriptionError):
    """The subscription exists with another configuration."""

    code = "SUBSCRIPTION_ALREADY_EXISTS"
    status = 409


class WakeFencedError(SubscriptionError):
    """The wake is over: a newer one has taken its place, or its lease has ended."""

    code = "FENCED"
    status = 409


class AlreadyClaimedError(SubscriptionError):
    """Another worker holds the lease."""

    code = "ALREADY_CLAIMED"
    status = 409

    def __init__(self, holder: str, generation: int) -> None:
        super().__init__(f"The worker {holder!r} holds the lease of generation {generation}.")
        self.holder = holder
        self.generation = generation


class NoPendingWorkError(SubscriptionError):
    """Everything is acknowledged: there is nothing to claim."""

    code = "NO_PENDING_WORK"
    status = 409


class AckRefusedError(SubscriptionError):
    """An acknowledgement goes back, goes past the tail, or names a stream that is not linked."""

    code = "INVALID_OFFSET"
    status = 409
