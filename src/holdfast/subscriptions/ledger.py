"""Steps on their way to the log: memory is ahead of the documents, and can be taken back.

Rules:

- A step is handed to the log first. If that refuses it nothing has changed; otherwise it takes
  effect in memory, and the step that undoes it is kept until it is durable.
- Every answer that rests on a step, refusals too, waits until it is durable.
- The log failed: everything that is not durable is undone, last step first.
- The log has not answered in time: nothing is undone. Those who wait are told; the step counts as
  durable once a later batch is published, or is undone with the others.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.errors import CommitUnknownError, HoldfastError, UnavailableError
from holdfast.subscriptions.model import (
    Step,
    encode_link,
    encode_subscription,
    link_key,
    subscription_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.commit import Reply
    from holdfast.engine.shard import Shard
    from holdfast.subscriptions.registry import Entry, Registry

_log = logging.getLogger(__name__)


class _Commit:
    """A step that is not durable yet, and who waits for it."""

    __slots__ = ("answers", "entry", "position", "undo", "unknown")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.undo = Step(None)
        self.position = 0
        self.unknown = False
        self.answers: list[tuple[Reply, Any, object]] = []

    def answer(self, error: HoldfastError | None) -> None:
        answers, self.answers = self.answers, []
        for reply, context, outcome in answers:
            try:
                reply(context, outcome if error is None else error)
            except Exception:  # noqa: BLE001 (a defect in one answer must not stop the others)
                _log.exception("an answer could not be given")


class Ledger:
    """Makes steps durable, one after the other."""

    def __init__(
        self,
        shard: Shard,
        registry: Registry,
        *,
        settled: Callable[[Entry], None],
        dropped: Callable[[Entry], None],
    ) -> None:
        self._shard = shard
        self._registry = registry
        # Called for a subscription whose step has become durable, or was undone.
        self._settled = settled
        self._dropped = dropped
        self._under_way: deque[_Commit] = deque()
        # The last step of each subscription, present or gone, that is not durable.
        self._last: dict[str, _Commit] = {}
        shard.documents.on_drop.append(self._drop)

    def commit(self, entry: Entry, step: Step) -> None:
        """Let a step take effect, and write it; raises if the log takes nothing now."""
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

    def forget(self, entry: Entry, name: str) -> None:
        """Remove the link to a stream that is gone for good.

        That cannot be undone, and need not be durable: whoever starts later finds the stream gone.
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
        """Answer once everything that is known of the subscription, or of all, is durable."""
        commit: _Commit | None
        if subscription_id is None:
            commit = self._under_way[-1] if self._under_way else None
        else:
            commit = self._last.get(subscription_id)
        if commit is None:
            reply(context, outcome)
        elif commit.unknown:
            reply(context, UnavailableError("The log has not answered for an earlier write."))
        else:
            commit.answers.append((reply, context, outcome))

    def published(self, position: int) -> None:
        """A batch is durable, and with it everything up to its position."""
        while self._under_way and self._under_way[0].position <= position:
            commit = self._under_way.popleft()
            self._forget(commit)
            commit.answer(None)
            self._settled(commit.entry)

    def _changes(self, entry: Entry, step: Step) -> dict[str, bytes | None]:
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
        commit.answer(outcome)

    def _forget(self, commit: _Commit) -> None:
        commit.entry.commits -= 1
        subscription_id = commit.entry.state.id
        if self._last.get(subscription_id) is commit:
            del self._last[subscription_id]

    def _drop(self) -> None:
        """Nothing that is pending will ever be durable."""
        undone: dict[Entry, None] = {}
        while self._under_way:
            commit = self._under_way.pop()
            self._registry.install(commit.entry, commit.undo)
            self._forget(commit)
            undone[commit.entry] = None
            if commit.unknown:
                commit.answer(UnavailableError("Nothing was stored. Try again later."))
        for entry in undone:
            self._dropped(entry)


def _ignore(_context: None, _outcome: object) -> None:
    """Nobody waits for this."""
