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


class InvalidOffsetError(InvalidRequestError):
    """The offset is malformed, past the tail, or inside a JSON message."""

    code = "invalid_offset"


class InvalidJsonError(InvalidRequestError):
    """The body of an append to a JSON stream is not JSON."""

    code = "invalid_json"


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
