"""GET {bucket}/streams/changes: a whole bucket as one feed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.errors import InvalidRequestError
from holdfast.http.buckets import find_bucket
from holdfast.http.change_feed import LongPollFeed, SseFeed
from holdfast.http.change_pages import (
    FeedRequest,
    answer_page,
    check_cursor,
    next_page,
    parse_cursor,
)
from holdfast.http.query import parse_query

if TYPE_CHECKING:
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot


def changes(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with what happened since a cursor, or follow it live."""
    query = parse_query(request.query)
    live = query.get("live")
    bucket_id = name[:-1]
    find_bucket(app, bucket_id)
    cursor = query.get("after")
    if live == "sse" and b"last-event-id" in request.fields:
        # A browser that reconnects by itself says so where it stands.
        cursor = request.fields[b"last-event-id"].decode("latin-1")
    after = parse_cursor(cursor, app.shard.state.journal.last)
    asked = FeedRequest(bucket_id, name + query.get("prefix", ""), after)
    if live not in {None, "sse", "long-poll"}:
        raise InvalidRequestError(f"Unknown live mode {live[:40]!r}: use long-poll or sse.")
    check_cursor(app, after)
    if live is None:
        answer_page(app, slot, asked, next_page(app.shard.state, asked))
        return
    slot.route = "sse" if live == "sse" else "long_poll"
    app.check_live_readers()
    reader = SseFeed if live == "sse" else LongPollFeed
    reader(app, slot, asked, app.lifetime_s(request, math.inf)).start()
