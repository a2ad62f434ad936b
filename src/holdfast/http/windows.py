"""Windows: the parts of a stream that SSE readers catch up with, encoded once for all of them.

A window ends with the last whole message before a multiple of 64 KiB, wherever it started. So
readers that started in different places soon ask for the same windows, and readers that come
together or soon after one another share them, whether the bytes are in memory or in packs. Windows
that were used last are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.http.turns import PIECE_BYTES
from holdfast.protocol.content import is_text
from holdfast.protocol.sse import changes_line_ends, data_event, listed_lengths
from holdfast.storage.pending import Pending, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.reading import ShardReader
    from holdfast.engine.stream import Stream

KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
# A line break becomes six bytes, so a window of nothing else would be six times as long.
EVENT_BYTES_MAX: Final = 192 * 1024
_LINE_BYTES: Final = 5
_ENTRY_BYTES: Final = 500


class WindowKey(NamedTuple):
    """Which part of which stream; `lengths` if the lengths of messages are listed as well."""

    stream: int
    start: int
    bytes_max: int
    lengths: bool


class Window:
    """Stored bytes from `start` to `end`, and the event that carries them."""

    __slots__ = ("_ends", "_event", "_listed", "_media", "_stored", "end", "start")

    def __init__(
        self, start: int, end: int, stored: bytes, media: str, ends: Sequence[int] | None
    ) -> None:
        self.start = start
        self.end = end
        self._stored = stored
        self._media = media
        self._ends = ends
        self._event = b""
        self._listed = b""

    @property
    def size_bytes(self) -> int:
        """Roughly the memory that it takes, once it is encoded."""
        lines = _line_count(self._stored) if is_text(self._media) else len(self._stored) // 15
        return len(self._stored) + _LINE_BYTES * lines + 8 * len(self._ends or ()) + _ENTRY_BYTES

    def encode(self) -> tuple[bytes, bytes]:
        """The data event, and what `with_listed` adds to the control event after it."""
        if not self._event:
            self._event = data_event(self._stored, self._media)
            if self._ends is not None:
                changed = changes_line_ends(self._stored, self._media)
                self._listed = listed_lengths(self.start, self._ends, line_ends_changed=changed)
            self._stored, self._ends = b"", None
        return self._event, self._listed


class Windows:
    """The windows of all streams."""

    def __init__(self, reader: ShardReader, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._reader = reader
        self._bytes_max = bytes_max
        self._kept_bytes = 0
        self._kept: OrderedDict[WindowKey, tuple[Window, int]] = OrderedDict()
        self._reading: dict[WindowKey, Pending[Window]] = {}

    def get(self, stream: Stream, start: int, bytes_max: int, *, lengths: bool) -> Pending[Window]:
        """The next window for a reader, which reads it only if nobody else has."""
        key = WindowKey(stream.number, start, bytes_max, lengths)
        pending = self._reading.get(key)
        if pending is not None:
            return pending
        pending = Pending()
        kept = self._kept.get(key)
        if kept is not None and start >= stream.earliest:
            self._kept.move_to_end(key)
            pending.set(kept[0])
            return pending
        self._reading[key] = pending
        run(self._read(stream, key), partial(self._done, key, pending))
        return pending

    async def _read(self, stream: Stream, key: WindowKey) -> Window:
        reader, start = self._reader, key.start
        end, stored = await reader.read(stream, start, key.bytes_max, with_ends=key.lengths)
        if is_text(stream.media):
            size_bytes = len(stored) + _LINE_BYTES * _line_count(stored)
            if size_bytes > EVENT_BYTES_MAX:
                limit = len(stored) * EVENT_BYTES_MAX // size_bytes
                end, stored = await reader.read(stream, start, limit)
        ends = await reader.message_ends(stream, start, end) if key.lengths else None
        return Window(start, end, stored, stream.media, ends)

    def _done(
        self, key: WindowKey, pending: Pending[Window], result: Window | HoldfastError
    ) -> None:
        del self._reading[key]
        if not isinstance(result, HoldfastError):
            self._keep(key, result)
        pending.set(result)

    def _keep(self, key: WindowKey, window: Window) -> None:
        size_bytes = window.size_bytes
        self._kept[key] = window, size_bytes
        self._kept_bytes += size_bytes
        while self._kept_bytes > self._bytes_max:
            _, (_, size_bytes) = self._kept.popitem(last=False)
            self._kept_bytes -= size_bytes


def window_bytes(start: int, bytes_max: int) -> int:
    """How far the window from this offset may reach, for a reader with a limit."""
    if bytes_max < 2 * PIECE_BYTES:
        return min(bytes_max, PIECE_BYTES)
    left = PIECE_BYTES - start % PIECE_BYTES
    return left if left > PIECE_BYTES // 2 else left + PIECE_BYTES


def _line_count(stored: bytes) -> int:
    return stored.count(b"\n") + stored.count(b"\r")
