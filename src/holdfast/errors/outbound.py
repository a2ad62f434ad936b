"""Errors about calls to other servers."""

from __future__ import annotations

from holdfast.errors.root import HoldfastError


class OutboundRefusedError(HoldfastError):
    """A URL that this server must not call: its scheme, its host or its address."""

    code = "target_refused"
    status = 400


class OutboundError(HoldfastError):
    """A server that was called did not answer as it should; the message says what happened."""

    code = "outbound_failed"
    status = 502
    retryable = True

    def __init__(
        self, message: str, *, sent: bool = True, passing: bool = True, late: bool = False
    ) -> None:
        super().__init__(message)
        # Whether the server may have got the request, and done what it says.
        self.sent = sent
        # Whether it can be otherwise the next time: a certificate stays as it is.
        self.passing = passing
        # Whether it took too long, rather than being wrong.
        self.late = late


class BadAnswerError(HoldfastError):
    """A server's answer does not follow the protocol; the message says where."""

    code = "bad_answer"
    status = 502
