"""Steps on their way to the log, and subscriptions read back from it.

Rules:

- A step is handed to the log first. If the log refuses it nothing has changed; otherwise it takes
  effect in memory, and the step that undoes it is kept until it is durable.
- Every response that depends on a step, errors too, waits until the step is durable.
- If the log fails, everything that is not durable is undone, last step first.
- If the log does not answer in time, nothing is undone, and the callers get an error. The step
  counts as durable once a later batch is published, or is undone with the others.
- After a restart every link's offset is compared with its stream's tail, and streams that match a
  pattern are looked for: the server may have ended between an append and the step that should
  have followed. Streams without a link are newer than the subscription. That takes some 10 µs
  for each stream.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.errors import (
    CommitUnknownError,
    HoldfastError,
    LogCorruptError,
    SubscriptionError,
    UnavailableError,
)
from holdfast.subscriptions.machine import (
    BEFORE_FIRST,
    GLOB,
    LINK_PREFIX,
    SUBSCRIPTION_PREFIX,
    Link,
    Step,
    decode_link,
    decode_subscription,
    encode_link,
    encode_subscription,
    link_key,
    parse_link_key,
    subscription_key,
)
from holdfast.subscriptions.registry import SubscriptionEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.commit import Reply
    from holdfast.engine.metadata_writes import Documents
    from holdfast.engine.shard import Shard
    from holdfast.subscriptions.registry import (
        KnownStream,
        Registry,
        StreamLookup,
        SubscriptionEntry,
    )

_log = logging.getLogger(__name__)


class _Commit:
    """A step that is not durable yet, and the replies that wait for it."""

    __slots__ = ("entry", "position", "replies", "undo", "unknown")

    def __init__(self, entry: SubscriptionEntry) -> None:
        self.entry = entry
        self.undo = Step(None)
        self.position = 0
        self.unknown = False
        self.replies: list[tuple[Reply, Any, object]] = []

    def reply(self, error: HoldfastError | None) -> None:
        replies, self.replies = self.replies, []
        for reply, context, outcome in replies:
            try:
                reply(context, outcome if error is None else error)
            except Exception:  # noqa: BLE001 (a defect in one reply must not stop the others)
                _log.exception("a reply failed")


class Ledger:
    def __init__(
        self,
        shard: Shard,
        registry: Registry,
        *,
        settled: Callable[[SubscriptionEntry], None],
        dropped: Callable[[SubscriptionEntry], None],
    ) -> None:
        self._shard = shard
        self._registry = registry
        # Called for a subscription whose step has become durable, or was undone.
        self._settled = settled
        self._dropped = dropped
        self._under_way: deque[_Commit] = deque()
        # The last step of each subscription, present or deleted, that is not durable.
        self._last: dict[str, _Commit] = {}
        shard.documents.on_drop.append(self._drop)

    def commit(self, entry: SubscriptionEntry, step: Step) -> None:
        """Apply a step and write it; raises if the log accepts nothing now."""
        changes = self._changes(entry, step)
        if not changes:
            self._registry.install(entry, step)
            return
        commit = _Commit(entry)
        self._shard.documents.commit(changes, self._done, commit)
        commit.position = self._shard.commits.last_position
        commit.undo = self._registry.install(entry, step)
        entry.commits += 1
        self._under_way.append(commit)
        self._last[entry.state.id] = commit

    def forget(self, entry: SubscriptionEntry, name: str) -> None:
        """Remove the link to a stream that was deleted.

        That is never undone and need not be durable: a restart finds the stream gone, too.
        """
        stored = encode_link(entry.links.get(name)) is not None
        self._registry.link(entry, name, None)
        if stored:
            key = link_key(entry.state.id, name)
            with contextlib.suppress(HoldfastError):
                self._shard.documents.commit({key: None}, _ignore, None)

    def respond(
        self, subscription_id: str | None, reply: Reply, context: Any, outcome: object
    ) -> None:
        """Reply once every step of the subscription, or of all of them, is durable."""
        commit: _Commit | None
        if subscription_id is None:
            commit = self._under_way[-1] if self._under_way else None
        else:
            commit = self._last.get(subscription_id)
        if commit is None:
            reply(context, outcome)
        elif commit.unknown:
            reply(context, UnavailableError("The log has not confirmed an earlier write."))
        else:
            commit.replies.append((reply, context, outcome))

    def published(self, position: int) -> None:
        """Everything up to this position is durable."""
        while self._under_way and self._under_way[0].position <= position:
            commit = self._under_way.popleft()
            self._forget(commit)
            commit.reply(None)
            self._settled(commit.entry)

    def _changes(self, entry: SubscriptionEntry, step: Step) -> dict[str, bytes | None]:
        subscription_id = entry.state.id
        changes: dict[str, bytes | None] = {}
        if step.subscription is None:
            changes[subscription_key(subscription_id)] = None
            for name, link in entry.links.items():
                if not link.implied:
                    changes[link_key(subscription_id, name)] = None
            return changes
        known = self._registry.entries.get(subscription_id) is entry
        if not known or step.subscription != entry.state:
            changes[subscription_key(subscription_id)] = encode_subscription(step.subscription)
        for name, changed in step.links.items():
            before = encode_link(entry.links.get(name))
            after = encode_link(changed)
            if before != after:
                changes[link_key(subscription_id, name)] = after
        return changes

    def _done(self, commit: _Commit, outcome: object) -> None:
        if outcome is None:
            self.published(commit.position)
            return
        assert isinstance(outcome, HoldfastError)
        if isinstance(outcome, CommitUnknownError):
            commit.unknown = True
        commit.reply(outcome)

    def _forget(self, commit: _Commit) -> None:
        commit.entry.commits -= 1
        subscription_id = commit.entry.state.id
        if self._last.get(subscription_id) is commit:
            del self._last[subscription_id]

    def _drop(self) -> None:
        """The log failed: nothing that is pending will be durable."""
        undone: dict[SubscriptionEntry, None] = {}
        while self._under_way:
            commit = self._under_way.pop()
            self._registry.install(commit.entry, commit.undo)
            self._forget(commit)
            undone[commit.entry] = None
            if commit.unknown:
                commit.reply(UnavailableError("Nothing was stored. Try again later."))
        for entry in undone:
            self._dropped(entry)


def _ignore(_context: None, _outcome: object) -> None: ...


Document = TypeVar("Document")


def restore(registry: Registry, streams: StreamLookup, documents: Documents) -> list[str]:
    """Fill the registry, and return the keys of documents that are obsolete."""
    entries, stale = _load(documents)
    for entry in entries.values():
        stale += _compare(entry, streams)
        registry.add(entry)
    return stale


def _load(documents: Documents) -> tuple[dict[str, SubscriptionEntry], list[str]]:
    stale: list[str] = []
    links: dict[str, dict[str, Link]] = {}
    entries: dict[str, SubscriptionEntry] = {}
    for key, value in documents.items(SUBSCRIPTION_PREFIX):
        state = _decoded(decode_subscription, key, value)
        entries[state.id] = SubscriptionEntry(state)
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
            f"The document {key!r} cannot be read: {error}. It is damaged, or was written by a "
            "newer server; nothing was changed."
        ) from error


def _compare(entry: SubscriptionEntry, streams: StreamLookup) -> list[str]:
    """Bring a subscription's links up to date, and return the keys of obsolete ones."""
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


def _compare_link(
    entry: SubscriptionEntry, name: str, known: KnownStream | None, stale: list[str]
) -> None:
    link = entry.links.get(name)
    if link is not None and link.number and (known is None or known.number != link.number):
        # The linked stream is gone; the present one has only its name.
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
