"""Pages of changes: what happened to the streams of a bucket, in the order of the log.

The cursor is a position in the log, of which a page never gives a part. What is asked for may have
left the log: then the answer is 410, and a scan tells what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.engine.journal import PAGE_ENTRIES_MAX, Change
from holdfast.errors import CursorGoneError, InvalidRequestError
from holdfast.format.records import Kind
from holdfast.http.health import JSON_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.journal import JournalBatch
    from holdfast.engine.state import State
    from holdfast.http.app import App
    from holdfast.http.exchange import Slot

encode = msgspec.json.Encoder().encode
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
    """The changes after a cursor: all of them, or as many whole batches as make a page.

    What other buckets did counts as well: looking at it takes time, too.
    """
    entries: list[ChangeEntry] = []
    examined = 0
    for batch in state.journal.after(asked.after):
        entries.extend(batch_entries(state, batch, asked.prefix))
        examined += len(batch.streams)
        if examined >= PAGE_ENTRIES_MAX:
            return Page(batch.position, entries)
    return Page(state.journal.last, entries)


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


def name_of(state: State, change: Change) -> str:
    """The name of the stream that changed; empty if it is gone, which a later change tells."""
    if change.name:
        return change.name
    return state.name_of(change.stream) or ""


def answer_page(app: App, slot: Slot, asked: FeedRequest, page: Page) -> None:
    """Answer with a page, and where to go on."""
    found = {
        "bucket_id": asked.bucket,
        "changes": page.entries,
        "next_cursor": f"{page.through:020d}",
        "up_to_date": page.through == app.shard.state.journal.last,
    }
    slot.answer(200, JSON_FIELDS, encode(found))
