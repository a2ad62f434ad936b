"""What is sent to another server: a request's target, headers and body."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Final

import httpcore

from holdfast.errors import OutboundError
from holdfast.net.targets import Target, path_of
from holdfast.protocol.headers import CONTROL_CHARACTERS, HEADER_NAME
from holdfast.version import __version__

CONNECT_TIMEOUT_S: Final = 10.0
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
# Unless the caller says otherwise; nothing is decoded here, so nothing encoded is asked for.
_DEFAULT_HEADERS: Final = {"User-Agent": f"holdfast/{__version__}", "Accept-Encoding": "identity"}

Headers = Mapping[str, str | bytes]


class Body:
    """A body in pieces: sent once, and as long as was announced."""

    def __init__(self, pieces: AsyncIterable[bytes], length: int | None, target: Target) -> None:
        self._pieces = pieces
        self._length = length
        self._target = target
        self._taken = False
        # What the caller's own pieces failed with; it is the caller who knows what that means.
        self.failure: BaseException | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._taken:
            raise OutboundError(f"{self._target} took the body, but not the call.")
        self._taken = True
        size = 0
        async for piece in self._checked():
            size += len(piece)
            if self._length is not None and size > self._length:
                raise self._wrong_length()
            yield piece
        if self._length is not None and size < self._length:
            raise self._wrong_length()

    async def _checked(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                yield piece
        except BaseException as error:
            self.failure = error
            raise

    def _wrong_length(self) -> OutboundError:
        return OutboundError(
            f"{self._target} was not sent the whole body: it is not as long as its Content-Length.",
            passing=False,
        )


def make_request(
    target: Target,
    method: str,
    url: str,
    headers: Headers,
    body: bytes | AsyncIterable[bytes],
    silence_s: float,
) -> httpcore.Request:
    """The request, or OutboundError if it cannot be sent."""
    connect_s = min(CONNECT_TIMEOUT_S, silence_s)
    limits = {"connect": connect_s, "pool": silence_s, "read": silence_s, "write": silence_s}
    try:
        sent = sent_headers(target, method, headers, body)
        content = body if isinstance(body, bytes) else Body(body, _length(sent), target)
        return httpcore.Request(
            method,
            sent_url(target, url),
            headers=sent,
            content=content or None,
            extensions={"timeout": limits},
        )
    except ValueError:
        # Without the reason: it may quote a header.
        raise OutboundError(
            f"{target} was not called: the method, a header or the body cannot be sent.",
            sent=False,
            passing=False,
        ) from None


def sent_url(target: Target, url: str) -> httpcore.URL:
    """The URL as the pool takes it; `target` is what the policy made of it."""
    _, question, query = url.partition("?")
    return httpcore.URL(
        scheme=target.scheme.encode(),
        host=target.host.encode(),
        port=target.port,
        target=f"{path_of(url)}{question}{query}".encode("ascii"),
    )


def sent_headers(
    target: Target, method: str, headers: Headers, body: bytes | AsyncIterable[bytes]
) -> list[tuple[bytes, bytes]]:
    """What is sent: the caller's headers, and those that every request needs.

    Raises ValueError for what would not be one header, or would be another body.
    """
    sent = {name.lower(): (name, value) for name, value in headers.items()}
    for name, value in _DEFAULT_HEADERS.items():
        sent.setdefault(name.lower(), (name, value))
    sent.setdefault("host", ("Host", target.authority))
    if isinstance(body, bytes):
        if body or method in _WITH_BODY or "content-length" in sent:
            sent.setdefault("content-length", ("Content-Length", str(len(body))))
    elif "content-length" not in sent:
        sent.setdefault("transfer-encoding", ("Transfer-Encoding", "chunked"))
    made = [(name.encode("ascii"), _bytes(value)) for name, value in sent.values()]
    if not HEADER_NAME.fullmatch(method.encode("ascii")):
        raise ValueError("The method is none.")
    if not all(HEADER_NAME.fullmatch(name) for name, _ in made):
        raise ValueError("A header's name is none.")
    if any(CONTROL_CHARACTERS.search(value) for _, value in made):
        raise ValueError("A header holds control characters.")
    if "content-length" in sent and "transfer-encoding" in sent:
        raise ValueError("The body's length is announced twice.")
    if any(name.lower() == b"transfer-encoding" and value != b"chunked" for name, value in made):
        raise ValueError("The only transfer encoding is chunked.")
    if isinstance(body, bytes) and _length(made) not in {None, len(body)}:
        raise ValueError("The body is not as long as announced.")
    return made


def _length(headers: list[tuple[bytes, bytes]]) -> int | None:
    """The length that the headers announce; ValueError if it is no number."""
    for name, value in headers:
        if name.lower() == b"content-length":
            if not value.isdigit() or len(value) > 18:
                raise ValueError("The body's length is no number.")
            return int(value)
    return None


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("ascii")
