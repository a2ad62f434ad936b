"""Every error Holdfast raises on purpose.

One root, and a class of its own only where a caller would act differently. `code` is the stable
string that travels on the wire, `status` its HTTP status, and `retryable` says whether sending the
same request again can succeed without anybody changing anything. `http.errors` is the one place
that turns these into responses; a client finds the class of a `code` in `error_classes()`.
"""

from __future__ import annotations

from typing import ClassVar


class HoldfastError(Exception):
    """The root of all errors raised on purpose."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class SettingsError(HoldfastError):
    """A setting is missing, unknown or out of range; the server does not start."""

    code = "invalid_settings"


class DataDirectoryLockedError(HoldfastError):
    """Another process has the data directory open."""

    code = "data_directory_locked"


class UnknownFormatError(HoldfastError):
    """The data on disk was written by a version this one does not know."""

    code = "unknown_format"


class LogCorruptError(HoldfastError):
    """The log is damaged somewhere other than at its torn end."""

    code = "log_corrupt"


class CatalogError(HoldfastError):
    """The catalog is damaged, or does not belong to this log and object store."""

    code = "catalog_damaged"


class ObjectMissingError(HoldfastError):
    """An object that is referred to is not in the object store; the message names it."""

    code = "object_missing"


class PackCorruptError(HoldfastError):
    """A pack is damaged; the message names it and says what is wrong."""

    code = "pack_corrupt"


class InvalidRequestError(HoldfastError):
    """The request is malformed; the message says what and why."""

    code = "invalid_request"
    status = 400


class InvalidBucketError(InvalidRequestError):
    """The bucket's id breaks the rules, or is reserved."""

    code = "invalid_bucket_id"


class InvalidStreamIdError(InvalidRequestError):
    """The stream's id breaks the rules of the bucketed surface, or is reserved."""

    code = "invalid_stream_id"


class InvalidOffsetError(InvalidRequestError):
    """The offset is malformed, past the tail, or inside a JSON message."""

    code = "invalid_offset"


class InvalidJsonError(InvalidRequestError):
    """The body of an append to a JSON stream is not JSON."""

    code = "invalid_json"


class UnauthorizedError(HoldfastError):
    """No token, or one that is unknown, malformed or expired."""

    code = "unauthorized"
    status = 401


class ForbiddenError(HoldfastError):
    """The token is good, but not for this."""

    code = "forbidden"
    status = 403


class QuotaExceededError(ForbiddenError):
    """The bucket holds as many bytes or streams as it may."""

    code = "quota_exceeded"


class ProducerFencedError(HoldfastError):
    """A newer epoch of this producer has written: this one is a zombie."""

    code = "stale_producer_epoch"
    status = 403

    def __init__(self, epoch: int) -> None:
        super().__init__(
            f"The producer's epoch is stale: the stream has seen epoch {epoch}. "
            f"Claim the producer with epoch {epoch + 1} and sequence 0."
        )
        self.epoch = epoch


class NotFoundError(HoldfastError):
    """Nothing lives at this path."""

    code = "not_found"
    status = 404


class StreamNotFoundError(NotFoundError):
    """The stream does not exist, was deleted, or has expired."""

    code = "stream_not_found"

    def __init__(self, name: str) -> None:
        path = name.removeprefix("_default/")
        super().__init__(f"There is no stream {path!r}. Create it with PUT first.")


class BucketNotFoundError(NotFoundError):
    """The bucket does not exist."""

    code = "bucket_not_found"

    def __init__(self, bucket: str) -> None:
        super().__init__(f"There is no bucket {bucket!r}. Create it with PUT /{bucket} first.")


class SnapshotNotFoundError(NotFoundError):
    """The stream has no snapshot, or none at this offset."""

    code = "snapshot_not_found"


class MethodNotAllowedError(HoldfastError):
    """The resource does not take this method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here; allowed: {allowed}.")
        self.allowed = allowed


class ConflictError(HoldfastError):
    """The request contradicts the state of the stream."""

    code = "conflict"
    status = 409


class StreamExistsError(ConflictError):
    """The stream exists with another configuration."""

    code = "stream_exists"


class BucketExistsError(ConflictError):
    """The bucket was created before."""

    code = "bucket_exists"


class BucketNotEmptyError(ConflictError):
    """The bucket still holds streams."""

    code = "bucket_not_empty"


class SnapshotConflictError(ConflictError):
    """The snapshot lies past the tail, or is the one that readers need."""

    code = "snapshot_conflict"


class ForkSourceDeletedError(ConflictError):
    """The stream to fork was deleted, and lives on in its forks only."""

    code = "fork_source_deleted"


class StreamClosedError(ConflictError):
    """The stream is closed: nothing can be appended any more."""

    code = "stream_closed"

    def __init__(self, tail: int) -> None:
        super().__init__("The stream is closed and takes no more appends.")
        self.tail = tail


class ContentTypeMismatchError(ConflictError):
    """The append's content type is not the stream's."""

    code = "content_type_mismatch"


class ProducerGapError(ConflictError):
    """A producer skipped a sequence number."""

    code = "producer_sequence_gap"

    def __init__(self, expected: int, received: int) -> None:
        super().__init__(f"The producer's next sequence is {expected}, not {received}.")
        self.expected = expected
        self.received = received


class StreamSeqError(ConflictError):
    """`Stream-Seq` did not increase."""

    code = "stream_seq_regression"


class SwapRefusedError(ConflictError):
    """A pack is not in use any more, or the new packs do not hold the same bytes."""

    code = "swap_refused"


class GoneError(HoldfastError):
    """What was here is gone for good."""

    code = "gone"
    status = 410


class StreamDeletedError(GoneError):
    """The stream was deleted, but forks of it live on: its name is not free yet."""

    code = "stream_deleted"

    def __init__(self, name: str) -> None:
        path = name.removeprefix("_default/")
        super().__init__(f"The stream {path!r} was deleted; its name is free once its forks are.")


class OffsetGoneError(GoneError):
    """The offset lies before the earliest one that is retained."""

    code = "offset_gone"

    def __init__(self, earliest: int) -> None:
        super().__init__(
            f"Everything before offset {earliest:020d} is in a snapshot: start with /bootstrap, "
            "or read from that offset on."
        )
        self.earliest = earliest


class CursorGoneError(GoneError):
    """The changes since this cursor are not in the log any more."""

    code = "cursor_gone"

    def __init__(self, earliest: int) -> None:
        super().__init__(
            f"The changes before cursor {earliest:020d} are not kept any longer: "
            "scan the bucket, and follow its changes from where the scan ends."
        )
        self.earliest = earliest


class PreconditionFailedError(HoldfastError):
    """`If-Match` names another state of the stream than the present one."""

    code = "precondition_failed"
    status = 412


class PayloadTooLargeError(HoldfastError):
    """The request's body is larger than the server takes."""

    code = "payload_too_large"
    status = 413


class HeadersTooLargeError(HoldfastError):
    """The request's head is larger than the server takes."""

    code = "headers_too_large"
    status = 431


class RequestTimeoutError(HoldfastError):
    """The request did not arrive completely in time."""

    code = "request_timeout"
    status = 408
    retryable = True


class RateLimitedError(HoldfastError):
    """Too many requests from this client, or for this bucket."""

    code = "rate_limited"
    status = 429
    retryable = True

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OutboundRefusedError(HoldfastError):
    """A URL that this server must not call: its scheme, its host or its address."""

    code = "target_refused"
    status = 400


class OutboundError(HoldfastError):
    """A server that was called did not answer as it should; the message says what happened."""

    code = "outbound_failed"
    status = 502
    retryable = True


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


class UnavailableError(HoldfastError):
    """The server cannot do this now, and says when to try again."""

    code = "unavailable"
    status = 503
    retryable = True
    retry_after_s: ClassVar[int] = 1


class OverloadedError(UnavailableError):
    """A limit is reached: connections, live readers or pending bytes."""

    code = "overloaded"


class CommitFailedError(UnavailableError):
    """The log refused the batch: nothing of it was stored."""

    code = "commit_failed"


class CommitUnknownError(UnavailableError):
    """The log did not answer in time: the write may or may not be stored."""

    code = "commit_unknown"


class StoreError(UnavailableError):
    """The object store does not answer, or refuses for now.

    `advice` says which setting or permission to change, where waiting alone will not help.
    """

    code = "store_unavailable"

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


def _all_classes(root: type[HoldfastError]) -> list[type[HoldfastError]]:
    found = [root]
    for child in root.__subclasses__():
        found.extend(_all_classes(child))
    return found


def error_classes() -> dict[str, type[HoldfastError]]:
    """Every error class by its wire code."""
    return {cls.code: cls for cls in _all_classes(HoldfastError)}
