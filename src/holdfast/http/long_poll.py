"""GET {stream}?live=long-poll: wait for the next bytes, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.http.bytes_answer import start_field
from holdfast.http.errors import answer_error
from holdfast.http.message_lengths import answer_read
from holdfast.protocol.headers import CURSOR_JITTER_S_MAX, next_cursor, parse_cursor
from holdfast.protocol.names import not_found

if TYPE_CHECKING:
    from holdfast.http.app import App
    from holdfast.http.bytes_answer import ReadRequest
    from holdfast.http.exchange import Slot


def long_poll(app: App, slot: Slot, asked: ReadRequest) -> None:
    """Answer at once if there is anything to say, otherwise wait."""
    app.shard.lifetimes.renew(asked.stream)
    if asked.stream.tail > asked.start or asked.stream.closed:
        _answer(app, slot, asked)
    else:
        app.check_live_readers()
        _LongPoll(app, slot, asked)


class _LongPoll:
    """One waiting request."""

    __slots__ = ("_app", "_asked", "_slot", "_timer")

    def __init__(self, app: App, slot: Slot, asked: ReadRequest) -> None:
        self._app = app
        self._slot = slot
        self._asked = asked
        timeout_s = min(app.settings.read.long_poll_timeout_s, asked.lasts_s)
        self._timer = app.clock.call_later(timeout_s, self.finish)
        slot.on_gone = self._leave
        app.shard.live.add(asked.stream, self)

    def wake(self) -> None:
        """The stream changed: say how."""
        stream = self._asked.stream
        if stream.gone:
            self._leave()
            answer_error(self._slot, not_found(stream.meta.name))
            return
        self._app.shard.lifetimes.renew(stream)
        self.finish()

    def finish(self) -> None:
        """Answer with what there is by now, at the latest when time or the server ends."""
        self._leave()
        _answer(self._app, self._slot, self._asked)

    def _leave(self) -> None:
        self._timer.cancel()
        self._slot.on_gone = None
        self._app.shard.live.remove(self._asked.stream, self)


def _answer(app: App, slot: Slot, asked: ReadRequest) -> None:
    """Answer with bytes if there are any, otherwise with 204."""
    stream, clock = asked.stream, app.clock
    at_end = stream.closed and stream.tail == asked.start
    cursor = b""
    if not at_end:
        jitter_s = clock.random_int(1, CURSOR_JITTER_S_MAX)
        number = next_cursor(parse_cursor(asked.cursor), clock.now_ms(), jitter_s)
        cursor = b"Stream-Cursor: %d\r\n" % number
    if stream.tail > asked.start:
        answer_read(app, slot, asked, cursor)
        return
    slot.answer(
        204,
        b"Stream-Next-Offset: %020d\r\nStream-Up-To-Date: true\r\nCache-Control: no-store\r\n%b%b"
        % (stream.tail, b"Stream-Closed: true\r\n" if at_end else cursor, start_field(asked)),
    )
