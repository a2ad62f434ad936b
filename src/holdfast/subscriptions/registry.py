"""The subscriptions in memory, ahead of their documents, and which of them a stream concerns.

A stream's audience is found once and remembered: by the pattern's first segment where it is
literal, by name for explicit links. The pending links of a subscription are a set that each append
adds to and each acknowledgement removes from, so that no decision goes through all links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sortedcontainers import SortedDict

from holdfast.protocol.names import HIDDEN_STREAMS
from holdfast.subscriptions.machine import EXPLICIT, Link, Step, Subscription
from holdfast.subscriptions.paths import StreamGlob, path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from holdfast.clock import Timer
    from holdfast.engine.shard import Shard
    from holdfast.subscriptions.paths import StreamGlob


class KnownStream(NamedTuple):
    number: int
    tail: int


class StreamLookup:
    """Finds published streams without bringing them into memory."""

    def __init__(self, shard: Shard) -> None:
        self._state = shard.state
        self._catalog = shard.catalog
        self._listing = shard.listing

    def find(self, name: str) -> KnownStream | None:
        """The published stream of this name; takes some 20 µs if it is not in memory."""
        stream = self._state.by_name.get(name)
        if stream is not None:
            return None if stream.gone else KnownStream(stream.number, stream.tail)
        if self._catalog is None or name in self._state.removed:
            return None
        row = self._catalog.find_name(name)
        return None if row is None or row.deleted else KnownStream(row.number, row.tail)

    def tail(self, name: str) -> int:
        """The stream's tail; 0 if there is none."""
        known = self.find(name)
        return 0 if known is None else known.tail

    def matching(self, glob: StreamGlob) -> Iterator[tuple[str, KnownStream]]:
        """The streams that a pattern matches; scans all that share its literal prefix."""
        for prefix in glob.name_prefixes():
            for name, known in self._starting_with(prefix):
                if not name.startswith(HIDDEN_STREAMS) and glob.matches(path_of(name)):
                    yield name, known

    def _starting_with(self, prefix: str) -> Iterator[tuple[str, KnownStream]]:
        # A listing covers one bucket.
        buckets = [prefix] if prefix else [f"{bucket}/" for bucket in sorted(self._state.buckets)]
        for bucket in buckets:
            for name, stream in self._listing.streams(bucket):
                yield name, KnownStream(stream.number, stream.tail)


_AUDIENCES_MAX: Final = 65_536


class SubscriptionEntry:
    """A subscription, its links, and its volatile state."""

    __slots__ = (
        "commits",
        "glob",
        "links",
        "offer_ms",
        "pause_ms",
        "pending",
        "sending",
        "state",
        "timer",
        "warned",
    )

    def __init__(self, state: Subscription) -> None:
        self.state = state
        self.glob = None if state.pattern is None else StreamGlob(state.pattern)
        # Sorted by name, for listing in pages.
        self.links: SortedDict[str, Link] = SortedDict()
        # Links with unacknowledged content, the longest pending first.
        self.pending: dict[str, None] = {}
        # Steps that are not durable yet; deliveries wait for them.
        self.commits = 0
        self.sending = False
        # When to write the wake to the wake stream; None once it is there.
        self.offer_ms: int | None = 0
        # The driver does nothing before this time.
        self.pause_ms = 0
        self.timer: Timer | None = None
        # Whether the current failure has been logged.
        self.warned = False

    def concerns(self, name: str) -> bool:
        """Whether the pattern covers this stream.

        It never covers the subscription's own wake stream, nor hidden streams.
        """
        return (
            self.glob is not None
            and not name.startswith(HIDDEN_STREAMS)
            and name != self.state.wake_stream
            and self.glob.matches(path_of(name))
        )


class Registry:
    """All subscriptions by id, and an index from streams to them."""

    def __init__(self, streams: StreamLookup) -> None:
        self._streams = streams
        self.entries: dict[str, SubscriptionEntry] = {}
        self._by_first: dict[str | None, dict[SubscriptionEntry, None]] = {}
        self._by_link: dict[str, dict[SubscriptionEntry, None]] = {}
        self._by_wake_stream: dict[str, dict[SubscriptionEntry, None]] = {}
        self._audiences: dict[int, tuple[str, tuple[SubscriptionEntry, ...]]] = {}

    def audience(self, number: int, name: str) -> tuple[str, tuple[SubscriptionEntry, ...]]:
        """A stream's name, and the subscriptions that it is or should be linked to."""
        found = self._audiences.get(number)
        if found is None:
            found = name, tuple(self.concerned(name))
            if len(self._audiences) >= _AUDIENCES_MAX:
                self._audiences.clear()
            self._audiences[number] = found
        return found

    def known_audience(self, number: int) -> tuple[str, tuple[SubscriptionEntry, ...]] | None:
        """The audience if it is remembered: the common case."""
        return self._audiences.get(number)

    def concerned(self, name: str) -> Iterable[SubscriptionEntry]:
        """The subscriptions that a stream is or should be linked to."""
        found = dict(self._by_link.get(name, {}))
        first = path_of(name).partition("/")[0]
        for key in (first, None):
            for entry in self._by_first.get(key, ()):
                if entry not in found and entry.concerns(name):
                    found[entry] = None
        return found

    def woken_through(self, name: str) -> Iterable[SubscriptionEntry]:
        return tuple(self._by_wake_stream.get(name, ()))

    def install(self, entry: SubscriptionEntry, step: Step) -> Step:
        """Apply a step, and return the step that undoes it."""
        present = self.entries.get(entry.state.id) is entry
        if step.subscription is None:
            assert present, "only a present subscription is deleted"
            self._remove(entry)
            return Step(entry.state)
        before = {name: entry.links.get(name) for name in step.links}
        undo = Step(entry.state if present else None, before)
        if not present:
            self.add(entry)
            # A removal is undone: streams may have changed since.
            for name, link in entry.links.items():
                self.recheck(entry, name, link)
        entry.state = step.subscription
        for name, link in step.links.items():
            self.link(entry, name, link)
        return undo

    def link(self, entry: SubscriptionEntry, name: str, link: Link | None) -> None:
        """Set or remove a link, and update what is pending."""
        before = entry.links.get(name)
        if link is None:
            entry.links.pop(name, None)
            entry.pending.pop(name, None)
        else:
            entry.links[name] = link
            if name in entry.pending or (before is not None and link.acked < before.acked):
                self.recheck(entry, name, link)
        if _is_explicit(link) != _is_explicit(before):
            _index(self._by_link, name, entry, present=_is_explicit(link))
            self._audiences.clear()

    def recheck(self, entry: SubscriptionEntry, name: str, link: Link) -> None:
        if link.is_pending(self._streams.tail(name)):
            entry.pending[name] = None
        else:
            entry.pending.pop(name, None)

    def add(self, entry: SubscriptionEntry) -> None:
        self.entries[entry.state.id] = entry
        self._index(entry, present=True)

    def _remove(self, entry: SubscriptionEntry) -> None:
        del self.entries[entry.state.id]
        self._index(entry, present=False)

    def _index(self, entry: SubscriptionEntry, *, present: bool) -> None:
        state = entry.state
        if entry.glob is not None:
            _index(self._by_first, entry.glob.first, entry, present=present)
        if state.wake_stream is not None:
            _index(self._by_wake_stream, state.wake_stream, entry, present=present)
        for name, link in entry.links.items():
            if _is_explicit(link):
                _index(self._by_link, name, entry, present=present)
        self._audiences.clear()


def _is_explicit(link: Link | None) -> bool:
    return link is not None and bool(link.kinds & EXPLICIT)


def _index(
    index: dict[Any, dict[SubscriptionEntry, None]],
    key: Any,
    entry: SubscriptionEntry,
    *,
    present: bool,
) -> None:
    if present:
        index.setdefault(key, {})[entry] = None
        return
    members = index[key]
    del members[entry]
    if not members:
        del index[key]
