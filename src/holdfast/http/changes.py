"""GET {bucket}/streams/changes: a whole bucket as one feed."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from holdfast.engine.journal import PAGE_ENTRIES_MAX, StreamChange
from holdfast.errors import CursorGoneError, HoldfastError, InvalidRequestError
from holdfast.format.records import Kind
from holdfast.http.buckets import find_bucket
from holdfast.http.exchange import parse_query
from holdfast.http.responses import JSON_HEADERS, respond_error
from holdfast.protocol.sse import HEARTBEAT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.commit import Batch
    from holdfast.engine.journal import JournalBatch
    from holdfast.engine.state import State
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

encode = msgspec.json.Encoder().encode
CURSOR_DIGITS: Final = 20
# How many readers are woken in one round of the event loop.
_ROUND_READERS: Final = 32


def changes(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with what happened since a cursor, or follow it live."""
    query = parse_query(request.query)
    live = query.get("live")
    bucket_id = name[:-1]
    find_bucket(app, bucket_id)
    cursor = query.get("after")
    if live == "sse" and b"last-event-id" in request.headers:
        # A browser that reconnects by itself says so where it stands.
        cursor = request.headers[b"last-event-id"].decode("latin-1")
    after = parse_cursor(cursor, app.shard.state.journal.last)
    asked = ChangesRequest(bucket_id, name + query.get("prefix", ""), after)
    if live not in {None, "sse", "long-poll"}:
        raise InvalidRequestError(f"Unknown live mode {live[:40]!r}: use long-poll or sse.")
    check_cursor(app, after)
    if live is None:
        respond_page(app, slot, asked, next_page(app.shard.state, asked))
        return
    slot.route = "sse" if live == "sse" else "long_poll"
    app.check_live_readers()
    reader = SseFeed if live == "sse" else LongPollFeed
    reader(app, slot, asked, app.lifetime_s(request, math.inf)).start()


class ChangeEntry(msgspec.Struct, omit_defaults=True):
    """What happened to one stream: it gained bytes, was created, or is gone."""

    stream_id: str
    offset: int
    length: int
    created: bool = False
    deleted: bool = False


class ChangesRequest(NamedTuple):
    """What a reader follows, and from where."""

    bucket: str
    # The beginning of the names that count, the bucket's included.
    prefix: str
    after: int


class ChangesPage(NamedTuple):
    """Changes up to a position."""

    through: int
    entries: list[ChangeEntry]


def parse_cursor(text: str | None, last: int) -> int:
    """The position that a cursor stands for; `now` is the present one."""
    if text in {None, "-1"}:
        return 0
    if text == "now":
        return last
    assert text is not None
    if len(text) != CURSOR_DIGITS or not (text.isascii() and text.isdigit()):
        raise InvalidRequestError(
            f"Malformed cursor {text[:40]!r}: give back a next_cursor, or -1, or now."
        )
    return int(text)


def check_cursor(app: App, after: int) -> None:
    """Raise unless everything after this position is here."""
    journal = app.shard.state.journal
    if after > journal.last:
        raise InvalidRequestError("The cursor is past the end of the log.")
    if after < journal.earliest:
        raise CursorGoneError(journal.earliest)


def next_page(state: State, asked: ChangesRequest) -> ChangesPage:
    """The changes after a cursor: all of them, or as many whole batches as make a page.

    What other buckets did counts as well: looking at it takes time, too.
    """
    entries: list[ChangeEntry] = []
    examined = 0
    for batch in state.journal.after(asked.after):
        entries.extend(batch_entries(state, batch, asked.prefix))
        examined += len(batch.streams)
        if examined >= PAGE_ENTRIES_MAX:
            return ChangesPage(batch.position, entries)
    return ChangesPage(state.journal.last, entries)


def batch_entries(state: State, batch: JournalBatch, prefix: str) -> Iterator[ChangeEntry]:
    """What a batch did to the streams whose names start so."""
    skip = prefix.index("/") + 1
    by_number = state.by_number
    if not batch.rare:
        # Nothing but appends: the common case, without an object for each of them.
        for number, end, length in zip(batch.streams, batch.ends, batch.lengths, strict=True):
            stream = by_number.get(number)
            name = state.name_of(number) if stream is None else stream.meta.name
            if name is not None and name.startswith(prefix):
                yield ChangeEntry(name[skip:], end - length, length)
        return
    for change in batch.changes():
        name = name_of(state, change)
        if name.startswith(prefix):
            yield ChangeEntry(
                name[skip:],
                change.offset,
                change.length,
                change.kind == Kind.CREATE,
                change.kind in {Kind.DELETE, Kind.EXPIRE},
            )


def name_of(state: State, change: StreamChange) -> str:
    """The name of the stream that changed; empty if it is gone, which a later change tells."""
    if change.name:
        return change.name
    return state.name_of(change.stream) or ""


def respond_page(app: App, slot: Slot, asked: ChangesRequest, page: ChangesPage) -> None:
    """Answer with a page, and where to go on."""
    found = {
        "bucket_id": asked.bucket,
        "changes": page.entries,
        "next_cursor": f"{page.through:020d}",
        "up_to_date": page.through == app.shard.state.journal.last,
    }
    slot.respond(200, JSON_HEADERS, encode(found))


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
    page: ChangesPage
    data: bytes


_NO_EVENT: Final = _Event("", -1, ChangesPage(0, []), b"")


class ChangeFeed:
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

    def event(self, asked: ChangesRequest) -> _Event:
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


def sse_event(page: ChangesPage, last: int) -> bytes:
    """A page as a Server-Sent Event."""
    event = {
        "changes": page.entries,
        "next_cursor": f"{page.through:020d}",
        "up_to_date": page.through == last,
    }
    return b"event: changes\nid: %020d\ndata:%b\n\n" % (page.through, encode(event))


class LongPollFeed:
    """One request that waits for the next change."""

    def __init__(self, app: App, slot: Slot, asked: ChangesRequest, lasts_s: float) -> None:
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
            respond_error(self._slot, CursorGoneError(state.journal.earliest))
            return
        page = next_page(state, self._asked._replace(after=place))
        if page.entries:
            self._leave()
            respond_page(self._app, self._slot, self._asked, page)
            return
        self.after = page.through
        if page.through < state.journal.last:
            self._app.clock.call_soon(self.wake)

    def finish(self) -> None:
        """Time is up: say that there is nothing, and where to go on."""
        place = self._app.feed.place_of(self)
        self._leave()
        respond_page(self._app, self._slot, self._asked, ChangesPage(place, []))

    def _leave(self) -> None:
        self._ended = True
        self._timer.cancel()
        self._slot.on_gone = None
        self._app.feed.remove(self)


class SseFeed:
    """One client's feed as Server-Sent Events: an event for each batch that concerns it."""

    def __init__(self, app: App, slot: Slot, asked: ChangesRequest, lasts_s: float) -> None:
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
            self._slot.write(sse_event(ChangesPage(place, []), last))
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
