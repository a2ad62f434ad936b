"""Following a bucket's changes live.

Readers wait by bucket, and a batch wakes those of the buckets that it touched, some in each round
of the event loop. Readers that stand at the same place get the same bytes, so the last encoded
event is kept. A reader whose connection is paused is left alone, and catches up later.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from holdfast.errors import CursorGoneError, HoldfastError
from holdfast.http.change_pages import FeedRequest, Page, answer_page, encode, next_page
from holdfast.http.errors import answer_error
from holdfast.protocol.sse import HEARTBEAT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.commit import Batch
    from holdfast.engine.journal import JournalBatch
    from holdfast.http.app import App
    from holdfast.http.exchange import Slot

# How many readers are woken in one round of the event loop.
_ROUND_READERS: Final = 32


class FeedReader(Protocol):
    """Somebody who waits for changes."""

    bucket: str
    after: int

    def wake(self) -> None:
        """Something happened in the bucket."""

    def finish(self) -> None:
        """The server is going: say where to go on."""


class _Event(NamedTuple):
    """What readers of a prefix who stand after a position need next."""

    prefix: str
    after: int
    page: Page
    data: bytes


_NO_EVENT: Final = _Event("", -1, Page(0, []), b"")


class Feed:
    """Who waits for changes; they are told of every batch while there are any."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._readers: dict[str, dict[FeedReader, None]] = {}
        # The last position that may concern the readers of a bucket.
        self._touched: dict[str, int] = {}
        # The last position that is known here: answers come before we are told of their batch.
        self._heard = 0
        self._count = 0
        self._last = _NO_EVENT

    def __len__(self) -> int:
        return self._count

    def add(self, reader: FeedReader) -> None:
        """Somebody waits."""
        last = self._app.shard.state.journal.last
        if not self._count:
            self._app.shard.watchers.append(self._published)
            self._heard = last
        self._readers.setdefault(reader.bucket, {})[reader] = None
        self._touched.setdefault(reader.bucket, last)
        self._count += 1

    def remove(self, reader: FeedReader) -> None:
        """Somebody waits no longer."""
        readers = self._readers.get(reader.bucket, {})
        if reader not in readers:
            return
        del readers[reader]
        if not readers:
            del self._readers[reader.bucket]
            del self._touched[reader.bucket]
        self._count -= 1
        if not self._count:
            self._app.shard.watchers.remove(self._published)

    def finish_all(self) -> None:
        """The server is going: everybody is told where to go on."""
        for readers in list(self._readers.values()):
            for reader in list(readers):
                reader.finish()

    def event(self, asked: FeedRequest) -> _Event:
        """The next page after a reader's place, as an event."""
        last, journal = self._last, self._app.shard.state.journal
        if (last.prefix, last.after) == asked[1:] and last.page.through == journal.last:
            return last
        page = next_page(self._app.shard.state, asked)
        data = b"" if not page.entries else sse_event(page, journal.last)
        self._last = last = _Event(asked.prefix, asked.after, page, data)
        return last

    def _published(self, _batch: Batch, entries: JournalBatch) -> None:
        self._heard = entries.position
        try:
            touched = self._buckets_of(entries)
        except HoldfastError:
            # Nobody knows whom this concerns, so nobody may pass over it.
            self._touched = dict.fromkeys(self._touched, entries.position)
            raise
        for bucket in touched & self._readers.keys():
            readers = list(self._readers[bucket])
            self._skip(readers, entries.position - 1)
            self._touched[bucket] = entries.position
            self._wake(iter(readers))

    def _buckets_of(self, entries: JournalBatch) -> set[str]:
        state = self._app.shard.state
        names = (state.name_of(number) for number in set(entries.streams))
        found = {name.partition("/")[0] for name in names if name is not None}
        found.update(name.partition("/")[0] for _, name in entries.rare.values())
        return found

    def _skip(self, readers: list[FeedReader], position: int) -> None:
        """Have those who miss nothing go on from here: what was before concerned others."""
        for reader in readers:
            if self._touched[reader.bucket] <= reader.after < position:
                reader.after = position

    def place_of(self, reader: FeedReader) -> int:
        """Where a reader stands: behind all that does not concern it."""
        self._skip([reader], self._heard)
        return reader.after

    def _wake(self, readers: Iterator[FeedReader]) -> None:
        woken = 0
        for reader in islice(readers, _ROUND_READERS):
            reader.wake()
            woken += 1
        if woken == _ROUND_READERS:
            self._app.clock.call_soon(self._wake, readers)


def sse_event(page: Page, last: int) -> bytes:
    """A page as a Server-Sent Event."""
    event = {
        "changes": page.entries,
        "next_cursor": f"{page.through:020d}",
        "up_to_date": page.through == last,
    }
    return b"event: changes\nid: %020d\ndata:%b\n\n" % (page.through, encode(event))


class LongPollFeed:
    """One request that waits for the next change."""

    def __init__(self, app: App, slot: Slot, asked: FeedRequest, lasts_s: float) -> None:
        self._app = app
        self._slot = slot
        self._asked = asked
        self.bucket = asked.bucket
        self.after = asked.after
        self._ended = False
        wait_s = min(app.settings.read.long_poll_timeout_s, lasts_s)
        self._timer = app.clock.call_later(wait_s, self.finish)
        slot.on_gone = self._leave
        app.feed.add(self)

    def start(self) -> None:
        """Answer at once if there is anything to say."""
        self.wake()

    def wake(self) -> None:
        """Something was published: answer if it is for this reader."""
        if self._ended:
            return
        state, place = self._app.shard.state, self._app.feed.place_of(self)
        if place < state.journal.earliest:
            # Something that it waits for may be gone.
            self._leave()
            answer_error(self._slot, CursorGoneError(state.journal.earliest))
            return
        page = next_page(state, self._asked._replace(after=place))
        if page.entries:
            self._leave()
            answer_page(self._app, self._slot, self._asked, page)
            return
        self.after = page.through
        if page.through < state.journal.last:
            self._app.clock.call_soon(self.wake)

    def finish(self) -> None:
        """Time is up: say that there is nothing, and where to go on."""
        place = self._app.feed.place_of(self)
        self._leave()
        answer_page(self._app, self._slot, self._asked, Page(place, []))

    def _leave(self) -> None:
        self._ended = True
        self._timer.cancel()
        self._slot.on_gone = None
        self._app.feed.remove(self)


class SseFeed:
    """One client's feed as Server-Sent Events: an event for each batch that concerns it."""

    def __init__(self, app: App, slot: Slot, asked: FeedRequest, lasts_s: float) -> None:
        self._app = app
        self._slot = slot
        self._asked = asked
        self.bucket = asked.bucket
        self.after = asked.after
        self._ended = False
        now_s = app.clock.monotonic_s()
        self._until_s = now_s + min(app.settings.read.sse_lifetime_s, lasts_s)
        self._timer = app.clock.call_later(self._beat_s(now_s), self._beat)

    def start(self) -> None:
        """Say where the reader stands, send what there is, and wait for more."""
        slot, state = self._slot, self._app.shard.state
        slot.begin(200, b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n")
        slot.on_gone, slot.on_resume = self._leave, self.wake
        self._app.feed.add(self)
        page = next_page(state, self._asked)
        slot.write(sse_event(page, state.journal.last))
        self.after = page.through
        self.wake()

    def wake(self) -> None:
        """Something was published, or the client reads again."""
        app, journal = self._app, self._app.shard.state.journal
        if self._ended or self._slot.paused or app.feed.place_of(self) == journal.last:
            return
        if self.after < journal.earliest:
            # It read too slowly; when it comes back it is told.
            self._end()
            return
        event = app.feed.event(self._asked._replace(after=self.after))
        if event.data:
            self._slot.write(event.data)
        self.after = event.page.through
        if event.page.through < journal.last:
            app.clock.call_soon(self.wake)

    def finish(self) -> None:
        """Time is up, or the server is going: the last event tells where to go on."""
        if not self._slot.paused:
            last, place = self._app.shard.state.journal.last, self._app.feed.place_of(self)
            self._slot.write(sse_event(Page(place, []), last))
        self._end()

    def _beat_s(self, now_s: float) -> float:
        return max(0.0, min(self._app.settings.read.sse_heartbeat_s, self._until_s - now_s))

    def _beat(self) -> None:
        now_s = self._app.clock.monotonic_s()
        if now_s >= self._until_s:
            self.finish()
            return
        if not self._slot.paused:
            self._slot.write(HEARTBEAT)
        self._timer = self._app.clock.call_later(self._beat_s(now_s), self._beat)

    def _end(self) -> None:
        if not self._ended:
            self._leave()
            self._slot.end()

    def _leave(self) -> None:
        self._ended = True
        self._timer.cancel()
        self._slot.on_gone = self._slot.on_resume = None
        self._app.feed.remove(self)
