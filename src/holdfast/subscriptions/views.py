"""Subscriptions as JSON: what the API shows of them, what a wake says, what an event says."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec

from holdfast.protocol.headers import START
from holdfast.subscriptions.model import EXPLICIT, Link, Subscription
from holdfast.subscriptions.paths import path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.subscriptions.registry import Entry
    from holdfast.subscriptions.streams import Streams

encode = msgspec.json.Encoder().encode


class Shown(NamedTuple):
    """A stream that a wake has told of: which one it was, and the tail that was told."""

    name: str
    number: int
    tail: int


def offset_text(offset: int) -> str:
    """An offset as it is printed; before the first it is the start."""
    return START if offset < 0 else f"{offset:020d}"


def time_text(at_ms: int | None) -> str | None:
    """A time as JSON has it."""
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def summary(entry: Entry, kid: str) -> dict[str, Any]:
    """A subscription without its streams."""
    state = entry.state
    webhook = None
    failing = state.failures > 0 and state.next_attempt_ms is not None
    if state.webhook_url is not None:
        signing = {"alg": "ed25519", "kid": kid, "jwks_url": f"{_root(state)}/jwks.json"}
        webhook = {"url": state.webhook_url, "signing": signing}
    return {
        "id": state.id,
        "subscription_id": state.id,
        "type": state.type,
        "pattern": state.pattern,
        "webhook": webhook,
        "wake_stream": None if state.wake_stream is None else path_of(state.wake_stream),
        "lease_ttl_ms": state.lease_ttl_ms,
        "created_at": time_text(state.created_ms),
        "status": "failed" if failing else "active",
        "description": state.description,
        "generation": state.generation,
        "links": len(entry.links),
        "pending": len(entry.pending),
        "holder": state.holder,
        "lease_until": time_text(state.lease_ms),
        "next_attempt_at": time_text(state.next_attempt_ms) if failing else None,
    }


def whole(entry: Entry, kid: str, after: str, limit: int) -> dict[str, Any]:
    """A subscription with a page of its streams, in the order of their names."""
    names = list(islice(entry.links.irange(after or None, inclusive=(False, True)), limit + 1))
    shown = summary(entry, kid)
    shown["streams"] = [_link(name, entry.links[name]) for name in names[:limit]]
    shown["next_after"] = path_of(names[limit - 1]) if len(names) > limit else None
    return shown


def snapshot(
    entry: Entry, streams: Streams, limit: int
) -> tuple[list[dict[str, Any]], list[Shown]]:
    """What a wake says of the streams, and what it amounts to; what is pending comes first."""
    told: list[dict[str, Any]] = []
    shown: list[Shown] = []
    for name in islice(_pending_first(entry), limit):
        link = entry.links[name]
        # What is not pending ends where it is acknowledged, and need not be looked up.
        tail = streams.tail(name) if name in entry.pending else max(link.acked, 0)
        told.append(
            {
                **_link(name, link),
                "tail_offset": offset_text(tail),
                "has_pending": link.is_pending(tail),
            }
        )
        shown.append(Shown(name, link.number, tail))
    return told, shown


def wake_body(state: Subscription, streams: list[dict[str, Any]], token: str) -> bytes:
    """What a webhook says."""
    return encode(
        {
            "subscription_id": state.id,
            "wake_id": state.wake_id,
            "generation": state.generation,
            "streams": streams,
            "callback_url": f"{_root(state)}/subscriptions/{quote(state.id, safe='')}/callback",
            "callback_token": token,
        }
    )


def wake_event(entry: Entry, now_ms: int) -> bytes:
    """What is written to the wake stream."""
    state = entry.state
    return encode(
        {
            "type": "wake",
            "subscription_id": state.id,
            "stream": path_of(next(iter(entry.pending))),
            "generation": state.generation,
            "ts": now_ms,
        }
    )


def _link(name: str, link: Link) -> dict[str, Any]:
    return {
        "path": path_of(name),
        "link_type": "explicit" if link.kinds & EXPLICIT else "glob",
        "acked_offset": offset_text(link.acked),
    }


def _pending_first(entry: Entry) -> Iterator[str]:
    return chain(entry.pending, (name for name in entry.links if name not in entry.pending))


def _root(state: Subscription) -> str:
    return f"{state.base_url}/v1/stream/__ds"
