"""Requests and response slots: all that handlers know of HTTP.

The native connection and the ASGI app each have their own slot class, and handlers work with
either. Response headers go into a slot as one block of lines, which the native connection writes
as it is and the ASGI app splits again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from holdfast.errors import InvalidRequestError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.http.access.scopes import Identity
    from holdfast.http.bodies import BodyStream

# The request headers that are kept; all others are dropped while parsing.
_KEPT: Final = (
    b"authorization",
    b"content-length",
    b"content-type",
    b"expect",
    b"host",
    b"if-match",
    b"if-none-match",
    b"last-event-id",
    b"producer-digest",
    b"producer-epoch",
    b"producer-id",
    b"producer-seq",
    b"stream-closed",
    b"stream-expires-at",
    b"stream-fork-offset",
    b"stream-fork-sub-offset",
    b"stream-forked-from",
    b"stream-message-lengths",
    b"stream-seq",
    b"stream-ttl",
    b"transfer-encoding",
    b"upgrade",
)
# Also in title case, which most clients send, so that the common case needs no lower-casing.
KEPT_HEADERS: Final = {spelling: name for name in _KEPT for spelling in (name, name.title())}
# A repeated header of these is the same as one with the values joined by a comma.
_LIST_HEADERS: Final = frozenset({b"if-match", b"if-none-match", b"upgrade"})
# Statuses whose responses have neither a body nor a Content-Length.
BODILESS: Final = frozenset({204, 304})
_DIGITS_MAX: Final = 18


class Request(msgspec.Struct, gc=False):
    """A request; `headers` has lower-cased names, and only those in `KEPT_HEADERS`."""

    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    scheme: bytes
    # The address of the connected client, or of the proxy in front of this server.
    peer: str = ""
    body: bytes = b""
    # Where the ASGI app is mounted; `path` does not include it.
    prefix: bytes = b""
    # What the path holds besides the stream's name, and whether it is on the bucketed surface.
    parameter: str = ""
    bucketed: bool = False
    # Takes the place of `body` where a handler reads the body while it arrives.
    stream: BodyStream | None = None
    # Set by the gate, and whether it has admitted the request before the body was complete.
    identity: Identity | None = None
    admitted: bool = False
    # The headers that were not kept, where the request is to be forwarded.
    other_headers: Sequence[tuple[bytes, bytes]] = ()
    # Whether shared caches must not keep the response, even on a server without access control.
    private: bool = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, piece by piece."""
        if self.stream is None:
            yield self.body
            return
        async for piece in self.stream:
            yield piece

    def abandon_body(self, slot: Slot) -> None:
        """Refuse the rest of the body: the connection closes after the response."""
        if self.stream is not None and not self.stream.complete:
            self.stream.fail()
            slot.refuse_rest()


class Slot(Protocol):
    """Where a handler puts its response, now or later."""

    # The request's route in the metrics.
    route: str
    # Called if the client disconnects first, and when a paused body may continue.
    on_gone: Callable[[], None] | None
    on_resume: Callable[[], None] | None

    def respond(self, status: int, headers: bytes, body: bytes = b"") -> None:
        """Send a whole response."""

    def begin(self, status: int, headers: bytes, length: int | None = None) -> None:
        """Start a response whose body comes in pieces; `length` is its size if that is known."""

    def write(self, data: bytes, more: bytes = b"") -> None:
        """Send a piece of the body, in two parts if that saves joining them."""

    def end(self) -> None:
        """Finish the body."""

    def abort(self) -> None:
        """Break off a response that cannot be completed; the client can tell that it is cut."""

    def refuse_rest(self) -> None:
        """Read no more of the request's body."""

    @property
    def has_begun(self) -> bool:
        """Whether the response is being sent in pieces."""

    @property
    def paused(self) -> bool:
        """Whether the client reads too slowly for more to be sent now."""


def join_repeated(headers: dict[bytes, bytes], name: bytes, value: bytes) -> bool:
    """Add a repeated header to the value that is there; False if it must not be repeated."""
    if name not in _LIST_HEADERS:
        return False
    headers[name] += b", " + value
    return True


def peer_address(transport: asyncio.BaseTransport) -> str:
    """The address at the other end of a connection; empty where there is none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def parse_query(raw: bytes) -> dict[str, str]:
    """The query's parameters by name; raises if one is repeated or not UTF-8."""
    parameters: dict[str, str] = {}
    if not raw:
        return parameters
    for pair in raw.split(b"&"):
        name, _, value = pair.partition(b"=")
        key = _decode(name)
        if key in parameters:
            raise InvalidRequestError(f"The query parameter {key!r} is given more than once.")
        parameters[key] = _decode(value)
    return parameters


def _decode(raw: bytes) -> str:
    if b"%" in raw or b"+" in raw:
        raw = unquote_to_bytes(raw.replace(b"+", b" "))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("The query string is not UTF-8.") from None


def int_parameter(query: dict[str, str], name: str, least: int, most: int) -> int | None:
    """A whole number from the query, or None if the parameter is not given."""
    text = query.get(name)
    if text is None:
        return None
    if (
        text.isascii()
        and text.isdigit()
        and len(text) <= _DIGITS_MAX
        and least <= int(text) <= most
    ):
        return int(text)
    raise InvalidRequestError(
        f"The parameter {name!r} takes a whole number from {least} to {most}."
    )
