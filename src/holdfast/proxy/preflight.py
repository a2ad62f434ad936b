"""Preflights of browsers: which headers a page may send through the proxy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.http.exchange import Request

_ALLOWED: Final = (
    b"Content-Type, Authorization, Upstream-URL, Upstream-Authorization, Upstream-Method, "
    b"Use-Stream-URL, Session-Id, Stream-Signed-URL-TTL, If-None-Match, Last-Event-ID"
)
_EXPOSED: Final = b"Upstream-Content-Type, Upstream-Status, Stream-Response-Id"
_NAMES: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?: *, *[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")


def preflight_fields(request: Request) -> bytes:
    """The answer's fields. What the page asks for is allowed, since everything is forwarded."""
    allowed = _ALLOWED
    for name, value in request.others:
        if name.lower() == b"access-control-request-headers" and _NAMES.fullmatch(value):
            allowed += b", " + value
    return (
        b"Access-Control-Allow-Methods: GET, HEAD, POST, PATCH, DELETE, OPTIONS\r\n"
        b"Access-Control-Allow-Headers: %b\r\nAccess-Control-Expose-Headers: %b\r\n"
        b"Access-Control-Max-Age: 86400\r\n" % (allowed, _EXPOSED)
    )
