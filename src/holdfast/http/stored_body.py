"""The body of a catch-up read that is longer than a piece: sent as fast as the client reads it.

Its length is known from its offsets, so its bytes need not be. They are read piece by piece when
the connection takes them, so that a client that does not read holds no more than a piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError
from holdfast.http.responses import AT_ONCE_BYTES_MAX, respond_error
from holdfast.protocol.content import JSON, SEPARATOR
from holdfast.storage.pending import run

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Slot
    from holdfast.storage.cold import ColdBytes

# Nothing is added to these bytes, so a piece may be as long as a body that is sent at once.
BODY_PIECE_BYTES: Final = AT_ONCE_BYTES_MAX
# The bytes of one turn, if the connection takes them: as many as most bodies have.
_TURN_BYTES: Final = 1024 * 1024


class StoredBody:
    """Stored bytes from `start` to `end`, where a read ends."""

    __slots__ = (
        "_app",
        "_at",
        "_end",
        "_headers",
        "_is_due",
        "_is_gone",
        "_slot",
        "_start",
        "_stream",
        "_turn_at",
    )

    def __init__(self, app: App, slot: Slot, stream: Stream, start: int, end: int) -> None:
        self._app = app
        self._slot = slot
        self._stream = stream
        self._start = self._at = self._turn_at = start
        self._end = end
        self._headers = b""
        # Whether a turn is due, or the piece for it is being read: never two of them at a time.
        self._is_due = True
        self._is_gone = False

    def respond(self, headers: bytes) -> None:
        """Send the headers and what the connection takes; the rest follows in turns."""
        self._headers = headers
        self._slot.on_gone = self._leave
        self._slot.on_resume = self._wait
        self._turn()

    def _wait(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._app.turns.add(self._turn)

    def _turn(self) -> None:
        self._turn_at = self._at
        self._read()

    def _read(self) -> None:
        """Send one piece, unless the client has to read first."""
        if self._is_gone or self._slot.paused:
            self._is_due = False
            return
        size = min(BODY_PIECE_BYTES, self._end - self._at)
        run(self._app.shard.reader.read(self._stream, self._at, size), self._found)

    def _found(self, result: ColdBytes | HoldfastError) -> None:
        self._is_due = False
        if self._is_gone:
            return
        has_begun = self._at > self._start
        if isinstance(result, HoldfastError):
            self._leave()
            if has_begun:
                # Deleted or trimmed meanwhile: the client can tell that the body is cut.
                self._slot.abort()
            else:
                respond_error(self._slot, result)
            return
        is_json = self._stream.media == JSON
        if not has_begun:
            self._slot.begin(200, self._headers, self._end - self._start + is_json)
        # A read ends after a whole character, and may go too far by some bytes of it.
        piece = result.data[: self._end - self._at]
        self._at += len(piece)
        has_ended = self._at == self._end
        if is_json:
            first, last = b"" if has_begun else b"[", b"]" if has_ended else b""
            piece = piece[:-1] if has_ended else piece
            piece = b"%b%b%b" % (first, piece.replace(SEPARATOR, b","), last)
        self._slot.write(piece)
        if has_ended:
            self._leave()
            self._slot.end()
        elif self._at - self._turn_at < _TURN_BYTES:
            self._is_due = True
            self._read()
        else:
            self._wait()

    def _leave(self) -> None:
        self._is_gone = True
        self._slot.on_gone = self._slot.on_resume = None
