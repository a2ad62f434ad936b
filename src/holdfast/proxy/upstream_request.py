"""What a POST asks of the proxy, and which headers pass through it.

All headers are forwarded, in both directions, except those that are about one connection
(hop-by-hop), those that are meant for the proxy, and those that it sets itself. `Set-Cookie` of a
response is not recorded: it is a credential for one client, and a stream has many readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from holdfast.errors import (
    InvalidRequestError,
    InvalidUpstreamMethodError,
    MalformedStreamUrlError,
    MissingUpstreamMethodError,
    MissingUpstreamUrlError,
)
from holdfast.net.outbound import joined
from holdfast.protocol.headers import (
    CONTROL_CHARACTERS,
    HEADER_NAME,
    UPSTREAM_METHODS,
    header_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.http.exchange import Request

SESSION_ID_BYTES_MAX: Final = 1024
_TTL_DIGITS_MAX: Final = 12
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
_FOR_PROXY: Final = frozenset(
    {
        "upstream-url",
        "upstream-method",
        "upstream-authorization",
        "use-stream-url",
        "session-id",
        "stream-signed-url-ttl",
    }
)
# Set by the proxy or left out. `Accept-Encoding`: readers may not be able to decode what the client
# can. `Stream-Id`: only the proxy tells an endpoint which stream it decides about.
_REPLACED: Final = frozenset(
    {"host", "authorization", "content-length", "expect", "accept-encoding", "stream-id"}
)
_NOT_FORWARDED: Final = _HOP_BY_HOP | _FOR_PROXY | _REPLACED
_NOT_RECORDED: Final = _HOP_BY_HOP | {"set-cookie", "set-cookie2"}


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """A request to an upstream, without its body."""

    method: str
    url: str
    headers: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StreamUrl:
    """The parts of a signed URL."""

    stream_id: str
    expires: str
    signature: str


def upstream_call(request: Request, headers: Mapping[str, str]) -> UpstreamCall:
    """The call that a create or append asks for; `headers` are those of `proxy_headers`."""
    url = headers.get("upstream-url")
    if not url:
        raise MissingUpstreamUrlError("The header Upstream-URL is needed.")
    method = headers.get("upstream-method", "").upper()
    if not method:
        raise MissingUpstreamMethodError("The header Upstream-Method is needed.")
    if method not in UPSTREAM_METHODS:
        raise InvalidUpstreamMethodError(
            f"Upstream-Method must be one of {', '.join(UPSTREAM_METHODS)}."
        )
    return UpstreamCall(method, url, forwarded_headers(request))


def approval_call(
    request: Request, headers: Mapping[str, str], stream_id: str
) -> UpstreamCall | None:
    """The call that decides whether a session may connect; None without an endpoint for it."""
    url = headers.get("upstream-url")
    if not url:
        return None
    forwarded = forwarded_headers(request)
    return UpstreamCall("POST", url, forwarded | {"stream-id": stream_id.encode()})


def parse_stream_url(text: str) -> StreamUrl:
    """The signed URL in `Use-Stream-URL`; its signature is checked before its stream is found."""
    try:
        url = urlsplit(text)
        parameters = parse_qs(url.query, keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise _malformed() from None
    stream_id = url.path.rpartition("/")[2]
    expires, signature = parameters.get("expires", []), parameters.get("signature", [])
    if not stream_id or len(expires) != 1 or len(signature) != 1:
        raise _malformed()
    return StreamUrl(stream_id, expires[0], signature[0])


def _malformed() -> MalformedStreamUrlError:
    return MalformedStreamUrlError(
        "Use-Stream-URL is not a signed URL: use the Location of an earlier response unchanged."
    )


def parse_session_id(text: str) -> str:
    if not text or len(text.encode()) > SESSION_ID_BYTES_MAX:
        raise InvalidRequestError(f"Session-Id must have 1 to {SESSION_ID_BYTES_MAX} bytes.")
    return text


def parse_url_ttl_s(text: str | None, default_s: float, max_s: float) -> float:
    """How long the new URL shall be valid, at most `max_s`."""
    if text is None:
        return min(default_s, max_s)
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequestError("Stream-Signed-URL-TTL must be a whole number of seconds.")
    digits = text.lstrip("0")
    return max_s if len(digits) > _TTL_DIGITS_MAX else min(int(digits or "0"), max_s)


def proxy_headers(request: Request) -> dict[str, str]:
    """The headers that are meant for the proxy, by lower-case name; each at most once."""
    headers: dict[str, str] = {}
    for raw, value in request.other_headers:
        name = raw.decode("latin-1").lower()
        if name in _FOR_PROXY:
            if name in headers:
                raise InvalidRequestError(f"The header {name} is given more than once.")
            headers[name] = header_text(value.strip())
    return headers


def forwarded_headers(request: Request) -> dict[str, bytes]:
    """The headers that the upstream is sent."""
    headers = [
        (raw, raw.decode("latin-1").lower(), value)
        for raw, value in (*request.headers.items(), *request.other_headers)
    ]
    of_connection = _connection_options((name, header_text(value)) for _, name, value in headers)
    sent: dict[str, bytes] = {}
    for raw, given_name, value in headers:
        name = given_name
        if name == "upstream-authorization":
            name = "authorization"
        elif name in _NOT_FORWARDED or name in of_connection:
            continue
        if not HEADER_NAME.fullmatch(raw) or CONTROL_CHARACTERS.search(value):
            raise InvalidRequestError("A header holds characters that cannot be forwarded.")
        before = sent.get(name)
        separator = b"; " if name == "cookie" else b", "
        sent[name] = value if before is None else before + separator + value
    sent["accept-encoding"] = b"identity"
    return sent


def recorded_headers(headers: list[tuple[str, str]]) -> dict[str, str]:
    """The response headers that go into the Start frame; names are lower-case already."""
    left_out = _NOT_RECORDED | _connection_options(headers)
    return joined([header for header in headers if header[0] not in left_out])


def _connection_options(headers: Iterable[tuple[str, str]]) -> set[str]:
    """The headers that are hop-by-hop because `Connection` names them."""
    return {
        option.strip().lower()
        for name, value in headers
        if name == "connection"
        for option in value.split(",")
    }
