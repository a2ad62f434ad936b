"""Errors of the proxy. Their codes are spelled as its specification spells them."""

from __future__ import annotations

from holdfast.errors.requests import ForbiddenError, InvalidRequestError, UnauthorizedError
from holdfast.errors.root import HoldfastError
from holdfast.errors.streams import NotFoundError, StreamClosedError, StreamNotFoundError


class MissingUpstreamUrlError(InvalidRequestError):
    """`Upstream-URL` is missing."""

    code = "MISSING_UPSTREAM_URL"


class MissingUpstreamMethodError(InvalidRequestError):
    """`Upstream-Method` is missing."""

    code = "MISSING_UPSTREAM_METHOD"


class InvalidUpstreamMethodError(InvalidRequestError):
    """`Upstream-Method` is none of GET, POST, PUT, PATCH and DELETE."""

    code = "INVALID_UPSTREAM_METHOD"


class RedirectNotAllowedError(InvalidRequestError):
    """The upstream answered with a redirect, which is never followed."""

    code = "REDIRECT_NOT_ALLOWED"


class InvalidActionError(InvalidRequestError):
    """A PATCH asks for something else than `abort`."""

    code = "INVALID_ACTION"


class MalformedStreamUrlError(InvalidRequestError):
    """`Use-Stream-URL` is no URL of a proxy stream."""

    code = "MALFORMED_STREAM_URL"


class MissingSecretError(UnauthorizedError):
    """Service authentication is needed, and none was given."""

    code = "MISSING_SECRET"


class InvalidSecretError(UnauthorizedError):
    """Service authentication was given, but is not good."""

    code = "INVALID_SECRET"


class MissingSignatureError(UnauthorizedError):
    """A signed URL is needed, and this one is not."""

    code = "MISSING_SIGNATURE"


class SignatureInvalidError(UnauthorizedError):
    """The URL's signature is not ours."""

    code = "SIGNATURE_INVALID"


class SignatureExpiredError(UnauthorizedError):
    """The signed URL has expired; `renewable` if connecting with the session's id gives another."""

    code = "SIGNATURE_EXPIRED"

    def __init__(self, message: str, *, renewable: bool = False, stream_id: str = "") -> None:
        super().__init__(message)
        self.renewable = renewable
        self.stream_id = stream_id


class ConnectRejectedError(UnauthorizedError):
    """The endpoint that decides about sessions did not approve."""

    code = "CONNECT_REJECTED"


class UpstreamNotAllowedError(ForbiddenError):
    """No pattern of the allowlist matches the upstream's URL, or its address is not public."""

    code = "UPSTREAM_NOT_ALLOWED"


class UpstreamError(HoldfastError):
    """The upstream refused, or could not be reached.

    `upstream_status` is its status if it answered, `body` what it said, shortened if it is long.
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
    """The upstream did not answer in time."""

    code = "UPSTREAM_TIMEOUT"
    status = 504


class ProxyStorageError(HoldfastError):
    """The stream could not be created or written."""

    code = "STORAGE_ERROR"
    status = 502


class ProxyStreamClosedError(StreamClosedError):
    """The stream is closed: no more responses can be appended, and none goes on."""

    code = "STREAM_CLOSED"

    def __init__(self, tail: int, message: str = "") -> None:
        super().__init__(tail)
        if message:
            HoldfastError.__init__(self, message)


class ProxyNotFoundError(NotFoundError):
    """Nothing is at this path of the proxy, or the proxy is off."""

    code = "NOT_FOUND"


class ProxyStreamNotFoundError(StreamNotFoundError):
    """There is no such proxy stream."""

    code = "STREAM_NOT_FOUND"

    def __init__(self, stream_id: str) -> None:
        HoldfastError.__init__(self, f"There is no proxy stream {stream_id[:80]!r}.")
