"""Decoding the content of responses, piece by piece.

Rules:

- `gzip`, in one or several members, and `deflate`, which some servers take for zlib's format and
  some for raw deflate; browsers accept both. Other encodings, and combinations, are left to the
  reader of the response.
- A few bytes may expand to very many. They are decoded as they are taken, in pieces of a bounded
  size, so that the caller can stop at a limit of its own.
- No bytes at all are a response without content, not a damaged one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

from holdfast.errors import OutboundError

PIECE_BYTES_MAX: Final = 65_536
_GZIP: Final = 16 + zlib.MAX_WBITS
_BARE: Final = -zlib.MAX_WBITS


class Decoder(Protocol):
    def feed(self, chunk: bytes, bytes_max: int = PIECE_BYTES_MAX) -> Iterator[bytes]:
        """The decoded chunk, in pieces of at most `bytes_max`; OutboundError if it is damaged.

        All of them must be taken before the next chunk.
        """

    def finish(self) -> None:
        """Raise OutboundError if the response ended in the middle of its encoding."""


def decoder_for(content_encoding: str) -> Decoder | None:
    """A new decoder for a `Content-Encoding`; None to leave the content as it is."""
    match _encodings(content_encoding):
        case ["gzip" | "x-gzip"]:
            return _Gzip()
        case ["deflate"]:
            return _Deflate()
        case _:
            return None


def _encodings(text: str) -> list[str]:
    names = [name.strip().lower() for name in text.split(",")]
    return [name for name in names if name not in {"", "identity"}]


class _Gzip:
    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        self._began = False

    def feed(self, chunk: bytes, bytes_max: int = PIECE_BYTES_MAX) -> Iterator[bytes]:
        rest = chunk
        while rest:
            if self._member.eof:
                # Zeros between and after members are padding.
                rest = rest.lstrip(b"\0")
                if not rest:
                    return
                self._member = zlib.decompressobj(_GZIP)
            self._began = True
            yield from _inflated(self._member, rest, bytes_max, "gzip")
            rest = self._member.unused_data

    def finish(self) -> None:
        if self._began and not self._member.eof:
            raise _cut_off("gzip")


class _Deflate:
    def __init__(self) -> None:
        self._head = b""
        self._inflater: zlib._Decompress | None = None

    def feed(self, chunk: bytes, bytes_max: int = PIECE_BYTES_MAX) -> Iterator[bytes]:
        if self._inflater is None:
            self._head += chunk
            if len(self._head) < 2:
                return
            chunk, self._head = self._head, b""
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS if _has_head(chunk) else _BARE)
        if chunk and self._inflater.eof:
            raise _damaged("deflate")
        yield from _inflated(self._inflater, chunk, bytes_max, "deflate")
        if self._inflater.unused_data:
            raise _damaged("deflate")

    def finish(self) -> None:
        if self._head or (self._inflater is not None and not self._inflater.eof):
            raise _cut_off("deflate")


def _has_head(data: bytes) -> bool:
    """Whether data begins like zlib's format; raw deflate of real compressors never does."""
    return data[0] & 0x0F == 8 and data[0] >> 4 <= 7 and (data[0] << 8 | data[1]) % 31 == 0


def _inflated(
    inflater: zlib._Decompress, data: bytes, bytes_max: int, encoding: str
) -> Iterator[bytes]:
    while True:
        try:
            piece = inflater.decompress(data, bytes_max)
        except zlib.error:
            raise _damaged(encoding) from None
        data = inflater.unconsumed_tail
        if piece:
            yield piece
        # After a full piece there may be more, though all data is consumed.
        if inflater.eof or (not data and len(piece) < bytes_max):
            return


def _damaged(encoding: str) -> OutboundError:
    return OutboundError(f"The response's {encoding} encoding is damaged.")


def _cut_off(encoding: str) -> OutboundError:
    return OutboundError(f"The response ends in the middle of its {encoding} encoding.")
