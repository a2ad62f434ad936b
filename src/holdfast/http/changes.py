"""GET {bucket}/streams/changes: what happens in a bucket, in the order of the log.

The cursor is a position in the log, and a page never holds part of a position. Changes that have
left the journal are 410; a scan then tells what there is.

Live readers wait by bucket. A batch wakes those of the buckets it touched, some in each round of
the event loop. Readers at the same position get the same bytes, so the last encoded event is kept.
A reader whose connection is paused is skipped, and catches up later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.engine.journal import ENDINGS, PAGE_ENTRIES_MAX, StreamChange
from holdfast.errors import CursorGoneError, HoldfastError, InvalidRequestError
from holdfast.format.records import Kind
from holdfast.http.buckets import find_bucket
from holdfast.http.exchange import parse_query
from holdfast.http.responses import encode_json, respond_error, respond_json
from holdfast.protocol.headers import is_decimal
from holdfast.protocol.sse import HEARTBEAT
from holdfast.storage.catalog import NAME_OF

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.clock import Timer
    from holdfast.engine.commit import Batch
    from holdfast.engine.journal import JournalBatch
    from holdfast.engine.shard import Shard
    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

# Readers woken in one round of the event loop.
_ROUND_READERS: Final = 32


class ChangesRequest(NamedTuple):
    """What a reader follows, and from where."""

    bucket: str
    # The prefix of stream names, which includes the bucket.
    prefix: str
    after: int


class ChangeEntry(msgspec.Struct, omit_defaults=True):
    """What happened to one stream: it gained bytes, was created, or is gone."""

    stream_id: str
    offset: int
    length: int
    created: bool = False
    deleted: bool = False


class ChangesPage(NamedTuple):
    """Changes up to a position."""

    through: int
    entries: list[ChangeEntry]

    def document(self, last: int) -> dict[str, object]:
        """The page as JSON; `last` is the journal's last position."""
        return {
            "changes": self.entries,
            "next_cursor": f"{self.through:020d}",
            "up_to_date": self.through == last,
        }

    def event(self, last: int) -> bytes:
        """The page as a Server-Sent Event."""
        data = encode_json(self.document(last))
        return b"event: changes\nid: %020d\ndata:%b\n\n" % (self.through, data)


def changes(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with the changes since a cursor, or follow them live."""
    query = parse_query(request.query)
    live = query.get("live")
    bucket_id = name[:-1]
    find_bucket(app, bucket_id)
    cursor = query.get("after")
    if live == "sse" and b"last-event-id" in request.headers:
        # Browsers reconnect with this header.
        cursor = request.headers[b"last-event-id"].decode("latin-1")
    after = parse_cursor(cursor, app.shard.state.journal.last)
    wanted = ChangesRequest(bucket_id, name + query.get("prefix", ""), after)
    if live not in {None, "sse", "long-poll"}:
        raise InvalidRequestError(f"Unknown live mode {live[:40]!r}: use long-poll or sse.")
    check_cursor(app, after)
    _expect_names(app.shard.state, after)
    if live is None:
        _respond_page(app, slot, wanted, next_page(app.shard, wanted))
        return
    slot.route = "sse" if live == "sse" else "long_poll"
    app.check_live_readers()
    reader = SseFeed if live == "sse" else LongPollFeed
    reader(app, slot, wanted, app.begin_live(request, slot)).start()


def _expect_names(state: State, after: int) -> None:
    """Look up the names on the next page of streams that are not in memory."""
    catalog = state.catalog
    if catalog is None or not catalog.may_wait:
        return
    numbers: set[int] = set()
    examined = 0
    for batch in state.journal.after(after):
        numbers.update(each for each in batch.streams if each not in state.by_number)
        examined += len(batch.streams)
        if examined >= PAGE_ENTRIES_MAX:
            break
    catalog.expect((NAME_OF, (number,)) for number in numbers - state.removed_numbers)


def parse_cursor(text: str | None, last: int) -> int:
    """The position of a cursor; `now` is the last one."""
    if text in {None, "-1"}:
        return 0
    if text == "now":
        return last
    assert text is not None
    if not is_decimal(text):
        raise InvalidRequestError(
            f"Malformed cursor {text[:40]!r}: give back a next_cursor, or -1, or now."
        )
    return int(text)


def check_cursor(app: App, after: int) -> None:
    """Raise unless the journal has everything after this position."""
    journal = app.shard.state.journal
    if after > journal.last:
        raise InvalidRequestError("The cursor is past the end of the log.")
    if after < journal.earliest:
        raise CursorGoneError(journal.earliest)


def next_page(shard: Shard, request: ChangesRequest) -> ChangesPage:
    """The changes after a cursor: all of them, or as many whole batches as make a page.

    Entries of other buckets count as well, because going through them takes time, too.
    """
    entries: list[ChangeEntry] = []
    examined = 0
    journal = shard.state.journal
    for batch in journal.after(request.after):
        entries.extend(batch_entries(shard, batch, request.prefix))
        examined += len(batch.streams)
        if examined >= PAGE_ENTRIES_MAX:
            return ChangesPage(batch.position, entries)
    return ChangesPage(journal.last, entries)


def batch_entries(shard: Shard, batch: JournalBatch, prefix: str) -> Iterator[ChangeEntry]:
    """What a batch did to the streams whose names start with a prefix.

    Of streams that exist no longer there is only the entry that says so.
    """
    skip = prefix.index("/") + 1
    state = shard.state
    by_number = state.by_number
    if not batch.rare:
        # Only appends, the common case: no object is made for each of them.
        for number, end, length in zip(batch.streams, batch.ends, batch.lengths, strict=True):
            stream = by_number.get(number)
            name = state.name_of(number) if stream is None else stream.meta.name
            if name is not None and name.startswith(prefix) and not _has_ended(shard, stream):
                yield ChangeEntry(name[skip:], end - length, length)
        return
    for change in batch.changes():
        name = name_of(state, change)
        if change.kind not in ENDINGS and (
            state.name_of(change.stream) is None or _has_ended(shard, by_number.get(change.stream))
        ):
            continue
        if name.startswith(prefix):
            yield ChangeEntry(
                name[skip:],
                change.offset,
                change.length,
                change.kind == Kind.CREATE,
                change.kind in ENDINGS,
            )


def _has_ended(shard: Shard, stream: Stream | None) -> bool:
    return stream is not None and (stream.gone or shard.lifetimes.has_ended(stream))


def name_of(state: State, change: StreamChange) -> str:
    """The name of the changed stream; empty if it is gone, which a later change says."""
    if change.name:
        return change.name
    return state.name_of(change.stream) or ""


def _respond_page(app: App, slot: Slot, request: ChangesRequest, page: ChangesPage) -> None:
    last = app.shard.state.journal.last
    respond_json(slot, {"bucket_id": request.bucket, **page.document(last)})


class _FeedReader(ABC):
    """A reader that waits for changes of a bucket."""

    _timer: Timer

    def __init__(self, app: App, slot: Slot, request: ChangesRequest) -> None:
        self._app = app
        self._slot = slot
        self._request = request
        self.bucket = request.bucket
        self.after = request.after
        self._ended = False

    @abstractmethod
    def wake(self) -> None:
        """Something changed in the bucket."""

    @abstractmethod
    def finish(self) -> None:
        """Time is up, or the server is stopping: say where to continue."""

    def _leave(self) -> None:
        self._ended = True
        self._timer.cancel()
        self._slot.on_gone = self._slot.on_resume = None
        self._app.feed.remove(self)


class _LastEvent(NamedTuple):
    prefix: str
    after: int
    page: ChangesPage
    data: bytes


class ChangeFeed:
    """The waiting readers; the shard reports every batch while there are any."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._readers: dict[str, dict[_FeedReader, None]] = {}
        # The last position that may concern the readers of a bucket.
        self._touched: dict[str, int] = {}
        # The last position reported here: responses to a write come before its report.
        self._heard = 0
        self._count = 0
        self._last = _LastEvent("", -1, ChangesPage(0, []), b"")

    def __len__(self) -> int:
        return self._count

    def add(self, reader: _FeedReader) -> None:
        """Wake this reader from now on."""
        last = self._app.shard.state.journal.last
        if not self._count:
            self._app.shard.watchers.append(self._published)
            self._heard = last
        self._readers.setdefault(reader.bucket, {})[reader] = None
        self._touched.setdefault(reader.bucket, last)
        self._count += 1

    def remove(self, reader: _FeedReader) -> None:
        """Forget a reader; one that is not there is ignored."""
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
        """The server is stopping: all readers are told where to continue."""
        for readers in list(self._readers.values()):
            for reader in list(readers):
                reader.finish()

    def next_event(self, request: ChangesRequest) -> tuple[ChangesPage, bytes]:
        """The next page for a reader, and the event for it; empty if there are no changes."""
        last, journal = self._last, self._app.shard.state.journal
        if (last.prefix, last.after) != request[1:] or last.page.through != journal.last:
            page = next_page(self._app.shard, request)
            data = page.event(journal.last) if page.entries else b""
            self._last = last = _LastEvent(request.prefix, request.after, page, data)
        return last.page, last.data

    def place_of(self, reader: _FeedReader) -> int:
        """A reader's position, moved past everything that does not concern it."""
        self._skip([reader], self._heard)
        return reader.after

    def _published(self, _batch: Batch, entries: JournalBatch) -> None:
        self._heard = entries.position
        try:
            touched = self._buckets_of(entries)
        except HoldfastError:
            # It is unknown which buckets this concerns, so no reader may skip it.
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
        buckets = {name.partition("/")[0] for name in names if name is not None}
        buckets.update(name.partition("/")[0] for _, name in entries.rare.values())
        return buckets

    def _skip(self, readers: list[_FeedReader], position: int) -> None:
        """Move readers that miss nothing up to a position: what was before concerned others."""
        for reader in readers:
            if self._touched[reader.bucket] <= reader.after < position:
                reader.after = position

    def _wake(self, readers: Iterator[_FeedReader]) -> None:
        woken = 0
        for reader in islice(readers, _ROUND_READERS):
            reader.wake()
            woken += 1
        if woken == _ROUND_READERS:
            self._app.clock.call_soon(self._wake, readers)


class LongPollFeed(_FeedReader):
    """A request that waits for the next change."""

    def __init__(self, app: App, slot: Slot, request: ChangesRequest, lasts_s: float) -> None:
        super().__init__(app, slot, request)
        wait_s = min(app.settings.read.long_poll_timeout_s, lasts_s)
        self._timer = app.clock.call_later(wait_s, self.finish)
        slot.on_gone = self._leave
        app.feed.add(self)

    def start(self) -> None:
        """Respond at once if there is a change."""
        self.wake()

    def wake(self) -> None:
        if self._ended:
            return
        state, place = self._app.shard.state, self._app.feed.place_of(self)
        if place < state.journal.earliest:
            # A change that it waits for may be gone.
            self._leave()
            respond_error(self._slot, CursorGoneError(state.journal.earliest))
            return
        page = next_page(self._app.shard, self._request._replace(after=place))
        if page.entries:
            self._leave()
            _respond_page(self._app, self._slot, self._request, page)
            return
        self.after = page.through
        if page.through < state.journal.last:
            self._app.clock.call_soon(self.wake)

    def finish(self) -> None:
        place = self._app.feed.place_of(self)
        self._leave()
        _respond_page(self._app, self._slot, self._request, ChangesPage(place, []))


class SseFeed(_FeedReader):
    """One client's feed as Server-Sent Events: an event for each batch that concerns it."""

    def __init__(self, app: App, slot: Slot, request: ChangesRequest, lasts_s: float) -> None:
        super().__init__(app, slot, request)
        now_s = app.clock.monotonic_s()
        self._until_s = now_s + min(app.settings.read.sse_lifetime_s, lasts_s)
        self._timer = app.clock.call_later(self._beat_s(now_s), self._beat)

    def start(self) -> None:
        """Send a first event in any case, so that the client knows its position."""
        slot, state = self._slot, self._app.shard.state
        slot.begin(200, b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n")
        slot.on_gone, slot.on_resume = self._leave, self.wake
        self._app.feed.add(self)
        page = next_page(self._app.shard, self._request)
        slot.write(page.event(state.journal.last))
        self.after = page.through
        self.wake()

    def wake(self) -> None:
        app, journal = self._app, self._app.shard.state.journal
        if self._ended or self._slot.paused or app.feed.place_of(self) == journal.last:
            return
        if self.after < journal.earliest:
            # It read too slowly, and gets 410 when it reconnects.
            self._end()
            return
        page, data = app.feed.next_event(self._request._replace(after=self.after))
        if data:
            self._slot.write(data)
        self.after = page.through
        if page.through < journal.last:
            app.clock.call_soon(self.wake)

    def finish(self) -> None:
        if not self._slot.paused:
            last, place = self._app.shard.state.journal.last, self._app.feed.place_of(self)
            self._slot.write(ChangesPage(place, []).event(last))
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
