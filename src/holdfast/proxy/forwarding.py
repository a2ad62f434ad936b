"""Which header fields go to the upstream, and which of its answer go into the Start frame.

Everything goes on but what is about one connection (hop-by-hop), what is meant for the proxy, and
what the proxy says itself. The answer's `Set-Cookie` stays out of the stream: it is a credential
for one client, and a stream has many readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidRequestError
from holdfast.protocol.headers import CONTROL_CHARACTERS, HEADER_NAME, header_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.http.exchange import Request

_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
    }
)
# What requests say to the proxy.
FOR_PROXY: Final = frozenset(
    {
        "upstream-url",
        "upstream-method",
        "upstream-authorization",
        "use-stream-url",
        "session-id",
        "stream-signed-url-ttl",
    }
)
# What the proxy says itself, or leaves out: nothing that readers may not be able to decode is
# asked for, and nobody else tells the endpoint which stream it decides about.
_REPLACED: Final = frozenset(
    {"host", "authorization", "content-length", "expect", "accept-encoding", "stream-id"}
)
_NOT_FORWARDED: Final = _HOP_BY_HOP | FOR_PROXY | _REPLACED
_NOT_RECORDED: Final = _HOP_BY_HOP | {"set-cookie", "set-cookie2"}


def proxy_fields(request: Request) -> dict[str, str]:
    """What the request says to the proxy, by lower-case name; each at most once."""
    found: dict[str, str] = {}
    for raw, value in request.other_headers:
        name = raw.decode("latin-1").lower()
        if name in FOR_PROXY:
            if name in found:
                raise InvalidRequestError(f"The header {name} is given more than once.")
            found[name] = header_text(value.strip())
    return found


def upstream_headers(request: Request) -> dict[str, bytes]:
    """What the upstream is sent."""
    fields = [*request.headers.items(), *request.other_headers]
    named = _named_by_connection(fields)
    sent: dict[str, bytes] = {}
    for raw, value in fields:
        name = raw.decode("latin-1").lower()
        if name == "upstream-authorization":
            name = "authorization"
        elif name in _NOT_FORWARDED or name in named:
            continue
        if not HEADER_NAME.fullmatch(raw) or CONTROL_CHARACTERS.search(value):
            raise InvalidRequestError("A header holds characters that cannot be forwarded.")
        before = sent.get(name)
        separator = b"; " if name == "cookie" else b", "
        sent[name] = value if before is None else before + separator + value
    sent["accept-encoding"] = b"identity"
    return sent


def _named_by_connection(fields: Iterable[tuple[bytes, bytes]]) -> set[str]:
    """Fields that are about one connection because `Connection` says so."""
    return {
        name.strip().lower()
        for raw, value in fields
        if raw.lower() == b"connection"
        for name in value.decode("latin-1").split(",")
    }


def recorded_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What the Start frame tells of the answer's fields; names are lower-case already."""
    fields = list(headers)
    named = {
        part.strip().lower()
        for name, value in fields
        if name == "connection"
        for part in value.split(",")
    }
    found: dict[str, str] = {}
    for name, value in fields:
        if name not in _NOT_RECORDED and name not in named:
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found
