"""Reading packs to copy them, each byte verified on its way.

A pack's checksums are at its end, so that is read first; then the pack goes through in pieces, and
every block is checked against its own sum before the piece behind it is asked for.
"""

from __future__ import annotations

from struct import iter_unpack
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64

from holdfast.errors import PackCorruptError
from holdfast.format.packs import PackFormatError, checksum, encode_footer
from holdfast.objects.pack_reader import Pack, naming
from holdfast.storage.object_copy import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.objects.store import ObjectStore
    from holdfast.storage.manifest import CopiedPack


class _Region(NamedTuple):
    """A run of bytes with a checksum."""

    start: int
    end: int
    sum: int


def verified_pieces(store: ObjectStore, pack: CopiedPack) -> Iterator[bytes]:
    """The bytes of a pack, if they are what was written; raises before the end if not."""
    name, size = pack.name, pack.size_bytes
    try:
        check = _Check(Pack(store, name, size))
        for at in range(0, size, PIECE_BYTES):
            piece = store.read(name, at, min(PIECE_BYTES, size - at))
            with naming(name):
                check.update(piece, last=at + PIECE_BYTES >= size)
            yield piece
    except PackCorruptError as error:
        raise PackCorruptError(f"{error.message} It is in {store.url}.") from None


class _Check:
    """Checks a pack's regions as their bytes come by."""

    def __init__(self, pack: Pack) -> None:
        self._size = pack.footer.size_bytes
        self._salt = pack.footer.salt
        self._regions = _regions(pack)
        self._region = next(self._regions)
        self._at = 0
        self._hash = xxh3_64(seed=self._salt)

    def update(self, piece: bytes, *, last: bool) -> None:
        """Take the bytes that come next."""
        view = memoryview(piece)
        piece_at, piece_end = self._at, self._at + len(piece)
        while self._at < piece_end:
            start, end, expected = self._region
            # Before a region there may be a header, or some bytes to fill up.
            upto = min(piece_end, start if self._at < start else end)
            if self._at >= start:
                self._hash.update(view[self._at - piece_at : upto - piece_at])
            self._at = upto
            if upto == end:
                if self._hash.intdigest() != expected:
                    raise PackFormatError(f"its bytes {start} to {end} are not those written")
                self._hash.reset()
                self._region = next(self._regions, _Region(self._size, self._size + 1, 0))
        if last and self._at != self._size:
            raise PackFormatError(f"it ends at byte {self._at} of {self._size}")


def _regions(pack: Pack) -> Iterator[_Region]:
    """Everything in a pack that has a checksum, in order."""
    footer = pack.footer
    for extent in pack.directory():
        start, extent_end = extent.data_at, extent.data_at + extent.length
        for (expected,) in iter_unpack("<Q", extent.sums):
            end = min(start + footer.block_bytes, extent_end)
            yield _Region(start, end, expected)
            start = end
    yield _Region(footer.lengths_at, footer.directory_at, footer.index_sum)
    yield _Region(footer.directory_at, footer.delta_at, footer.directory_sum)
    yield _Region(footer.delta_at, footer.footer_at, footer.delta_sum)
    # The footer that was read first has passed its own checksum.
    whole = checksum(encode_footer(footer), footer.salt)
    yield _Region(footer.footer_at, footer.size_bytes, whole)
