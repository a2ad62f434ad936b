"""Reading parts of packs from the store, each verified before it is used.

Index, directory and delta have one checksum each. A part that is too large to be held is read
twice: once to verify it, and then piece by piece.
"""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import PackCorruptError, UnknownFormatError
from holdfast.format.pack_builder import HeldBytes, Messages, PackBuilder
from holdfast.format.packs import (
    FOOTER_BYTES,
    HEADER_BYTES,
    PIECE_ENTRIES,
    Delta,
    Footer,
    NewPack,
    PackFormatError,
    SequentialReader,
    UnknownPackVersionError,
    block_sums,
    check_sum,
    checksum,
    decode_footer,
    describe_pack,
    directory_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.format.pack_builder import Spool
    from holdfast.format.packs import Directory, Extent, Read
    from holdfast.objects.store import ObjectStore

_READ_BYTES: Final = 4 * 1024 * 1024
# The first read gets the footer and, for most packs, the directory and the delta.
_TAIL_BYTES: Final = 256 * 1024


@contextmanager
def naming(pack: str) -> Iterator[None]:
    """Turn format errors into errors that name the pack."""
    try:
        yield
    except UnknownPackVersionError as error:
        raise UnknownFormatError(
            f"The pack {pack} is newer than this version of Holdfast: {error}."
        ) from None
    except (ArithmeticError, LookupError, ValueError, msgspec.MsgspecError) as error:
        raise PackCorruptError(f"The pack {pack} is damaged: {error}.") from None


class Pack:
    """A pack in the store; opening it reads the footer, the rest is read on demand."""

    def __init__(self, store: ObjectStore, name: str, size_bytes: int | None = None) -> None:
        self.name = name
        self._store = store
        size = store.size(name) if size_bytes is None else size_bytes
        self._tail_at = max(0, size - _TAIL_BYTES)
        self._tail = store.read(name, self._tail_at, size - self._tail_at)
        with naming(name):
            self.footer: Footer = decode_footer(self._tail[-FOOTER_BYTES:], size)

    def _part(self, at: int, end: int) -> bytes:
        if at >= self._tail_at:
            return self._tail[at - self._tail_at : end - self._tail_at]
        data = self._store.read(self.name, at, end - at)
        if len(data) != end - at:
            raise PackCorruptError(f"The pack {self.name} is damaged: it ends too early.")
        return data

    def directory(self, copy: Spool | None = None) -> Iterable[Extent]:
        """The extents; with a spool for a copy they can be iterated without the store."""
        footer = self.footer
        read = self._verified(
            footer.directory_at, footer.delta_at, footer.directory_sum, "directory", copy
        )
        return _StoredExtents(self.name, directory_in(read, footer))

    def delta(self) -> Delta:
        footer = self.footer
        read = self._verified(footer.delta_at, footer.footer_at, footer.delta_sum, "delta")
        with naming(self.name):
            return Delta(read, footer)

    def describe(self, copy: Spool | None = None) -> NewPack:
        """The pack as the catalog takes it."""
        info = describe_pack(self.name, self.footer, self.delta().meta)
        return NewPack(info, self.directory(copy))

    def index(self) -> MessageIndex:
        footer = self.footer
        read = self._verified(
            footer.lengths_at, footer.directory_at, footer.index_sum, "message index"
        )
        return MessageIndex(read, footer)

    def _verified(
        self, at: int, end: int, expected: int, what: str, copy: Spool | None = None
    ) -> Read:
        """A function that reads from a part of the pack, whose checksum is verified first."""
        if at >= self._tail_at or end - at <= _READ_BYTES:
            copy = HeldBytes()
        with naming(self.name):
            check_sum(self._pieces(at, end, copy), self.footer.salt, expected, what)
        if copy is not None:
            return copy.read
        return lambda first, size: self._part(at + first, at + first + size)

    def _pieces(self, at: int, end: int, copy: Spool | None) -> Iterator[bytes]:
        for piece_at in range(at, end, _READ_BYTES):
            piece = self._part(piece_at, min(piece_at + _READ_BYTES, end))
            if copy is not None:
                copy.write(piece)
            yield piece

    def verify(self) -> Iterator[int]:
        """Read and check everything; yields the number of bytes read since the last time."""
        self.delta()
        self.check_frame()
        yield self.footer.size_bytes - self.footer.data_end + HEADER_BYTES
        for extent, end in self.checked():
            if isinstance(end, PackCorruptError):
                raise end
            yield extent.length

    def spot_check(self, extents: Iterable[Extent], bytes_max: int) -> None:
        """Check blocks of data from all over the pack, up to this size together, and their indexes.

        `extents` are those of the directory. If all data fits, everything is checked.
        """
        footer = self.footer
        data_bytes = footer.data_end - HEADER_BYTES
        if data_bytes <= bytes_max:
            for _ in self.verify():
                pass
            return
        self.check_frame()
        step = data_bytes // (bytes_max // footer.block_bytes)
        # Not the same places in every pack.
        wanted = HEADER_BYTES + footer.salt % step
        for extent in extents:
            while extent.data_at + extent.length > wanted:
                self._check_block(extent, max(0, wanted - extent.data_at) // footer.block_bytes)
                wanted += step

    def _check_block(self, extent: Extent, number: int) -> None:
        """Check a block of an extent's data, and the lengths of the extent's messages."""
        footer = self.footer
        at = extent.data_at + number * footer.block_bytes
        data = self._part(at, min(at + footer.block_bytes, extent.data_at + extent.length))
        with naming(self.name):
            if block_sums(data, footer.salt).tobytes() != extent.sums[8 * number : 8 * number + 8]:
                raise PackFormatError(
                    f"a block of stream {extent.stream:x} does not match its checksum"
                )
            lengths_at = footer.lengths_at + 4 * extent.message_at
            lengths = self._part(lengths_at, lengths_at + 4 * extent.messages)
            if checksum(lengths, footer.salt) != extent.index_sum:
                raise PackFormatError("the lengths of an extent are damaged")

    def check_frame(self) -> None:
        """Check the few bytes that no checksum covers: the header and the padding."""
        footer = self.footer
        with naming(self.name):
            if self._part(0, HEADER_BYTES) != PackBuilder.header():
                raise PackFormatError("its header is damaged")
            padding = footer.lengths_at > footer.data_end
            if padding and any(self._part(footer.data_end, footer.lengths_at)):
                raise PackFormatError("there is something between its data and its index")

    def checked(self) -> Iterator[tuple[Extent, bytes | PackCorruptError]]:
        """Every extent with its last byte, or with the error if it is damaged.

        Memory holds a window of the data, however large an extent is.
        """
        index = self.index()
        reader = self.data_reader(_READ_BYTES)
        for extent in self.directory():
            try:
                last = self._check_data(extent, reader)
                with naming(self.name):
                    self._check_messages(extent, index)
            except PackCorruptError as error:
                yield extent, error
            else:
                yield extent, last

    def _check_data(self, extent: Extent, reader: SequentialReader) -> bytes:
        sums, piece = bytearray(), b""
        block_bytes = self.footer.block_bytes
        # Whole blocks, each of which has its sum.
        size = max(1, _READ_BYTES // block_bytes) * block_bytes
        for at in range(0, extent.length, size):
            piece = reader.read(extent.data_at + at, min(size, extent.length - at))
            sums += block_sums(piece, self.footer.salt).tobytes()
        if sums != extent.sums:
            raise _mismatch(self.name, extent)
        return piece[-1:]

    def data_reader(self, window_bytes: int) -> SequentialReader:
        """Reads the data; the caller verifies it."""
        read = partial(self._store.read, self.name)
        return SequentialReader(read, self.footer.data_end, window_bytes)

    def _check_messages(self, extent: Extent, index: MessageIndex) -> None:
        part = index.part(extent.message_at, extent.message_at + extent.messages)
        if checksum(part.lengths.tobytes(), self.footer.salt) != extent.index_sum:
            raise PackFormatError("the lengths of an extent are damaged")
        if sum(part.lengths) != extent.length:
            raise PackFormatError("an extent's messages do not add up to its length")
        if (part.positions[0], part.positions[-1]) != (extent.first_position, extent.last_position):
            raise PackFormatError("an extent's positions are not those of its messages")


def verified(pack: str, salt: int, extent: Extent, data: bytes) -> bytes:
    """The data of a whole extent; raises if it does not match its checksums."""
    if len(data) != extent.length or block_sums(data, salt).tobytes() != extent.sums:
        raise _mismatch(pack, extent)
    return data


def _mismatch(pack: str, extent: Extent) -> PackCorruptError:
    return PackCorruptError(
        f"The pack {pack} is damaged: the extent of stream {extent.stream:x} at offset "
        f"{extent.start} does not match its checksum."
    )


class MessageIndex:
    """A pack's message index, of which a window is in memory."""

    def __init__(self, read: Read, footer: Footer) -> None:
        self._read = read
        self._footer = footer
        self._first = 0
        self._window = Messages()

    def part(self, first: int, last: int) -> Messages:
        """The messages from `first` up to `last`, exclusive; cheap in ascending order."""
        if first < self._first or last > self._first + len(self._window):
            self._load(first, max(last, min(first + PIECE_ENTRIES, self._footer.messages)))
        return self._window.part(first - self._first, last - self._first)

    def _load(self, first: int, last: int) -> None:
        footer, count = self._footer, last - first
        timestamps_at = footer.timestamps_at - footer.lengths_at
        positions_at = footer.positions_at - footer.lengths_at
        self._window = Messages(
            array("I", self._read(4 * first, 4 * count)),
            array("q", self._read(timestamps_at + 8 * first, 8 * count)),
            array("Q", self._read(positions_at + 8 * first, 8 * count)),
        )
        self._first = first


class _StoredExtents:
    """The extents of a directory; errors name the pack."""

    def __init__(self, pack: str, directory: Directory) -> None:
        self._pack = pack
        self._directory = directory

    def __iter__(self) -> Iterator[Extent]:
        with naming(self._pack):
            yield from self._directory
