"""Why a call failed, in words that hold nothing secret.

Connections raise these errors, and `outbound_error` turns them into the one that callers see.
Messages of libraries are not repeated: they may quote headers and URLs.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from typing import ClassVar

from holdfast.errors import OutboundError
from holdfast.net.targets import Target


class TransportError(Exception):
    """The connection broke off."""

    says: str = "broke the connection off"
    # Whether the server may have received the request: a retry may then repeat its effect.
    sent: ClassVar[bool] = True
    late: ClassVar[bool] = False


class ConnectFailedError(TransportError):
    says = "cannot be connected to"
    sent = False


class ConnectTimeoutError(TransportError):
    says = "did not accept the connection in time"
    sent = False
    late = True


class PoolTimeoutError(TransportError):
    says = "was not called: no connection became free in time"
    sent = False
    late = True


class SilenceError(TransportError):
    """The server neither sent nor accepted anything for too long."""

    late = True

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.says = f"did not respond within {limit_s:g} s"


class RequestRefusedError(TransportError):
    """An HTTP/2 server declared that it has not processed the request."""

    says = "did not accept the request"
    sent = False


class InvalidResponseError(TransportError):
    says = "did not respond in valid HTTP, or broke off"


class UnsendableError(TransportError):
    """The request itself is at fault."""

    says = "was not called: the method, a header or the body cannot be sent"
    sent = False


def outbound_error(error: TransportError, target: Target) -> OutboundError:
    certificate_refused = any(
        isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)
    )
    return OutboundError(
        f"{target} {_what_happened(error)}.",
        sent=error.sent,
        passing=not certificate_refused and not isinstance(error, UnsendableError),
        # The operating system has time limits of its own.
        late=error.late or isinstance(error.__cause__, TimeoutError),
    )


def too_late(target: Target, limit_s: float) -> OutboundError:
    return OutboundError(f"{target} did not respond within {limit_s:g} s.", late=True)


def _what_happened(error: TransportError) -> str:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"has a certificate that is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"failed the TLS handshake: {cause.reason or 'no reason given'}"
        if isinstance(cause, OSError) and cause.strerror and isinstance(error, ConnectFailedError):
            # asyncio replaces the system's text by its own, which quotes the address.
            reason = os.strerror(cause.errno) if cause.errno else cause.strerror
            return f"cannot be connected to: {reason}"
    return error.says


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and the chain that led to it; of a group, the first member."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        else:
            error = error.__cause__ or error.__context__
