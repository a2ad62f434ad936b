"""Errors of the proxy. Their codes are spelled as its specification spells them."""

from __future__ import annotations

from holdfast.errors.hierarchy import (
    ForbiddenError,
    HoldfastError,
    InvalidRequestError,
    NotFoundError,
    StreamClosedError,
    StreamNotFoundError,
    UnauthorizedError,
)


class MissingUpstreamUrlError(InvalidRequestError):
    """`Upstream-URL` is missing."""

    code = "MISSING_UPSTREAM_URL"


class MissingUpstreamMethodError(InvalidRequestError):
    """`Upstream-Method` is missing."""

    code = "MISSING_UPSTREAM_METHOD"


class InvalidUpstreamMethodError(InvalidRequestError):
    """`Upstream-Method` is not GET, POST, PUT, PATCH or DELETE."""

    code = "INVALID_UPSTREAM_METHOD"


class RedirectNotAllowedError(InvalidRequestError):
    """The upstream answered with a redirect, which is never followed."""

    code = "REDIRECT_NOT_ALLOWED"


class InvalidActionError(InvalidRequestError):
    """The action of a PATCH is not `abort`."""

    code = "INVALID_ACTION"


class MalformedStreamUrlError(InvalidRequestError):
    """`Use-Stream-URL` is not the URL of a proxy stream."""

    code = "MALFORMED_STREAM_URL"


class MissingSecretError(UnauthorizedError):
    """Service authentication is required and missing."""

    code = "MISSING_SECRET"


class InvalidSecretError(UnauthorizedError):
    """The service secret is wrong."""

    code = "INVALID_SECRET"


class MissingSignatureError(UnauthorizedError):
    """The URL must be signed and is not."""

    code = "MISSING_SIGNATURE"


class SignatureInvalidError(UnauthorizedError):
    """The URL was not signed by this server."""

    code = "SIGNATURE_INVALID"


class SignatureExpiredError(UnauthorizedError):
    """The signed URL has expired.

    `renewable` says whether connecting the session again returns a fresh URL.
    """

    code = "SIGNATURE_EXPIRED"

    def __init__(self, message: str, *, renewable: bool = False, stream_id: str = "") -> None:
        super().__init__(message)
        self.renewable = renewable
        self.stream_id = stream_id


class ConnectRejectedError(UnauthorizedError):
    """The authorisation endpoint did not approve the session."""

    code = "CONNECT_REJECTED"


class UpstreamNotAllowedError(ForbiddenError):
    """The upstream URL does not match the allowlist, or its address is not public."""

    code = "UPSTREAM_NOT_ALLOWED"


class UpstreamError(HoldfastError):
    """The upstream refused, or could not be reached.

    `upstream_status` is its status if there was a response, `body` the start of its body.
    """

    code = "UPSTREAM_ERROR"
    status = 502

    def __init__(
        self,
        message: str,
        *,
        upstream_status: int | None = None,
        content_type: str = "",
        body: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.upstream_status = upstream_status
        self.content_type = content_type
        self.body = body


class UpstreamTimeoutError(HoldfastError):
    """The upstream did not respond in time."""

    code = "UPSTREAM_TIMEOUT"
    status = 504


class ProxyStorageError(HoldfastError):
    """The stream could not be created or written."""

    code = "STORAGE_ERROR"
    status = 502


class ProxyStreamClosedError(StreamClosedError):
    """The stream is closed: responses under way have ended and none can be added."""

    code = "STREAM_CLOSED"

    def __init__(self, tail: int, message: str = "") -> None:
        super().__init__(tail)
        if message:
            HoldfastError.__init__(self, message)


class ProxyNotFoundError(NotFoundError):
    """There is nothing at this path of the proxy, or the proxy is off."""

    code = "NOT_FOUND"


class ProxyStreamNotFoundError(StreamNotFoundError):
    """There is no such proxy stream."""

    code = "STREAM_NOT_FOUND"

    def __init__(self, stream_id: str) -> None:
        HoldfastError.__init__(self, f"There is no proxy stream {stream_id[:80]!r}.")
