"""The subscriptions in memory, ahead of their documents, and who is concerned by a stream.

A stream's audience is found once and remembered: by the pattern's first segment where it is
literal, by name for explicit links. What is pending is a set that each append adds to and each
acknowledgement takes from, so that no decision goes through all links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedDict

from holdfast.protocol.names import PROXY_STREAMS
from holdfast.subscriptions.glob import Glob
from holdfast.subscriptions.model import EXPLICIT, Link, Step, Subscription
from holdfast.subscriptions.paths import path_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from holdfast.clock import Timer
    from holdfast.subscriptions.streams import Streams

_AUDIENCES_MAX: Final = 65_536


class Entry:
    """A subscription, its links, and what is under way for it."""

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
        self.glob = None if state.pattern is None else Glob(state.pattern)
        # By name and in order, so that a page of them can be listed.
        self.links: SortedDict[str, Link] = SortedDict()
        # Links with something to process, longest first.
        self.pending: dict[str, None] = {}
        # Steps that are not durable yet: what is done to others waits for them.
        self.commits = 0
        self.sending = False
        # When the wake is to be offered on the wake stream; None once it is there.
        self.offer_ms: int | None = 0
        # Nothing is tried of one's own accord before this.
        self.pause_ms = 0
        self.timer: Timer | None = None
        # Whether the present trouble was written to the log.
        self.warned = False

    def concerns(self, name: str) -> bool:
        """Whether the pattern means this stream.

        Never the subscription's own wake stream, nor the proxy's, which are not for everybody.
        """
        return (
            self.glob is not None
            and not name.startswith(PROXY_STREAMS)
            and name != self.state.wake_stream
            and self.glob.matches(path_of(name))
        )


class Registry:
    """All subscriptions by id, and the way from a stream to them."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.entries: dict[str, Entry] = {}
        self._by_first: dict[str | None, dict[Entry, None]] = {}
        self._by_link: dict[str, dict[Entry, None]] = {}
        self._by_wake_stream: dict[str, dict[Entry, None]] = {}
        self._audiences: dict[int, tuple[str, tuple[Entry, ...]]] = {}

    # Who is concerned.

    def audience(self, number: int, name: str) -> tuple[str, tuple[Entry, ...]]:
        """A stream's name, and the subscriptions that it is linked to or should be."""
        found = self._audiences.get(number)
        if found is None:
            found = name, tuple(self.concerned(name))
            if len(self._audiences) >= _AUDIENCES_MAX:
                self._audiences.clear()
            self._audiences[number] = found
        return found

    def known_audience(self, number: int) -> tuple[str, tuple[Entry, ...]] | None:
        """The audience if it was asked for before: the common case."""
        return self._audiences.get(number)

    def concerned(self, name: str) -> Iterable[Entry]:
        """The subscriptions that a stream is linked to, or should be."""
        found = dict(self._by_link.get(name, {}))
        first = path_of(name).partition("/")[0]
        for key in (first, None):
            for entry in self._by_first.get(key, ()):
                if entry not in found and entry.concerns(name):
                    found[entry] = None
        return found

    def woken_through(self, name: str) -> Iterable[Entry]:
        """The subscriptions that have this wake stream."""
        return tuple(self._by_wake_stream.get(name, ()))

    # Changes.

    def install(self, entry: Entry, step: Step) -> Step:
        """Do what a step says, and return the step that undoes it."""
        present = self.entries.get(entry.state.id) is entry
        if step.subscription is None:
            assert present, "only what is there can go"
            self._remove(entry)
            return Step(entry.state)
        before = {name: entry.links.get(name) for name in step.links}
        undo = Step(entry.state if present else None, before)
        if not present:
            self.add(entry)
            # It may have been away: an undone removal.
            for name, link in entry.links.items():
                self.recheck(entry, name, link)
        entry.state = step.subscription
        for name, link in step.links.items():
            self.link(entry, name, link)
        return undo

    def link(self, entry: Entry, name: str, link: Link | None) -> None:
        """Set or remove a link; what it leaves pending follows."""
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

    def recheck(self, entry: Entry, name: str, link: Link) -> None:
        """Find out whether a link has something pending."""
        if link.is_pending(self._streams.tail(name)):
            entry.pending[name] = None
        else:
            entry.pending.pop(name, None)

    def add(self, entry: Entry) -> None:
        """Take up a subscription with the links it has."""
        self.entries[entry.state.id] = entry
        self._index(entry, present=True)

    def _remove(self, entry: Entry) -> None:
        del self.entries[entry.state.id]
        self._index(entry, present=False)

    def _index(self, entry: Entry, *, present: bool) -> None:
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


def _index(index: dict[Any, dict[Entry, None]], key: Any, entry: Entry, *, present: bool) -> None:
    if present:
        index.setdefault(key, {})[entry] = None
        return
    members = index[key]
    del members[entry]
    if not members:
        del index[key]
