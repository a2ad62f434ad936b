"""GET {bucket}/streams/changes: a whole bucket as one feed, in the order of the log.

The cursor is a position in the log, of which a page never gives a part. What is asked for may have
left the log: then the answer is 410, and a scan tells what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.engine.journal import PAGE_ENTRIES_MAX, Change
from holdfast.errors import CursorGoneError, InvalidRequestError
from holdfast.format.records import Kind
from holdfast.http.buckets import find_bucket
from holdfast.http.health import JSON_FIELDS
from holdfast.http.query import parse_query
from holdfast.protocol.sse import HEARTBEAT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.commit import Batch
    from holdfast.engine.journal import JournalBatch
    from holdfast.engine.state import State
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

_encode = msgspec.json.Encoder().encode
CURSOR_DIGITS: Final = 20


class ChangeEntry(msgspec.Struct, omit_defaults=True):
    """What happened to one stream: it gained bytes, was created, or is gone."""

    stream_id: str
    offset: int
    length: int
    created: bool = False
    deleted: bool = False


class FeedRequest(NamedTuple):
    """What a reader follows, and from where."""

    bucket: str
    # The beginning of the names that count, the bucket's included.
    prefix: str
    after: int


class Page(NamedTuple):
    """Changes up to a position."""

    through: int
    entries: list[ChangeEntry]


def changes(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with what happened since a cursor, or follow it live."""
    query = parse_query(request.query)
    live = query.get("live")
    bucket_id = name[:-1]
    find_bucket(app, bucket_id)
    journal = app.shard.state.journal
    after = parse_cursor(query.get("after"), journal.last)
    asked = FeedRequest(bucket_id, name + query.get("prefix", ""), after)
    if live not in {None, "sse", "long-poll"}:
        raise InvalidRequestError(f"Unknown live mode {live[:40]!r}: use long-poll or sse.")
    check_cursor(app, after)
    if live == "sse":
        slot.route = "sse"
        app.check_live_readers()
        FeedReader(app, slot, request, asked).start()
        return
    page = next_page(app.shard.state, asked)
    if live == "long-poll" and not page.entries:
        slot.route = "long_poll"
        app.check_live_readers()
        LongPollFeed(app, slot, request, asked)
    else:
        _answer(app, slot, asked, page)


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


def next_page(state: State, asked: FeedRequest) -> Page:
    """The changes after a cursor: all of them, or as many whole batches as make a page."""
    entries: list[ChangeEntry] = []
    through = asked.after
    for batch in state.journal.after(asked.after):
        entries.extend(batch_entries(state, batch, asked.prefix))
        through = batch.position
        if len(entries) >= PAGE_ENTRIES_MAX:
            return Page(through, entries)
    return Page(state.journal.last, entries)


def batch_entries(state: State, batch: JournalBatch, prefix: str) -> Iterator[ChangeEntry]:
    """What a batch did to the streams whose names start so."""
    skip = prefix.index("/") + 1
    by_number = state.by_number
    if not batch.rare:
        # Nothing but appends: the common case, without an object for each of them.
        for number, end, length in zip(batch.streams, batch.ends, batch.lengths, strict=True):
            stream = by_number.get(number) or state.find_number(number)
            if stream is not None and stream.meta.name.startswith(prefix):
                yield ChangeEntry(stream.meta.name[skip:], end - length, length)
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


def name_of(state: State, change: Change) -> str:
    """The name of the stream that changed; empty if it is gone, which a later change tells."""
    if change.name:
        return change.name
    stream = state.find_number(change.stream)
    return "" if stream is None else stream.meta.name


def _answer(app: App, slot: Slot, asked: FeedRequest, page: Page) -> None:
    found = {
        "bucket_id": asked.bucket,
        "changes": page.entries,
        "next_cursor": f"{page.through:020d}",
        "up_to_date": page.through == app.shard.state.journal.last,
    }
    slot.answer(200, JSON_FIELDS, _encode(found))


class Feed:
    """Who waits for changes; they are told of every batch while there are any."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._readers: dict[FeedReader | LongPollFeed, None] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, reader: FeedReader | LongPollFeed) -> None:
        """Somebody waits."""
        if not self._readers:
            self._app.shard.watchers.append(self._published)
        self._readers[reader] = None

    def remove(self, reader: FeedReader | LongPollFeed) -> None:
        """Somebody waits no longer."""
        if self._readers.pop(reader, _MISSING) is None and not self._readers:
            self._app.shard.watchers.remove(self._published)

    def finish_all(self) -> None:
        """The server is going: everybody is told where to go on."""
        for reader in list(self._readers):
            reader.finish()

    def _published(self, _batch: Batch, _entries: JournalBatch) -> None:
        for reader in list(self._readers):
            reader.wake()


_MISSING: Final = object()


class LongPollFeed:
    """One request that waits for the next change."""

    def __init__(self, app: App, slot: Slot, request: Request, asked: FeedRequest) -> None:
        self._app = app
        self._slot = slot
        self._asked = asked
        wait_s = app.lifetime_s(request, app.settings.read.long_poll_timeout_s)
        self._timer = app.clock.call_later(wait_s, self.finish)
        slot.on_gone = self._leave
        app.feed.add(self)

    def wake(self) -> None:
        """A batch was published: answer if it concerns this bucket."""
        page = next_page(self._app.shard.state, self._asked)
        if page.entries:
            self._leave()
            _answer(self._app, self._slot, self._asked, page)
        else:
            self._asked = self._asked._replace(after=page.through)

    def finish(self) -> None:
        """Time is up: say that there is nothing, and where to go on."""
        self._leave()
        _answer(self._app, self._slot, self._asked, Page(self._asked.after, []))

    def _leave(self) -> None:
        self._timer.cancel()
        self._slot.on_gone = None
        self._app.feed.remove(self)


class FeedReader:
    """One client's feed as Server-Sent Events: an event for each batch that concerns it."""

    def __init__(self, app: App, slot: Slot, request: Request, asked: FeedRequest) -> None:
        self._app = app
        self._slot = slot
        self._asked = asked
        self._ended = False
        now_s = app.clock.monotonic_s()
        self._until_s = now_s + app.lifetime_s(request, app.settings.read.sse_lifetime_s)
        self._timer = app.clock.call_later(self._beat_s(now_s), self._beat)

    def start(self) -> None:
        """Send what there is, and wait for more."""
        slot = self._slot
        slot.begin(200, b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n")
        slot.on_gone, slot.on_resume = self._leave, self.wake
        self._app.feed.add(self)
        self._send(even_if_empty=True)

    def wake(self) -> None:
        """A batch was published, or the client reads again."""
        self._send()

    def _send(self, *, even_if_empty: bool = False) -> None:
        app = self._app
        journal = app.shard.state.journal
        if self._ended or self._slot.paused:
            return
        if self._asked.after < journal.earliest:
            # It read too slowly; when it comes back it is told.
            self._end()
            return
        page = next_page(app.shard.state, self._asked)
        if page.entries or even_if_empty:
            self._write(page)
        self._asked = self._asked._replace(after=page.through)
        if page.through < journal.last:
            app.clock.call_soon(self._send)

    def _write(self, page: Page) -> None:
        up_to_date = page.through == self._app.shard.state.journal.last
        event = {
            "changes": page.entries,
            "nextCursor": f"{page.through:020d}",
            "upToDate": up_to_date,
        }
        cursor = b"%020d" % page.through
        data = b"event: changes\nid: %b\ndata:%b\n\n" % (cursor, _encode(event))
        self._slot.write(data)

    def finish(self) -> None:
        """The server is going: the last event tells where to go on."""
        if not self._slot.paused:
            self._write(Page(self._asked.after, []))
        self._end()

    def _beat_s(self, now_s: float) -> float:
        return max(0.0, min(self._app.settings.read.sse_heartbeat_s, self._until_s - now_s))

    def _beat(self) -> None:
        now_s = self._app.clock.monotonic_s()
        if now_s >= self._until_s:
            self._end()
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
