"""Every error class except those of the proxy; the package's docstring shows the whole tree."""

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


# Requests that are malformed, not allowed, too large or too many.


class InvalidRequestError(HoldfastError):
    """The request is malformed; the message says what is wrong and why."""

    code = "invalid_request"
    status = 400


class InvalidBucketError(InvalidRequestError):
    """The bucket id breaks the naming rules, or is reserved."""

    code = "invalid_bucket_id"


class InvalidStreamIdError(InvalidRequestError):
    """The stream id breaks the naming rules of bucketed streams, or is reserved."""

    code = "invalid_stream_id"


class InvalidOffsetError(InvalidRequestError):
    """The offset is malformed, past the tail, or inside a JSON message."""

    code = "invalid_offset"


class InvalidJsonError(InvalidRequestError):
    """The body of an append to a JSON stream is not JSON."""

    code = "invalid_json"


class UnauthorizedError(HoldfastError):
    """There is no token, or it is unknown, malformed or expired."""

    code = "unauthorized"
    status = 401


class ForbiddenError(HoldfastError):
    """The token is valid, but does not allow this."""

    code = "forbidden"
    status = 403


class QuotaExceededError(ForbiddenError):
    """A bucket has reached its limit of bytes or streams, or a stream its limit of producers."""

    code = "quota_exceeded"


class MethodNotAllowedError(HoldfastError):
    """The resource does not support this method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here; allowed: {allowed}.")
        self.allowed = allowed


class RequestTimeoutError(HoldfastError):
    """The request did not arrive completely in time."""

    code = "request_timeout"
    status = 408
    retryable = True


class PreconditionFailedError(HoldfastError):
    """`If-Match` does not name the present state of the stream."""

    code = "precondition_failed"
    status = 412


class PayloadTooLargeError(HoldfastError):
    """The request body is larger than the server accepts."""

    code = "payload_too_large"
    status = 413


class RateLimitedError(HoldfastError):
    """Too many requests from this client, or for this bucket."""

    code = "rate_limited"
    status = 429
    retryable = True

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HeadersTooLargeError(HoldfastError):
    """The request line and headers are larger than the server accepts."""

    code = "headers_too_large"
    status = 431


class VersionNotSupportedError(HoldfastError):
    """The request is in a version of HTTP that the server does not speak."""

    code = "http_version_not_supported"
    status = 505

    def __init__(self, version: str) -> None:
        super().__init__(f"HTTP/{version} is not supported: use HTTP/1.1.")


# Streams, buckets and snapshots that are missing, gone, or in another state.


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
    """There is nothing at this path."""

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


class ConflictError(HoldfastError):
    """The request contradicts the state of the stream."""

    code = "conflict"
    status = 409


class StreamExistsError(ConflictError):
    """The stream exists with another configuration."""

    code = "stream_exists"


class BucketExistsError(ConflictError):
    """The bucket exists already."""

    code = "bucket_exists"


class BucketNotEmptyError(ConflictError):
    """The bucket still holds streams."""

    code = "bucket_not_empty"


class SnapshotConflictError(ConflictError):
    """The snapshot is past the tail, or is the one that readers need."""

    code = "snapshot_conflict"


class ForkSourceDeletedError(ConflictError):
    """The stream to fork was deleted; only its existing forks still read it."""

    code = "fork_source_deleted"


class StreamClosedError(ConflictError):
    """The stream is closed and accepts no more appends."""

    code = "stream_closed"

    def __init__(self, tail: int) -> None:
        super().__init__("The stream is closed and takes no more appends.")
        self.tail = tail


class ContentTypeMismatchError(ConflictError):
    """The content type of the append is not that of the stream."""

    code = "content_type_mismatch"


class ProducerGapError(ConflictError):
    """A producer skipped a sequence number."""

    code = "producer_sequence_gap"

    def __init__(self, expected: int, received: int) -> None:
        super().__init__(f"The producer's next sequence is {expected}, not {received}.")
        self.expected = expected
        self.received = received


class ProducerDigestError(ConflictError):
    """A request repeats a producer's number with another digest: it is not the same request."""

    code = "producer_digest_mismatch"

    def __init__(self, epoch: int, seq: int, digest: str) -> None:
        super().__init__(
            f"The stream has request {seq} of the producer's epoch {epoch} with the digest "
            f"{digest}, so this is another request under the same number, and was not stored. "
            "Other data needs another Producer-Epoch or Producer-Id."
        )
        self.epoch = epoch
        self.seq = seq
        self.digest = digest


class StreamSeqError(ConflictError):
    """`Stream-Seq` did not increase."""

    code = "stream_seq_regression"


class BatchConflictError(ConflictError):
    """The batch was published with other data, or its parts are not as it says."""

    code = "batch_conflict"


class SwapRefusedError(ConflictError):
    """A pack is no longer in use, or the new packs do not hold the same bytes."""

    code = "swap_refused"


class GoneError(HoldfastError):
    """The resource existed and is gone for good."""

    code = "gone"
    status = 410


class StreamDeletedError(GoneError):
    """The stream was deleted, but its name is not free while it has forks."""

    code = "stream_deleted"

    def __init__(self, name: str) -> None:
        path = name.removeprefix("_default/")
        super().__init__(
            f"The stream {path!r} was deleted; its name is free once its forks are deleted too."
        )


class OffsetGoneError(GoneError):
    """The offset is before the earliest one that is retained."""

    code = "offset_gone"

    def __init__(self, earliest: int) -> None:
        super().__init__(
            f"Everything before offset {earliest:020d} is in a snapshot: start with /bootstrap, "
            "or read from that offset on."
        )
        self.earliest = earliest
        self.earliest_offset = f"{earliest:020d}"


class CursorGoneError(GoneError):
    """The changes since this cursor are no longer in the log."""

    code = "cursor_gone"

    def __init__(self, earliest: int) -> None:
        super().__init__(
            f"The changes before cursor {earliest:020d} are no longer kept: "
            "scan the bucket, and follow its changes from where the scan ends."
        )
        self.earliest = earliest
        self.earliest_cursor = f"{earliest:020d}"


# Subscriptions.


class SubscriptionError(HoldfastError):
    """A request about a subscription is malformed.

    This code and those of the subclasses are spelled as the protocol spells them.
    """

    code = "INVALID_REQUEST"
    status = 400


class WebhookUrlRejectedError(SubscriptionError):
    """This server must not call the webhook's URL."""

    code = "WEBHOOK_URL_REJECTED"


class WakeTokenInvalidError(SubscriptionError):
    """There is no wake token, or it was not made for this subscription."""

    code = "TOKEN_INVALID"
    status = 401


class WakeTokenExpiredError(SubscriptionError):
    """The wake token has expired."""

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
    """The wake is over: a newer one has replaced it, or its lease has ended."""

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


# Conditions that pass by themselves: the same request can succeed later.


class UnavailableError(HoldfastError):
    """The server cannot do this now; the response says when to try again."""

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
    """The log did not confirm the write in time: it may or may not be stored."""

    code = "commit_unknown"


class StoreError(UnavailableError):
    """The object store does not respond, or refuses for now.

    `advice` names the setting or permission to change, where waiting alone will not help.
    """

    code = "store_unavailable"

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


# Settings, and data on disk or in the object store.


class SettingsError(HoldfastError):
    """A setting is missing, unknown or out of range; the server does not start."""

    code = "invalid_settings"


class DataDirectoryLockedError(HoldfastError):
    """Another process has the data directory open."""

    code = "data_directory_locked"


class UnknownFormatError(HoldfastError):
    """The data on disk was written in a format that this version does not know."""

    code = "unknown_format"


class LogCorruptError(HoldfastError):
    """The log is damaged somewhere other than at its torn end."""

    code = "log_corrupt"


class CatalogError(HoldfastError):
    """The catalog is damaged, or does not belong to this log and object store."""

    code = "catalog_damaged"


class ObjectMissingError(HoldfastError):
    """A referenced object is not in the object store; the message names it."""

    code = "object_missing"


class PackCorruptError(HoldfastError):
    """A pack is damaged; the message names it and says what is wrong."""

    code = "pack_corrupt"


# Calls to other servers, and the pipeline on Spark.


class OutboundRefusedError(HoldfastError):
    """This server must not call the URL because of its scheme, host or address."""

    code = "target_refused"
    status = 400


class OutboundError(HoldfastError):
    """A call to another server failed; the message says how.

    `sent` says whether the server may have received the request and acted on it, `passing` whether
    another attempt can succeed (a certificate stays as it is), and `late` whether it took too long.
    """

    code = "outbound_failed"
    status = 502
    retryable = True

    def __init__(
        self, message: str, *, sent: bool = True, passing: bool = True, late: bool = False
    ) -> None:
        super().__init__(message)
        self.sent = sent
        self.passing = passing
        self.late = late


class BadAnswerError(HoldfastError):
    """A response does not follow the protocol; the message says where."""

    code = "bad_answer"
    status = 502


class DataLossError(GoneError):
    """Data that a Spark read should have covered is gone."""

    code = "data_loss"


class PipelineBusyError(HoldfastError):
    """Another run of the same pipeline is in progress; the message says which."""

    code = "pipeline_busy"


class SparkFailedError(HoldfastError):
    """Spark failed; the message is the root cause that it reports."""

    code = "spark_failed"
