"""What went wrong with a call, in words that hold nothing secret.

The libraries' own messages are not repeated: they may quote headers and URLs.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from typing import Final

import httpcore

from holdfast.errors import OutboundError
from holdfast.net.http2_answers import NotTakenError
from holdfast.net.targets import Target

# What the connections and the pool raise. These errors have no root of their own.
FAILURES: Final = (
    httpcore.ConnectionNotAvailable,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
)
_UNCONNECTED: Final = (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout)
# TimeoutError is the system's: it knows of time limits, too.
_LATE: Final = (httpcore.TimeoutException, TimeoutError)


def failure_of(error: Exception, target: Target) -> OutboundError:
    """The error to raise instead of a library's."""
    unsendable = _is_unsendable(error)
    refused = any(isinstance(each, ssl.SSLCertVerificationError) for each in _causes(error))
    return OutboundError(
        f"{target} {_what_happened(error)}.",
        sent=not unsendable and not isinstance(error, _UNCONNECTED),
        passing=not unsendable and not refused,
        late=isinstance(error, _LATE) or isinstance(error.__cause__, _LATE),
    )


def _is_unsendable(error: Exception) -> bool:
    """Whether the request itself is at fault: it is not sent, now or later."""
    return isinstance(error, httpcore.LocalProtocolError)


def _what_happened(error: Exception) -> str:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"has a certificate that is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"does not speak TLS as it should: {cause.reason or 'the handshake failed'}"
        if (
            isinstance(cause, OSError)
            and cause.strerror
            and isinstance(error, httpcore.ConnectError)
        ):
            # asyncio puts a text of its own, with the address in it, in the place of the system's.
            reason = os.strerror(cause.errno) if cause.errno else cause.strerror
            return f"cannot be connected to: {reason}"
    match error:
        case httpcore.ConnectTimeout():
            return "did not take the connection in time"
        case httpcore.PoolTimeout():
            return "was not called: no connection became free in time"
        case httpcore.TimeoutException():
            return "did not answer in time"
        case NotTakenError():
            return "did not take the request"
        case httpcore.ConnectError():
            return "cannot be connected to"
        case httpcore.RemoteProtocolError():
            return "did not answer in valid HTTP, or broke off"
        case httpcore.NetworkError() | OSError() | httpcore.ConnectionNotAvailable():
            return "broke the connection off"
        case _:
            return "was not called: the method, a header or the body cannot be sent"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what led to it; groups are as good as their first member."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        else:
            error = error.__cause__ or error.__context__
