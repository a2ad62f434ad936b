"""What the routes of a scan have in common: what is asked for, and answers of many lines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import InvalidRequestError, NotFoundError
from holdfast.http.buckets import find_bucket
from holdfast.http.change_pages import parse_cursor
from holdfast.http.query import parse_query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.http.app import App
    from holdfast.http.exchange import Request
    from holdfast.storage.catalog import Catalog

NDJSON_FIELDS: Final = b"Content-Type: application/x-ndjson\r\nCache-Control: no-store\r\n"
_LINES: Final = 1000
# Entries of the journal that are looked at before others have their turn.
TURN_ENTRIES: Final = 1000
_DIGITS_MAX: Final = 18


class ScanRequest(NamedTuple):
    """What is to be scanned: streams of a bucket, and the positions (after, until]."""

    bucket: str
    # The beginning of the names that count, the bucket's included.
    prefix: str
    after: int
    until: int
    # The first and the last name, both included.
    first: str = ""
    last: str | None = None

    @property
    def skip(self) -> int:
        """How much of a name is not the stream's id."""
        return len(self.bucket) + 1

    def covers(self, name: str) -> bool:
        """Whether a stream of this name is asked for."""
        return (
            name.startswith(self.prefix)
            and name >= self.first
            and (self.last is None or name <= self.last)
        )


def scan_request(app: App, request: Request, name: str) -> ScanRequest:
    """What a request asks for; `name` is the bucket and a slash."""
    query = parse_query(request.query)
    find_bucket(app, name[:-1])
    end = app.shard.state.journal.last
    after = parse_cursor(query.get("after"), end)
    until = parse_cursor(query.get("until", "now"), end)
    if until > end:
        raise InvalidRequestError("The cursor in 'until' is past the end of the log.")
    if after > until:
        raise InvalidRequestError("The cursor in 'after' is behind the one in 'until'.")
    last = query.get("last")
    return ScanRequest(
        name[:-1],
        name + query.get("prefix", ""),
        after,
        until,
        name + query.get("first", ""),
        None if last is None else name + last,
    )


def whole_number(query: dict[str, str], name: str, least: int, most: int) -> int | None:
    """The number in a parameter, or None if it is not given."""
    text = query.get(name)
    if text is None:
        return None
    if (
        text.isascii()
        and text.isdigit()
        and len(text) <= _DIGITS_MAX
        and least <= int(text) <= most
    ):
        return int(text)
    raise InvalidRequestError(
        f"The parameter {name!r} takes a whole number from {least} to {most}."
    )


def catalog_of(app: App) -> Catalog:
    """The catalog, or an error that says that there is none."""
    if app.shard.catalog is None:
        raise NotFoundError("This server keeps everything in memory and has no packs.")
    return app.shard.catalog


def cursor_text(position: int) -> str:
    """The cursor for a position."""
    return f"{position:020d}"


async def lines_in_thread(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The lines in pieces, each made in a thread: the catalog is read meanwhile."""

    def some() -> bytes:
        found = [line for _, line in zip(range(_LINES), lines, strict=False)]
        return b"\n".join([*found, b""]) if found else b""

    while piece := await asyncio.to_thread(some):
        yield piece
