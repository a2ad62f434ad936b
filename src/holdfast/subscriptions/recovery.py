"""Subscriptions after a restart: their documents, compared with the streams.

The server may have ended between an append and what should have followed it. So every link's offset
is compared with its stream's tail, and streams that a pattern matches are looked for: those without
a link came later than the subscription. That takes some 10 µs a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.errors import LogCorruptError, SubscriptionError
from holdfast.subscriptions.model import (
    BEFORE_FIRST,
    GLOB,
    LINK_PREFIX,
    SUBSCRIPTION_PREFIX,
    Link,
    decode_link,
    decode_subscription,
    link_key,
    parse_link_key,
)
from holdfast.subscriptions.registry import Entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.metadata_writes import Documents
    from holdfast.subscriptions.registry import Registry
    from holdfast.subscriptions.streams import Known, Streams

Document = TypeVar("Document")


def restore(registry: Registry, streams: Streams, documents: Documents) -> list[str]:
    """Fill the registry; the keys of documents that have lost their meaning are returned."""
    entries, stale = _load(documents)
    for entry in entries.values():
        stale += _compare(entry, streams)
        registry.add(entry)
    return stale


def _load(documents: Documents) -> tuple[dict[str, Entry], list[str]]:
    stale: list[str] = []
    links: dict[str, dict[str, Link]] = {}
    entries: dict[str, Entry] = {}
    for key, value in documents.items(SUBSCRIPTION_PREFIX):
        state = _decoded(decode_subscription, key, value)
        entries[state.id] = Entry(state)
        links[state.id] = {}
    for key, value in documents.items(LINK_PREFIX):
        subscription_id, name = parse_link_key(key)
        if subscription_id in links:
            links[subscription_id][name] = _decoded(decode_link, key, value)
        else:
            stale.append(key)
    for subscription_id, entry in entries.items():
        entry.links.update(links[subscription_id])
    return entries, stale


def _decoded(decode: Callable[[bytes], Document], key: str, value: bytes) -> Document:
    try:
        return decode(value)
    except (msgspec.DecodeError, SubscriptionError) as error:
        raise LogCorruptError(
            f"The document {key!r} cannot be read: {error}. It was written by a defective or newer "
            "server; nothing was changed."
        ) from error


def _compare(entry: Entry, streams: Streams) -> list[str]:
    """Bring a subscription's links up to date; the keys of those that are gone are returned."""
    stale: list[str] = []
    seen: set[str] = set()
    if entry.glob is not None:
        for name, known in streams.matching(entry.glob):
            if name != entry.state.wake_stream:
                seen.add(name)
                _compare_link(entry, name, known, stale)
    for name in [name for name in entry.links if name not in seen]:
        _compare_link(entry, name, streams.find(name), stale)
    return stale


def _compare_link(entry: Entry, name: str, known: Known | None, stale: list[str]) -> None:
    link = entry.links.get(name)
    if link is not None and link.number and (known is None or known.number != link.number):
        # The stream it was linked to is gone; one of the same name is another.
        del entry.links[name]
        stale.append(link_key(entry.state.id, name))
        link = None
    if known is None:
        return
    if link is None:
        if not known.tail or not entry.concerns(name):
            return
        link = entry.links[name] = Link(BEFORE_FIRST, GLOB, known.number)
    elif not link.number:
        link = entry.links[name] = Link(link.acked, link.kinds, known.number)
    if link.is_pending(known.tail):
        entry.pending[name] = None
