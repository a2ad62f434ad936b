"""What a POST asks the proxy for, taken from its headers and checked."""

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
from holdfast.protocol.headers import UPSTREAM_METHODS
from holdfast.proxy.forwarding import upstream_headers
from holdfast.proxy.stream_ids import is_stream_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.http.exchange import Request

SESSION_ID_BYTES_MAX: Final = 1024
_TTL_DIGITS_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """What is sent to an upstream, but for the body."""

    method: str
    url: str
    headers: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StreamUrl:
    """A signed URL, taken apart."""

    stream_id: str
    expires: str
    signature: str


def upstream_request(request: Request, fields: Mapping[str, str]) -> UpstreamRequest:
    """The call that a create or append asks for."""
    url = fields.get("upstream-url")
    if not url:
        raise MissingUpstreamUrlError("The header Upstream-URL is needed.")
    method = fields.get("upstream-method", "").upper()
    if not method:
        raise MissingUpstreamMethodError("The header Upstream-Method is needed.")
    if method not in UPSTREAM_METHODS:
        raise InvalidUpstreamMethodError(
            f"Upstream-Method must be one of {', '.join(UPSTREAM_METHODS)}."
        )
    headers = upstream_headers(request)
    return UpstreamRequest(method, url, headers)


def approval_request(
    request: Request, fields: Mapping[str, str], stream_id: str
) -> UpstreamRequest | None:
    """The call that asks whether a session may be connected to; None if nobody is to be asked."""
    url = fields.get("upstream-url")
    if not url:
        return None
    headers = upstream_headers(request)
    return UpstreamRequest("POST", url, headers | {"stream-id": stream_id.encode()})


def parse_stream_url(text: str) -> StreamUrl:
    """The signed URL that `Use-Stream-URL` holds."""
    try:
        url = urlsplit(text)
        parameters = parse_qs(url.query, keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise _malformed() from None
    stream_id = url.path.rpartition("/")[2]
    expires, signature = parameters.get("expires", []), parameters.get("signature", [])
    if not is_stream_id(stream_id) or len(expires) != 1 or len(signature) != 1:
        raise _malformed()
    return StreamUrl(stream_id, expires[0], signature[0])


def _malformed() -> MalformedStreamUrlError:
    return MalformedStreamUrlError(
        "Use-Stream-URL is no signed URL: use the Location of an earlier answer as it was given."
    )


def parse_session_id(text: str) -> str:
    """The session's id, which can be any text of reasonable length."""
    if not text or len(text.encode()) > SESSION_ID_BYTES_MAX:
        raise InvalidRequestError(f"Session-Id must have 1 to {SESSION_ID_BYTES_MAX} bytes.")
    return text


def parse_url_ttl_s(text: str | None, default_s: float, max_s: float) -> float:
    """How long the new URL is to be good; what is too long is cut."""
    if text is None:
        return min(default_s, max_s)
    digits = text.lstrip("0")
    if not digits or not (digits.isascii() and digits.isdigit()):
        raise InvalidRequestError(
            "Stream-Signed-URL-TTL must be a whole number of seconds, at least 1."
        )
    return max_s if len(digits) > _TTL_DIGITS_MAX else min(int(digits), max_s)
