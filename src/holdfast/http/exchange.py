"""One request and the place for its answer: all that handlers know of HTTP.

The native connection and the ASGI app each have a slot of their own; handlers cannot tell them
apart. Header fields go into a slot as one block of lines, which the native connection writes as it
is and the ASGI app takes apart again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

# The only request fields that are kept; everything else is dropped while parsing.
_KEPT = (
    b"content-length",
    b"content-type",
    b"expect",
    b"host",
    b"if-none-match",
    b"producer-epoch",
    b"producer-id",
    b"producer-seq",
    b"stream-closed",
    b"stream-expires-at",
    b"stream-seq",
    b"stream-ttl",
    b"transfer-encoding",
    b"upgrade",
)
# As sent by most clients, so that the common case needs no lower-casing.
KEPT_FIELDS = {spelling: name for name in _KEPT for spelling in (name, name.title())}
# Fields whose value is a list: repeating them is the same as a comma.
_LIST_FIELDS = frozenset({b"if-none-match", b"upgrade"})
# Answers that have no body, and no length either.
BODILESS = frozenset({204, 304})


def join_repeated(fields: dict[bytes, bytes], name: bytes, value: bytes) -> bool:
    """Add a field that is there already to its list; whether it is one that may be repeated."""
    if name not in _LIST_FIELDS:
        return False
    fields[name] += b", " + value
    return True


class Request(msgspec.Struct, gc=False):
    """A complete request; `fields` has lower-cased names and only those the protocol knows."""

    method: bytes
    path: bytes
    query: bytes
    fields: dict[bytes, bytes]
    scheme: bytes
    body: bytes = b""
    # Where the app is mounted; the path does not include it.
    prefix: bytes = b""


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

    @property
    def paused(self) -> bool:
        """Whether the client reads too slowly for more to be sent now."""
