"""Errors that pass by themselves: the server cannot do it now."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.root import HoldfastError


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
