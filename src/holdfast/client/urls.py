"""URLs of servers, streams and buckets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import itemgetter
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from holdfast.errors import InvalidRequestError
from holdfast.protocol.names import DEFAULT_BUCKET

# Everything else in a path is percent-encoded.
_SAFE: Final = "/:@!$&'()*+,;=~"
_PORTS: Final = {"http": 80, "https": 443}
# In the query of a URL, anywhere in a text.
_SECRETS: Final = re.compile(r"\b(signature|secret)=(?![.,;:)])[^&\s\"'<>]+", re.IGNORECASE)


class Address(NamedTuple):
    """A server's base URL, and the credentials in it."""

    base: str
    username: str = ""
    password: str = ""


def parse_base(url: str) -> Address:
    """Split a server's URL: the base has no query, no trailing slash and no credentials."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        _ = parts.port
    except ValueError:  # an invalid IPv6 address or port
        raise _no_server(url) from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise _no_server(url)
    if parts.query or parts.fragment:
        raise InvalidRequestError("A server's URL has no query and no fragment.")
    host = parts.netloc.rpartition("@")[2]
    base = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    return Address(base, unquote(parts.username or ""), unquote(parts.password or ""))


def _no_server(url: str) -> InvalidRequestError:
    # Without the credentials.
    shown = url.rpartition("@")[2][:80]
    return InvalidRequestError(
        f"{shown!r} is not a server's URL: expected http://HOST:PORT or https://HOST."
    )


def without_secrets(text: str) -> str:
    """The text with the secrets of signed URLs removed, for messages and logs."""
    return _SECRETS.sub(r"\1=…", text)


def is_url(text: str) -> bool:
    """Whether a stream is named by a URL rather than a path."""
    return text.startswith(("http://", "https://"))


def encode_path(path: str) -> str:
    """Percent-encode a stream's path, which must not contain `.` or `..`."""
    if not path or path.startswith("/") or any(part in {".", ".."} for part in path.split("/")):
        raise InvalidRequestError(
            f"{path[:80]!r} is not a stream: expected BUCKET/ID or ID, without '.' and '..' in it."
        )
    return quote(path, safe=_SAFE)


def with_query(url: str, params: Mapping[str, str]) -> str:
    """Add parameters to a URL, and sort all of them so that caches see one spelling."""
    if not params:
        return url
    parts = urlsplit(url)
    kept = [
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if name not in params
    ]
    # By name only: repeated parameters keep their order.
    merged = sorted([*kept, *params.items()], key=itemgetter(0))
    query = urlencode(merged, quote_via=quote, safe="-._~:/")
    return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))


def split_name(path: str) -> tuple[str, str]:
    """The bucket and the id in a stream's path."""
    bucket, slash, stream_id = path.partition("/")
    return (bucket, stream_id) if slash else (DEFAULT_BUCKET, path)


def below(url: str, *segments: str) -> str:
    """The URL of a resource below another one; a query stays at the end."""
    parts = urlsplit(url)
    path = "/".join((parts.path, *(quote(each, safe="") for each in segments)))
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def same_origin(one: str, other: str) -> bool:
    """Whether two URLs have the same origin, so that credentials may be sent to both."""
    return _origin(one) == _origin(other)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
