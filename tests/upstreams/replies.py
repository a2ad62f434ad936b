"""What an upstream answers, and how: the part of its URL's query that every path understands.

| name | meaning |
| --- | --- |
| `status`, `type` | of the response; 200 and the path's own content type |
| `header` | `Name: value`; may be repeated, and names may be as well |
| `headers` | so many further headers, `x-many-0` and so on |
| `early` | status of an interim response that comes first, such as 103 |
| `piece` | cut the body into pieces of so many bytes; every piece is a write of its own |
| `delay_ms` | wait before each piece |
| `gate` | `1`: each piece, and the end, waits for a `release`; `headers`: the head waits as well |
| `framing` | `length`, `chunked` or `close` (no length: ends with the connection) |
| `encoding` | `gzip`, `deflate`, `raw-deflate`; anything else is claimed, but not done |
| `truncate` | leave out so many bytes at the end of the encoded body; the length fits |
| `after`, `end` | after so many pieces (all of them) `complete`, `cut`, `reset` or `silent` |
"""

import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

PIECE_BYTES = 65_536
_WINDOWS = {"gzip": 31, "deflate": 15, "raw-deflate": -15}


@dataclass(slots=True)
class Reply:
    """An answer: its head, its body in pieces, how it is framed and how it ends."""

    body: bytes | Iterable[bytes] = b""
    status: int = 200
    content_type: str = "text/plain"
    headers: list[tuple[str, str]] = field(default_factory=list)
    framing: str = "chunked"
    gate: str = ""
    delay_s: float = 0.0
    after: int | None = None
    end: str = "complete"
    early: int = 0
    # In place of all that: what goes over the wire as it is, and then the connection is closed.
    raw: bytes | None = None

    def pieces(self) -> Iterator[bytes]:
        """The body, as it is to be written."""
        if isinstance(self.body, bytes):
            return iter([self.body] if self.body else [])
        return iter(self.body)

    def head(self) -> list[tuple[str, str]]:
        """All headers but those of the framing."""
        return [("content-type", self.content_type), *self.headers]


def deliver(reply: Reply, query: dict[str, list[str]]) -> Reply:
    """The same answer, delivered as the query asks."""
    one = {name: values[-1] for name, values in query.items()}
    reply.status = int(one.get("status", reply.status))
    reply.content_type = one.get("type", reply.content_type)
    reply.headers += [_header(line) for line in query.get("header", [])]
    reply.headers += [(f"x-many-{at}", "value") for at in range(int(one.get("headers", 0)))]
    reply.framing = one.get("framing", reply.framing)
    reply.gate = one.get("gate", reply.gate)
    reply.delay_s = float(one.get("delay_ms", 0)) / 1000
    reply.after = int(one["after"]) if "after" in one else None
    reply.end = one.get("end", reply.end)
    reply.early = int(one.get("early", 0))
    pieces: Iterable[bytes] = reply.pieces()
    if encoding := one.get("encoding"):
        pieces = _encoded(pieces, encoding)
        reply.headers.append(("content-encoding", encoding.removeprefix("raw-")))
    if "truncate" in one:
        pieces = [b"".join(pieces)[: -int(one["truncate"])]]
    if "piece" in one:
        pieces = _cut(pieces, int(one["piece"]))
    reply.body = list(pieces) if reply.framing == "length" else pieces
    return reply


def pattern(count: int, start: int = 0) -> bytes:
    """Each eight bytes say where they are, so that none can be lost or doubled unseen."""
    first, last = start // 8, (start + count + 7) // 8
    words = array("Q", range(first, last))
    words.byteswap()
    return words.tobytes()[start % 8 : start % 8 + count]


def generated(count: int, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The pattern in pieces, made as they are asked for."""
    for start in range(0, count, piece_bytes):
        yield pattern(min(piece_bytes, count - start), start)


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.strip()


def _cut(pieces: Iterable[bytes], piece_bytes: int) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), piece_bytes):
            yield piece[at : at + piece_bytes]


def _encoded(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Each piece can be decoded as soon as it has come; the last one carries the trailer."""
    if encoding not in _WINDOWS:
        yield from pieces
        return
    packer = zlib.compressobj(wbits=_WINDOWS[encoding])
    held: bytes | None = None
    for piece in pieces:
        if held is not None:
            yield held
        held = packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield (held or b"") + packer.flush()
