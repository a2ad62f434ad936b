"""Every error Holdfast raises on purpose.

There is a class of its own only where a caller would act differently. `code` is the stable string
sent on the wire, `status` the HTTP status, and `retryable` says whether repeating the same request
can succeed without any other change. `http.responses` turns errors into responses; a client finds
the class of a `code` in `error_classes()`. The tree, with the status where a class sets its own:

    HoldfastError 500
        InvalidRequestError 400
            InvalidBucketError
            InvalidStreamIdError
            InvalidOffsetError
            InvalidJsonError
            MissingUpstreamUrlError
            MissingUpstreamMethodError
            InvalidUpstreamMethodError
            RedirectNotAllowedError
            InvalidActionError
            MalformedStreamUrlError
        UnauthorizedError 401
            MissingSecretError
            InvalidSecretError
            MissingSignatureError
            SignatureInvalidError
            SignatureExpiredError
            ConnectRejectedError
        ForbiddenError 403
            QuotaExceededError
            UpstreamNotAllowedError
        MethodNotAllowedError 405
        RequestTimeoutError 408
        PreconditionFailedError 412
        PayloadTooLargeError 413
        RateLimitedError 429
        HeadersTooLargeError 431
        VersionNotSupportedError 505
        ProducerFencedError 403
        NotFoundError 404
            StreamNotFoundError
                ProxyStreamNotFoundError
            BucketNotFoundError
            SnapshotNotFoundError
            ProxyNotFoundError
        ConflictError 409
            StreamExistsError
            BucketExistsError
            BucketNotEmptyError
            SnapshotConflictError
            ForkSourceDeletedError
            StreamClosedError
                ProxyStreamClosedError
            ContentTypeMismatchError
            ProducerGapError
            ProducerDigestError
            StreamSeqError
            BatchConflictError
            SwapRefusedError
        GoneError 410
            StreamDeletedError
            OffsetGoneError
            CursorGoneError
            DataLossError
        SubscriptionError 400
            WebhookUrlRejectedError
            WakeTokenInvalidError 401
            WakeTokenExpiredError 401
            SubscriptionNotFoundError 404
            SubscriptionExistsError 409
            WakeFencedError 409
            AlreadyClaimedError 409
            NoPendingWorkError 409
            AckRefusedError 409
        UnavailableError 503
            OverloadedError
            CommitFailedError
            CommitUnknownError
            StoreError
        SettingsError
        DataDirectoryLockedError
        UnknownFormatError
        LogCorruptError
        CatalogError
        ObjectMissingError
        PackCorruptError
        OutboundRefusedError 400
        OutboundError 502
        BadAnswerError 502
        PipelineBusyError
        SparkFailedError
        UpstreamError 502
        UpstreamTimeoutError 504
        ProxyStorageError 502
"""

from __future__ import annotations

from holdfast.errors.hierarchy import *  # noqa: F403 (the tree above is the list)
from holdfast.errors.hierarchy import HoldfastError
from holdfast.errors.proxy import *  # noqa: F403


def error_classes() -> dict[str, type[HoldfastError]]:
    """Every error class by its code on the wire."""
    classes: dict[str, type[HoldfastError]] = {}
    pending = [HoldfastError]
    while pending:
        cls = pending.pop()
        classes[cls.code] = cls
        pending += cls.__subclasses__()
    return classes
