"""Reading parts of packs from the store, each verified before it is used."""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import PackCorruptError, UnknownFormatError
from holdfast.format.pack_builder import Messages, PackBuilder
from holdfast.format.packs import (
    FOOTER_BYTES,
    HEADER_BYTES,
    Delta,
    Directory,
    Footer,
    NewPack,
    PackFormatError,
    UnknownPackVersionError,
    block_sums,
    checksum,
    decode_delta,
    decode_directory,
    decode_footer,
    describe_pack,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.format.packs import Extent
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
        return self._store.read(self.name, at, end - at)

    def directory(self) -> Directory:
        footer = self.footer
        with naming(self.name):
            return decode_directory(self._part(footer.directory_at, footer.delta_at), footer)

    def delta(self) -> Delta:
        footer = self.footer
        with naming(self.name):
            return decode_delta(self._part(footer.delta_at, footer.footer_at), footer)

    def describe(self) -> NewPack:
        """The pack as the catalog takes it."""
        info = describe_pack(self.name, self.footer, self.delta().meta)
        return NewPack(info, list(self.directory()))

    def index(self) -> Messages:
        footer = self.footer
        data = self._part(footer.lengths_at, footer.directory_at)
        with naming(self.name):
            if checksum(data, footer.salt) != footer.index_sum:
                raise PackFormatError("its message index is damaged")
        base, count = footer.lengths_at, footer.messages
        stamps_at, positions_at = footer.timestamps_at - base, footer.positions_at - base
        return Messages(
            array("I", data[: 4 * count]),
            array("q", data[stamps_at:positions_at]),
            array("Q", data[positions_at:]),
        )

    def verify(self) -> Iterator[int]:
        """Read and check everything; yields the number of bytes read since the last time."""
        self.delta()
        self.check_frame()
        yield self.footer.size_bytes - self.footer.data_end + HEADER_BYTES
        for extent, data in self.contents():
            if isinstance(data, PackCorruptError):
                raise data
            yield extent.length

    def check_frame(self) -> None:
        """Check the few bytes that no checksum covers: the header and the padding."""
        footer = self.footer
        with naming(self.name):
            if self._part(0, HEADER_BYTES) != PackBuilder.header():
                raise PackFormatError("its header is damaged")
            padding = footer.lengths_at > footer.data_end
            if padding and any(self._part(footer.data_end, footer.lengths_at)):
                raise PackFormatError("there is something between its data and its index")

    def contents(self) -> Iterator[tuple[Extent, bytes | PackCorruptError]]:
        """Every extent with its data, or with the error if it is damaged."""
        index = self.index()
        reader = SequentialReader(self._store, self.name, self.footer.data_end)
        for extent in self.directory():
            data = reader.read(extent.data_at, extent.length)
            try:
                verified(self.name, self.footer.salt, extent, data)
                with naming(self.name):
                    self._check_messages(extent, index)
            except PackCorruptError as error:
                yield extent, error
            else:
                yield extent, data

    def _check_messages(self, extent: Extent, index: Messages) -> None:
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
        raise PackCorruptError(
            f"The pack {pack} is damaged: the extent of stream {extent.stream:x} at offset "
            f"{extent.start} does not match its checksum."
        )
    return data


class SequentialReader:
    """Reads a pack's data in ascending order with few requests."""

    def __init__(self, store: ObjectStore, name: str, end: int) -> None:
        self._store = store
        self._name = name
        self._end = end
        self._at = 0
        self._window = b""

    def read(self, at: int, size: int) -> bytes:
        """Read these bytes; `at` never decreases."""
        inside = at - self._at
        if inside < 0 or inside + size > len(self._window):
            self._at, inside = at, 0
            self._window = self._store.read(
                self._name, at, min(max(size, _READ_BYTES), self._end - at)
            )
        return self._window[inside : inside + size]
