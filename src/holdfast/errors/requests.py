"""Errors about a request itself: malformed, not allowed, too large, too many."""

from __future__ import annotations

from holdfast.errors.root import HoldfastError


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


class MethodNotAllowedError(HoldfastError):
    """The resource does not take this method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here; allowed: {allowed}.")
        self.allowed = allowed


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
