"""How names of streams and buckets become URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import itemgetter
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from holdfast.errors import InvalidRequestError
from holdfast.protocol.names import DEFAULT_BUCKET

# What may stand in a path as it is; everything else is percent-encoded.
_SAFE: Final = "/:@!$&'()*+,;=~"
_PORTS: Final = {"http": 80, "https": 443}
# In the query of a URL, wherever that stands.
_SECRETS: Final = re.compile(r"\b(signature|secret)=(?![.,;:)])[^&\s\"'<>]+", re.IGNORECASE)


class Address(NamedTuple):
    """Where a server is, and who calls, if the URL says so."""

    base: str
    username: str = ""
    password: str = ""


def parse_base(url: str) -> Address:
    """Take a server's URL apart: no query, no slash at its end, no user left in it."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        _ = parts.port
    except ValueError:  # brackets that hold no address, or a port that is none
        raise _no_server(url) from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise _no_server(url)
    if parts.query or parts.fragment:
        raise InvalidRequestError("A server's URL has no query and no fragment.")
    place = parts.netloc.rpartition("@")[2]
    base = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
    return Address(base, unquote(parts.username or ""), unquote(parts.password or ""))


def _no_server(url: str) -> InvalidRequestError:
    # Without who calls: a password may be there.
    shown = url.rpartition("@")[2][:80]
    return InvalidRequestError(
        f"{shown!r} is no server's URL: expected http://HOST:PORT or https://HOST."
    )


def without_secrets(text: str) -> str:
    """The same for messages and logs: what URLs in it grant access with is left out."""
    return _SECRETS.sub(r"\1=…", text)


def is_url(text: str) -> bool:
    """Whether a stream is named by its whole URL rather than a path."""
    return text.startswith(("http://", "https://"))


def encode_path(path: str) -> str:
    """A path as it stands in a URL; it must not lead elsewhere."""
    if not path or path.startswith("/") or any(part in {".", ".."} for part in path.split("/")):
        raise InvalidRequestError(
            f"{path[:80]!r} is no stream: expected BUCKET/ID or ID, without '.' and '..' in it."
        )
    return quote(path, safe=_SAFE)


def with_query(url: str, params: Mapping[str, str]) -> str:
    """The URL with these parameters too, all of them sorted, so that caches see one spelling."""
    if not params:
        return url
    parts = urlsplit(url)
    kept = [
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if name not in params
    ]
    # By name only: what the URL has several times stays in its order.
    merged = sorted([*kept, *params.items()], key=itemgetter(0))
    query = urlencode(merged, quote_via=quote, safe="-._~:/")
    return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))


def split_name(path: str) -> tuple[str, str]:
    """The bucket and the id of a stream's path."""
    bucket, slash, stream_id = path.partition("/")
    return (bucket, stream_id) if slash else (DEFAULT_BUCKET, path)


def below(url: str, *segments: str) -> str:
    """A resource below another one; a query stays at the end."""
    parts = urlsplit(url)
    path = "/".join((parts.path, *(quote(each, safe="") for each in segments)))
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def same_origin(one: str, other: str) -> bool:
    """Whether two URLs lead to the same server, so that credentials may go along."""
    return _origin(one) == _origin(other)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
