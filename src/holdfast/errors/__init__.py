"""Every error Holdfast raises on purpose.

One root, and a class of its own only where a caller would act differently. `code` is the stable
string that travels on the wire, `status` its HTTP status, and `retryable` says whether sending the
same request again can succeed without anybody changing anything. `http.errors` is the one place
that turns these into responses; a client finds the class of a `code` in `error_classes()`.
"""

from __future__ import annotations

from holdfast.errors.availability import (
    CommitFailedError,
    CommitUnknownError,
    OverloadedError,
    StoreError,
    UnavailableError,
)
from holdfast.errors.data import (
    CatalogError,
    DataDirectoryLockedError,
    LogCorruptError,
    ObjectMissingError,
    PackCorruptError,
    SettingsError,
    UnknownFormatError,
)
from holdfast.errors.outbound import (
    BadAnswerError,
    OutboundError,
    OutboundRefusedError,
)
from holdfast.errors.pipeline import DataLossError, SparkFailedError
from holdfast.errors.proxy import (
    ConnectRejectedError,
    InvalidActionError,
    InvalidSecretError,
    InvalidUpstreamMethodError,
    MalformedStreamUrlError,
    MissingSecretError,
    MissingSignatureError,
    MissingUpstreamMethodError,
    MissingUpstreamUrlError,
    ProxyNotFoundError,
    ProxyStorageError,
    ProxyStreamClosedError,
    ProxyStreamNotFoundError,
    RedirectNotAllowedError,
    SignatureExpiredError,
    SignatureInvalidError,
    UpstreamError,
    UpstreamNotAllowedError,
    UpstreamTimeoutError,
)
from holdfast.errors.requests import (
    ForbiddenError,
    HeadersTooLargeError,
    InvalidBucketError,
    InvalidJsonError,
    InvalidOffsetError,
    InvalidRequestError,
    InvalidStreamIdError,
    MethodNotAllowedError,
    PayloadTooLargeError,
    QuotaExceededError,
    RateLimitedError,
    RequestTimeoutError,
    UnauthorizedError,
)
from holdfast.errors.root import (
    HoldfastError,
)
from holdfast.errors.streams import (
    BucketExistsError,
    BucketNotEmptyError,
    BucketNotFoundError,
    ConflictError,
    ContentTypeMismatchError,
    CursorGoneError,
    ForkSourceDeletedError,
    GoneError,
    NotFoundError,
    OffsetGoneError,
    PreconditionFailedError,
    ProducerFencedError,
    ProducerGapError,
    SnapshotConflictError,
    SnapshotNotFoundError,
    StreamClosedError,
    StreamDeletedError,
    StreamExistsError,
    StreamNotFoundError,
    StreamSeqError,
    SwapRefusedError,
)
from holdfast.errors.subscriptions import (
    AckRefusedError,
    AlreadyClaimedError,
    NoPendingWorkError,
    SubscriptionError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    WakeFencedError,
    WakeTokenExpiredError,
    WakeTokenInvalidError,
    WebhookUrlRejectedError,
)

__all__ = [
    "AckRefusedError",
    "AlreadyClaimedError",
    "BadAnswerError",
    "BucketExistsError",
    "BucketNotEmptyError",
    "BucketNotFoundError",
    "CatalogError",
    "CommitFailedError",
    "CommitUnknownError",
    "ConflictError",
    "ConnectRejectedError",
    "ContentTypeMismatchError",
    "CursorGoneError",
    "DataDirectoryLockedError",
    "DataLossError",
    "ForbiddenError",
    "ForkSourceDeletedError",
    "GoneError",
    "HeadersTooLargeError",
    "HoldfastError",
    "InvalidActionError",
    "InvalidBucketError",
    "InvalidJsonError",
    "InvalidOffsetError",
    "InvalidRequestError",
    "InvalidSecretError",
    "InvalidStreamIdError",
    "InvalidUpstreamMethodError",
    "LogCorruptError",
    "MalformedStreamUrlError",
    "MethodNotAllowedError",
    "MissingSecretError",
    "MissingSignatureError",
    "MissingUpstreamMethodError",
    "MissingUpstreamUrlError",
    "NoPendingWorkError",
    "NotFoundError",
    "ObjectMissingError",
    "OffsetGoneError",
    "OutboundError",
    "OutboundRefusedError",
    "OverloadedError",
    "PackCorruptError",
    "PayloadTooLargeError",
    "PreconditionFailedError",
    "ProducerFencedError",
    "ProducerGapError",
    "ProxyNotFoundError",
    "ProxyStorageError",
    "ProxyStreamClosedError",
    "ProxyStreamNotFoundError",
    "QuotaExceededError",
    "RateLimitedError",
    "RedirectNotAllowedError",
    "RequestTimeoutError",
    "SettingsError",
    "SignatureExpiredError",
    "SignatureInvalidError",
    "SnapshotConflictError",
    "SnapshotNotFoundError",
    "SparkFailedError",
    "StoreError",
    "StreamClosedError",
    "StreamDeletedError",
    "StreamExistsError",
    "StreamNotFoundError",
    "StreamSeqError",
    "SubscriptionError",
    "SubscriptionExistsError",
    "SubscriptionNotFoundError",
    "SwapRefusedError",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownFormatError",
    "UpstreamError",
    "UpstreamNotAllowedError",
    "UpstreamTimeoutError",
    "WakeFencedError",
    "WakeTokenExpiredError",
    "WakeTokenInvalidError",
    "WebhookUrlRejectedError",
    "error_classes",
]


def _all_classes(root: type[HoldfastError]) -> list[type[HoldfastError]]:
    found = [root]
    for child in root.__subclasses__():
        found.extend(_all_classes(child))
    return found


def error_classes() -> dict[str, type[HoldfastError]]:
    """Every error class by its wire code."""
    return {cls.code: cls for cls in _all_classes(HoldfastError)}
