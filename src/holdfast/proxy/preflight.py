"""Preflights of browsers: which headers a page may send through the proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.protocol.headers import HEADER_NAME

if TYPE_CHECKING:
    from holdfast.http.exchange import Request

_ALLOWED: Final = (
    b"Content-Type, Authorization, Upstream-URL, Upstream-Authorization, Upstream-Method, "
    b"Use-Stream-URL, Session-Id, Stream-Signed-URL-TTL, If-None-Match, Last-Event-ID"
)
# Beside those of every answer.
EXPOSED: Final = (
    b"Access-Control-Expose-Headers: Upstream-Content-Type, Upstream-Status, Stream-Response-Id\r\n"
)


def preflight_fields(request: Request) -> bytes:
    """The answer's fields. What the page asks for is allowed, since everything is forwarded."""
    asked = [
        part.strip()
        for name, value in request.other_headers
        if name.lower() == b"access-control-request-headers"
        for part in value.split(b",")
    ]
    allowed = b", ".join([_ALLOWED, *(name for name in asked if HEADER_NAME.fullmatch(name))])
    return (
        b"Access-Control-Allow-Methods: GET, HEAD, POST, PATCH, DELETE, OPTIONS\r\n"
        b"Access-Control-Allow-Headers: %b\r\nAccess-Control-Max-Age: 86400\r\n%b"
        % (allowed, EXPOSED)
    )
