"""Requests to the proxy: what they say to it, and what goes on to the upstream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import msgspec

from holdfast.client.calls import Answer, Value, value_of
from holdfast.client.urls import is_url
from holdfast.errors import BadAnswerError, InvalidJsonError, InvalidRequestError
from holdfast.protocol.content import JSON
from holdfast.protocol.headers import UPSTREAM_METHODS

# The client sets these itself, or they are about one connection only.
_RESERVED: Final = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "session-id",
        "stream-signed-url-ttl",
        "transfer-encoding",
        "upstream-authorization",
        "upstream-method",
        "upstream-url",
        "use-stream-url",
    }
)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request that the proxy is to make, checked and ready to be sent to it."""

    headers: dict[str, str]
    body: bytes


async def upstream_request(
    url: str | None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None,
    body: Any,
    authorization: Value | None,
    url_ttl_s: int | None,
) -> UpstreamRequest:
    """Make one; what is wrong with it is said here, before anything is sent."""
    sent = _own_headers(headers or {})
    content, content_type = body_bytes(body)
    if content_type and "content-type" not in {name.lower() for name in sent}:
        sent["Content-Type"] = content_type
    if url is not None:
        if not (is_url(url) and url.isascii() and url.isprintable() and " " not in url):
            raise InvalidRequestError(
                f"{url[:80]!r} is no upstream: expected http://… or https://…, percent-encoded."
            )
        sent["Upstream-URL"] = url
    if method is not None:
        sent["Upstream-Method"] = _checked_method(method)
    if authorization is not None:
        sent["Upstream-Authorization"] = _checked_authorization(await value_of(authorization))
    if url_ttl_s is not None:
        if url_ttl_s < 1:
            raise InvalidRequestError(f"url_ttl_s is {url_ttl_s}: expected 1 or more.")
        sent["Stream-Signed-URL-TTL"] = str(url_ttl_s)
    return UpstreamRequest(sent, content)


def _own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name in headers:
        if name.lower() == "authorization":
            raise InvalidRequestError(
                "Authorization is for the proxy: give the upstream's as upstream_authorization."
            )
        if name.lower() in _RESERVED:
            raise InvalidRequestError(f"{name} is set by the client, and cannot be given.")
    return dict(headers)


def _checked_method(method: str) -> str:
    if method.upper() not in UPSTREAM_METHODS:
        raise InvalidRequestError(
            f"Unknown method {method[:20]!r}: use {', '.join(UPSTREAM_METHODS)}."
        )
    return method.upper()


def _checked_authorization(value: str) -> str:
    # Without the value itself, which is a secret.
    if not (value.isascii() and value.isprintable() and value.strip()):
        raise InvalidRequestError("upstream_authorization must be printable ASCII characters.")
    return value


def body_bytes(body: Any) -> tuple[bytes, str]:
    """A body as it is sent, and its type where that is certain.

    Bytes and text are sent as they are, anything else as JSON.
    """
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), ""
    if isinstance(body, str):
        return body.encode(), ""
    try:
        return _encode(body), JSON
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidJsonError(f"The body cannot be written as JSON: {error}.") from None


def check_session_id(session_id: str) -> None:
    """Raise unless a header can hold it."""
    is_text = session_id.isascii() and session_id.isprintable()
    if not is_text or not session_id or session_id != session_id.strip():
        raise InvalidRequestError(
            "A session's id is printable ASCII, with no space at its beginning and end."
        )


def signed_url_of(answer: Answer, asked: str) -> str:
    """The signed URL that an answer of the proxy gives."""
    location = answer.headers.get("location", "")
    if not location:
        raise BadAnswerError("The answer has no Location: is this a proxy's URL?")
    try:
        url = urljoin(asked, location)
        _ = urlsplit(url).port
    except ValueError:
        raise BadAnswerError("The answer's Location is no URL.") from None
    return url


def stream_id_of(url: str) -> str:
    """The id of the stream that a signed URL is for."""
    return urlsplit(url).path.rpartition("/")[2]


def response_id_of(answer: Answer, *, default: int | None = None) -> int:
    """The number of the response that an answer of the proxy announces."""
    text = answer.headers.get("stream-response-id", "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text)):
        raise BadAnswerError("The answer has no Stream-Response-Id that is a number.")
    return int(text)
