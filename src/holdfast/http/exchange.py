"""One request and the place for its answer: all that handlers know of HTTP.

The native connection and the ASGI app each have a slot of their own; handlers cannot tell them
apart. Header fields go into a slot as one block of lines, which the native connection writes as it
is and the ASGI app takes apart again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.http.access.scopes import Identity
    from holdfast.http.body_stream import BodyStream

# The only request fields that are kept; everything else is dropped while parsing.
_KEPT = (
    b"authorization",
    b"content-length",
    b"content-type",
    b"expect",
    b"host",
    b"if-match",
    b"if-none-match",
    b"last-event-id",
    b"producer-epoch",
    b"producer-id",
    b"producer-seq",
    b"stream-closed",
    b"stream-expires-at",
    b"stream-fork-offset",
    b"stream-fork-sub-offset",
    b"stream-forked-from",
    b"stream-seq",
    b"stream-ttl",
    b"transfer-encoding",
    b"upgrade",
)
# As sent by most clients, so that the common case needs no lower-casing.
KEPT_FIELDS = {spelling: name for name in _KEPT for spelling in (name, name.title())}
# Fields whose value is a list: repeating them is the same as a comma.
_LIST_FIELDS = frozenset({b"if-match", b"if-none-match", b"upgrade"})
# Answers that have no body, and no length either.
BODILESS = frozenset({204, 304})


def join_repeated(fields: dict[bytes, bytes], name: bytes, value: bytes) -> bool:
    """Add a field that is there already to its list; whether it is one that may be repeated."""
    if name not in _LIST_FIELDS:
        return False
    fields[name] += b", " + value
    return True


def peer_address(transport: asyncio.BaseTransport) -> str:
    """The address at the other end of a connection; empty where there is none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


class Request(msgspec.Struct, gc=False):
    """A complete request; `fields` has lower-cased names and only those the protocol knows."""

    method: bytes
    path: bytes
    query: bytes
    fields: dict[bytes, bytes]
    scheme: bytes
    # The address of whoever is connected; a proxy's, if there is one in between.
    peer: str = ""
    body: bytes = b""
    # Where the app is mounted; the path does not include it.
    prefix: bytes = b""
    # What the path says beyond the name, and whether it is one of the bucketed surface.
    parameter: str = ""
    bucketed: bool = False
    # Instead of `body` where it is worked on while it arrives.
    stream: BodyStream | None = None
    # Who asks, once the gate has let the request in.
    identity: Identity | None = None
    # The fields that the protocol does not know, where the request is to be forwarded.
    others: Sequence[tuple[bytes, bytes]] = ()
    # Whether the answer is for this client alone, however open the server is.
    private: bool = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, piece by piece."""
        if self.stream is None:
            yield self.body
            return
        async for piece in self.stream:
            yield piece

    def abandon_body(self, slot: Slot) -> None:
        """What is still to come of the body is not wanted: the connection ends with the answer."""
        if self.stream is not None and not self.stream.complete:
            self.stream.fail()
            slot.refuse_rest()


class Slot(Protocol):
    """Where a handler puts its answer, at once or later."""

    # What the request counts as in the metrics.
    route: str
    # Called if the client goes away first, and when a paused body may go on.
    on_gone: Callable[[], None] | None
    on_resume: Callable[[], None] | None

    def answer(self, status: int, fields: bytes, body: bytes = b"") -> None:
        """Answer in one piece."""

    def begin(self, status: int, fields: bytes) -> None:
        """Start an answer whose body comes in pieces."""

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""

    def end(self) -> None:
        """Finish the body."""

    def abort(self) -> None:
        """Break off an answer that cannot be completed, so that nobody takes it for whole."""

    def refuse_rest(self) -> None:
        """Take no more of the request: its body is not wanted."""

    @property
    def paused(self) -> bool:
        """Whether the client reads too slowly for more to be sent now."""
