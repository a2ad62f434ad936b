"""How names of streams and buckets become URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from holdfast.errors import InvalidRequestError
from holdfast.protocol.names import DEFAULT_BUCKET

# What may stand in a path as it is; everything else is percent-encoded.
_SAFE = "/:@!$&'()*+,;=~"


class Address(NamedTuple):
    """Where a server is, and who calls, if the URL says so."""

    base: str
    username: str = ""
    password: str = ""


def parse_base(url: str) -> Address:
    """Take a server's URL apart: no query, no slash at its end, no user left in it."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidRequestError(
            f"{url[:80]!r} is no server's URL: expected http://HOST:PORT or https://HOST."
        )
    if parts.query or parts.fragment:
        raise InvalidRequestError("A server's URL has no query and no fragment.")
    place = parts.netloc.rpartition("@")[2]
    base = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
    return Address(base, unquote(parts.username or ""), unquote(parts.password or ""))


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
    merged = dict(parse_qsl(parts.query, keep_blank_values=True)) | dict(params)
    query = urlencode(sorted(merged.items()), quote_via=quote, safe="-._~:/")
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
    first, second = urlsplit(one), urlsplit(other)
    return (first.scheme, first.netloc) == (second.scheme, second.netloc)
