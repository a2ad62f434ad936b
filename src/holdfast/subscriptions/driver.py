"""The driver: what happens to subscriptions without a request.

It is told of every published batch, keeps track of pending streams, and does whatever
`machine.next_action` says: start a wake, deliver it, offer it, expire it. Effects that others can
see, a webhook or a message on a wake stream, wait until the step that led to them is durable.
Asking again is free and forgets nothing, so it is done after every change, at every deadline, and
for all subscriptions at start: a restart is no special case.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.writes import AppendRequest, StreamAppended
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.format.records import Kind
from holdfast.protocol.content import JSON
from holdfast.subscriptions import bodies, machine
from holdfast.subscriptions.delivery import WebhookRequest
from holdfast.subscriptions.ledger import Ledger
from holdfast.subscriptions.machine import BEFORE_FIRST, GLOB, Action, Link, Step
from holdfast.subscriptions.paths import path_of
from holdfast.subscriptions.registry import Registry, StreamLookup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.clock import Clock
    from holdfast.engine.commit import Batch
    from holdfast.engine.journal import JournalBatch
    from holdfast.engine.shard import Shard
    from holdfast.settings import WebhookSettings
    from holdfast.subscriptions.bodies import ReportedStream
    from holdfast.subscriptions.delivery import DeliveryResult, WebhookSender
    from holdfast.subscriptions.keys import WakeTokens
    from holdfast.subscriptions.machine import Link, Subscription
    from holdfast.subscriptions.registry import SubscriptionEntry

_log = logging.getLogger(__name__)
# The pause after the log or a wake stream refused a write.
PAUSE_MS: Final = 1_000
_NO_AUDIENCE: Final[tuple[str, tuple[Any, ...]]] = ("", ())


class SubscriptionDriver:
    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        sender: WebhookSender,
        tokens: WakeTokens,
        settings: WebhookSettings,
    ) -> None:
        self._shard = shard
        self.clock = clock
        self._sender = sender
        self._tokens = tokens
        self._settings = settings
        self.streams = StreamLookup(shard)
        self.registry = Registry(self.streams)
        self.ledger = Ledger(shard, self.registry, settled=self.advance, dropped=self._dropped)
        self._stopped = False
        # The position of the last batch that was taken into account.
        self._seen = 0
        # Totals since start.
        self.wakes = self.deliveries = self.failures = 0

    def start(self) -> None:
        for entry in list(self.registry.entries.values()):
            self.advance(entry)

    def stop(self) -> None:
        """Start nothing more; the next start continues what is under way."""
        self._stopped = True
        self._sender.stop()
        for entry in self.registry.entries.values():
            if entry.timer is not None:
                entry.timer.cancel()

    def watch(self) -> None:
        """Be told of batches from now on; without subscriptions they cost nothing."""
        if self._published not in self._shard.watchers:
            self._shard.watchers.append(self._published)
            self._seen = self._shard.state.journal.last

    def catch_up(self) -> None:
        """Take all published batches into account: appends are confirmed before we are told."""
        journal = self._shard.state.journal
        if self._published in self._shard.watchers and journal.last > self._seen:
            for changes in list(journal.after(self._seen)):
                self._take_in(changes)

    def _published(self, _batch: Batch, changes: JournalBatch) -> None:
        if changes.position > self._seen + 1:
            # One was missed, for example because another watcher failed.
            self.catch_up()
        elif changes.position > self._seen:
            self._take_in(changes)

    def _take_in(self, changes: JournalBatch) -> None:
        self._seen = changes.position
        self.ledger.published(changes.position)
        if not self.registry.entries:
            return
        woken: dict[SubscriptionEntry, None] = {}
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

    def _find_audience(self, number: int) -> tuple[str, tuple[SubscriptionEntry, ...]]:
        stream = self._shard.state.find_number(number)
        if stream is None or stream.gone:
            # Deleted by the same batch.
            return _NO_AUDIENCE
        return self.registry.audience(number, stream.meta.name)

    def _appended(
        self, entry: SubscriptionEntry, name: str, number: int, woken: dict[SubscriptionEntry, None]
    ) -> None:
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
        self, kind: int, name: str, number: int, tail: int, woken: dict[SubscriptionEntry, None]
    ) -> None:
        """A stream was created or deleted, or has expired."""
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

    def advance(self, entry: SubscriptionEntry) -> None:
        """Do what is due, and set the timer for what comes next."""
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

    def is_present(self, entry: SubscriptionEntry) -> bool:
        """Whether this is still the subscription of its id."""
        return self.registry.entries.get(entry.state.id) is entry

    def _act(self, entry: SubscriptionEntry, now_ms: int) -> bool:
        """Do one thing; returns whether there may be another."""
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
            # The step may still be undone.
            return False
        if action is Action.DELIVER:
            self._deliver(entry)
        else:
            self._offer(entry)
        return False

    def commit(
        self, entry: SubscriptionEntry, state: Subscription, links: Mapping[str, Link] = {}
    ) -> None:
        self.ledger.commit(entry, Step(state, links))

    def pause(self, entry: SubscriptionEntry) -> None:
        """Do not write for a while."""
        entry.pause_ms = self.clock.now_ms() + PAUSE_MS

    def next_wake(self, entry: SubscriptionEntry, state: Subscription) -> Subscription:
        self.wakes += 1
        entry.offer_ms = 0
        wake_id = f"w_{self.clock.random_bytes(12).hex()}"
        return machine.start_wake(state, wake_id, self.clock.now_ms())

    def conclude(
        self, entry: SubscriptionEntry, state: Subscription, links: Mapping[str, Link]
    ) -> bool:
        """End a wake and acknowledge; starts the next one, and returns True, if work is left."""
        processed = sum(
            name in entry.pending and not link.is_pending(self.streams.tail(name))
            for name, link in links.items()
        )
        more = len(entry.pending) > processed
        self.commit(entry, self.next_wake(entry, state) if more else state, links)
        return more

    def _dropped(self, entry: SubscriptionEntry) -> None:
        """The log failed, and steps of the subscription were undone."""
        self.pause(entry)
        self.advance(entry)

    def _set_timer(self, entry: SubscriptionEntry, now_ms: int) -> None:
        # The ledger calls `advance` once the last step is durable.
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

    # Webhooks.

    def _deliver(self, entry: SubscriptionEntry) -> None:
        """Deliver the current wake as soon as there is room."""
        wake_id = entry.state.wake_id
        assert wake_id is not None, "there is a wake to deliver"
        entry.sending = True
        reported: list[ReportedStream] = []

        def prepare() -> WebhookRequest | None:
            state = entry.state
            if not self.is_present(entry) or not machine.awaits_delivery(state, wake_id):
                # The wake was over before its turn came.
                entry.sending = False
                self.clock.call_soon(self.advance, entry)
                return None
            streams, reported[:] = bodies.snapshot(
                entry, self.streams, self._settings.wake_streams_max
            )
            self.deliveries += 1
            # Not longer than the lease, which ends the wake.
            timeout_s = min(self._settings.timeout_s, state.lease_ttl_ms / 1000)
            assert state.webhook_url is not None, "a webhook has a URL"
            body = bodies.wake_body(state, streams, self._tokens.make(state))
            return WebhookRequest(state.webhook_url, body, timeout_s)

        def done(result: DeliveryResult) -> None:
            entry.sending = False
            if not result.problem:
                entry.warned = False
            elif not entry.warned:
                entry.warned = True
                _log.warning("webhook of subscription %r: %s", entry.state.id, result.problem)
            try:
                if self.is_present(entry) and entry.state.wake_id == wake_id:
                    self._take_result(entry, result, reported)
            except HoldfastError:
                # The result is not recorded, so the wake is delivered again later.
                self.pause(entry)
            self.advance(entry)

        self._sender.submit(prepare, done)

    def _take_result(
        self, entry: SubscriptionEntry, result: DeliveryResult, reported: list[ReportedStream]
    ) -> None:
        state, now_ms = entry.state, self.clock.now_ms()
        if result.done:
            ended = machine.end_wake(machine.delivered(state, now_ms))
            self.conclude(entry, ended, _acknowledged(entry, reported))
        elif state.next_attempt_ms is None:
            # A callback came first.
            return
        elif result.problem:
            self.failures += 1
            jitter = self.clock.random_int(-machine.JITTER_PERMILLE, machine.JITTER_PERMILLE)
            self.commit(entry, machine.delivery_failed(state, now_ms, jitter))
        else:
            self.commit(entry, machine.delivered(state, now_ms))

    # Wake streams.

    def _offer(self, entry: SubscriptionEntry) -> None:
        entry.offer_ms = None
        name = entry.state.wake_stream
        assert name is not None, "pull-wake has a wake stream"
        request = AppendRequest(bodies.wake_event(entry, self.clock.now_ms()), JSON)
        context = entry, entry.state.wake_id
        try:
            self._shard.append(name, request, self._offered, context)
        except HoldfastError as error:
            self._offered(context, error)

    def _offered(self, context: tuple[SubscriptionEntry, str | None], outcome: object) -> None:
        entry, wake_id = context
        if isinstance(outcome, StreamAppended):
            entry.warned = False
            return
        assert isinstance(outcome, HoldfastError)
        state = entry.state
        if not entry.warned:
            entry.warned = True
            _log.warning(
                "subscription %r cannot write to its wake stream %r, "
                "which has to exist, be open and hold application/json: %s",
                state.id,
                path_of(state.wake_stream or ""),
                outcome.message,
            )
        if state.wake_id == wake_id:
            delay_ms = PAUSE_MS if isinstance(outcome, UnavailableError) else state.lease_ttl_ms
            entry.offer_ms = self.clock.now_ms() + delay_ms
            # Not at once: this may be called from within `advance`.
            self.clock.call_soon(self.advance, entry)


def _acknowledged(entry: SubscriptionEntry, reported: list[ReportedStream]) -> dict[str, Link]:
    """The links that change when everything that was reported is acknowledged."""
    changed = {}
    for name, number, tail in reported:
        link = entry.links.get(name)
        # A stream that was created anew in the meantime was not reported.
        if link is not None and link.number == number and tail > link.acked:
            changed[name] = link.with_acked(tail)
    return changed
