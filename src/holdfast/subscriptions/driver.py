"""The driver: what happens to subscriptions without anybody asking.

It hears of every batch once that is published, keeps what is pending, and does whatever
`machine.next_action` says: start a wake, deliver it, offer it, expire it. What others can see, a
webhook or an event on a wake stream, is done only when the step that led to it is durable. Asking
again costs nothing and forgets nothing, so it is done after every change, at every deadline, and
for all subscriptions at start: a restart is no special case.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError
from holdfast.format.records import Kind
from holdfast.subscriptions import machine
from holdfast.subscriptions.ledger import Ledger
from holdfast.subscriptions.machine import Action
from holdfast.subscriptions.model import BEFORE_FIRST, GLOB, Link, Step
from holdfast.subscriptions.outlets import PAUSE_MS, WakeStreamOutlet, WebhookOutlet
from holdfast.subscriptions.registry import Registry
from holdfast.subscriptions.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.clock import Clock
    from holdfast.engine.commit import Batch
    from holdfast.engine.journal import JournalBatch
    from holdfast.engine.shard import Shard
    from holdfast.subscriptions.delivery import Courier
    from holdfast.subscriptions.model import Subscription
    from holdfast.subscriptions.registry import Entry
    from holdfast.subscriptions.tokens import Tokens

_log = logging.getLogger(__name__)
_NOBODY: Final[tuple[str, tuple[Any, ...]]] = ("", ())


class Driver:
    """Moves subscriptions on."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        courier: Courier,
        tokens: Tokens,
        *,
        timeout_s: float,
        wake_streams_max: int,
    ) -> None:
        self._shard = shard
        self.clock = clock
        self.streams = Streams(shard)
        self.registry = Registry(self.streams)
        self.ledger = Ledger(shard, self.registry, settled=self.advance, dropped=self._dropped)
        self.webhooks = WebhookOutlet(
            self, courier, tokens, timeout_s=timeout_s, wake_streams_max=wake_streams_max
        )
        self._wake_streams = WakeStreamOutlet(self, shard)
        self._stopped = False
        # The position up to which batches are known here.
        self._heard = 0
        self.wakes = 0

    def start(self) -> None:
        """Take up everything where it stands."""
        for entry in list(self.registry.entries.values()):
            self.advance(entry)

    def stop(self) -> None:
        """Start nothing more; what is under way is taken up by the next start."""
        self._stopped = True
        self.webhooks.stop()
        for entry in self.registry.entries.values():
            if entry.timer is not None:
                entry.timer.cancel()

    # What is heard of streams.

    def watch(self) -> None:
        """Hear of batches from now on; without subscriptions they cost nothing."""
        if self._published not in self._shard.watchers:
            self._shard.watchers.append(self._published)
            self._heard = self._shard.state.journal.last

    def catch_up(self) -> None:
        """Hear of what is published already: an answer to an append comes before we are told."""
        journal = self._shard.state.journal
        if self._published in self._shard.watchers and journal.last > self._heard:
            for changes in list(journal.after(self._heard)):
                self._hear(changes)

    def _published(self, _batch: Batch, changes: JournalBatch) -> None:
        if changes.position > self._heard + 1:
            # One was missed, if only because telling somebody else has failed.
            self.catch_up()
        elif changes.position > self._heard:
            self._hear(changes)

    def _hear(self, changes: JournalBatch) -> None:
        """A batch is durable: find out who has work now."""
        self._heard = changes.position
        self.ledger.published(changes.position)
        if not self.registry.entries:
            return
        woken: dict[Entry, None] = {}
        rare = changes.rare
        known = self.registry.known_audience
        for index, number in enumerate(changes.streams):
            if index in rare:
                kind, name = rare[index]
                self._changed(kind, name, number, changes.ends[index], woken)
            elif changes.lengths[index]:
                name, audience = known(number) or self._find_audience(number)
                for entry in audience:
                    if name not in entry.pending:
                        self._appended(entry, name, number, woken)
        for entry in woken:
            self.advance(entry)

    def _find_audience(self, number: int) -> tuple[str, tuple[Entry, ...]]:
        stream = self._shard.state.find_number(number)
        if stream is None or stream.gone:
            # Deleted by the same batch.
            return _NOBODY
        return self.registry.audience(number, stream.meta.name)

    def _appended(self, entry: Entry, name: str, number: int, woken: dict[Entry, None]) -> None:
        """A stream that concerns a subscription has something new."""
        known = self.streams.find(name)
        if known is None or known.number != number:
            return
        link = entry.links.get(name)
        if link is None or link.number != number:
            # Linked as it was before this append.
            link = Link(BEFORE_FIRST, GLOB if link is None else link.kinds, number)
            self.registry.link(entry, name, link)
        if link.is_pending(known.tail):
            entry.pending[name] = None
            woken[entry] = None

    def _changed(
        self, kind: int, name: str, number: int, tail: int, woken: dict[Entry, None]
    ) -> None:
        """A stream was created, or is gone."""
        if kind == Kind.CREATE:
            for entry in self.registry.woken_through(name):
                if entry.offer_ms is not None:
                    entry.offer_ms = 0
                    woken[entry] = None
            for entry in self.registry.audience(number, name)[1] if tail else ():
                self._appended(entry, name, number, woken)
        elif kind in (Kind.DELETE, Kind.EXPIRE):
            for entry in self.registry.concerned(name):
                link = entry.links.get(name)
                if link is not None and link.number in {0, number}:
                    self.ledger.forget(entry, name)
                    woken[entry] = None

    # What is to be done.

    def advance(self, entry: Entry) -> None:
        """Do what is due, and see to it that this is asked again in time."""
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        if self._stopped or not self.is_present(entry):
            return
        now_ms = self.clock.now_ms()
        try:
            while now_ms >= entry.pause_ms and self._act(entry, now_ms):
                pass
        except HoldfastError as error:
            _log.debug("subscription %r waits: %s", entry.state.id, error.message)
            self.pause(entry)
        self._set_timer(entry, now_ms)

    def is_present(self, entry: Entry) -> bool:
        """Whether the subscription is there, and has not made way for another."""
        return self.registry.entries.get(entry.state.id) is entry

    def _act(self, entry: Entry, now_ms: int) -> bool:
        """Do one thing; whether there may be another."""
        state = entry.state
        action = machine.next_action(
            state,
            now_ms,
            pending=bool(entry.pending),
            sending=entry.sending,
            offer_ms=entry.offer_ms,
        )
        if action is Action.REST:
            return False
        if action is Action.WAKE:
            self.commit(entry, self.next_wake(entry, state))
            return True
        if action in {Action.EXPIRE, Action.WITHDRAW}:
            self.conclude(entry, machine.end_wake(state), {})
            return True
        if entry.commits:
            # Nobody hears of what might still come to nothing.
            return False
        if action is Action.DELIVER:
            self.webhooks.issue(entry)
        else:
            self._wake_streams.issue(entry)
        return False

    def commit(self, entry: Entry, state: Subscription, links: Mapping[str, Link] = {}) -> None:
        """Make a step durable; raises if the log takes nothing now."""
        self.ledger.commit(entry, Step(state, links))

    def pause(self, entry: Entry) -> None:
        """Leave the log alone for a while."""
        entry.pause_ms = self.clock.now_ms() + PAUSE_MS

    def next_wake(self, entry: Entry, state: Subscription) -> Subscription:
        """The state with the next wake in it."""
        self.wakes += 1
        entry.offer_ms = 0
        wake_id = f"w_{self.clock.random_bytes(12).hex()}"
        return machine.start_wake(state, wake_id, self.clock.now_ms())

    def conclude(self, entry: Entry, state: Subscription, links: Mapping[str, Link]) -> bool:
        """A wake has ended in `state`: acknowledge, and start the next one if there is work."""
        processed = sum(
            name in entry.pending and not link.is_pending(self.streams.tail(name))
            for name, link in links.items()
        )
        more = len(entry.pending) > processed
        self.commit(entry, self.next_wake(entry, state) if more else state, links)
        return more

    def _dropped(self, entry: Entry) -> None:
        """The log failed: what was to be is not."""
        self.pause(entry)
        self.advance(entry)

    def _set_timer(self, entry: Entry, now_ms: int) -> None:
        # Until the last step is durable there is nothing to wait for but that.
        if entry.commits:
            return
        due_ms = machine.next_deadline_ms(
            entry.state, sending=entry.sending, offer_ms=entry.offer_ms
        )
        if due_ms is None and entry.state.wake_id is None and entry.pending:
            due_ms = entry.pause_ms
        if due_ms is not None:
            delay_s = max(due_ms - now_ms, entry.pause_ms - now_ms, 1) / 1000
            entry.timer = self.clock.call_later(delay_s, self.advance, entry)
