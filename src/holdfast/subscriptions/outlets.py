"""Where wakes go: to a webhook, or to a wake stream."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from holdfast.engine.writes import AppendRequest, StreamAppended
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.protocol.content import JSON
from holdfast.subscriptions import machine, views
from holdfast.subscriptions.delivery import Outgoing
from holdfast.subscriptions.paths import path_of

if TYPE_CHECKING:
    from holdfast.engine.shard import Shard
    from holdfast.subscriptions.delivery import Courier, Receipt
    from holdfast.subscriptions.driver import Driver
    from holdfast.subscriptions.model import Link
    from holdfast.subscriptions.registry import Entry
    from holdfast.subscriptions.tokens import Tokens
    from holdfast.subscriptions.views import Shown

_log = logging.getLogger(__name__)
# How long to leave something alone that takes nothing for now.
PAUSE_MS: Final = 1_000


class WebhookOutlet:
    """Has wakes delivered, and takes up what becomes of them."""

    def __init__(
        self,
        driver: Driver,
        courier: Courier,
        tokens: Tokens,
        *,
        timeout_s: float,
        wake_streams_max: int,
    ) -> None:
        self._driver = driver
        self._courier = courier
        self._tokens = tokens
        self._timeout_s = timeout_s
        self._wake_streams_max = wake_streams_max
        self.deliveries = 0
        self.failures = 0

    def stop(self) -> None:
        """Deliver nothing more."""
        self._courier.stop()

    def issue(self, entry: Entry) -> None:
        """Deliver the present wake as soon as there is room."""
        entry.sending = True
        wake_id = entry.state.wake_id
        assert wake_id is not None, "there is a wake to deliver"
        shown: list[Shown] = []
        self._courier.submit(
            lambda: self._prepare(entry, wake_id, shown),
            lambda receipt: self._sent(entry, wake_id, shown, receipt),
        )

    def _prepare(self, entry: Entry, wake_id: str, shown: list[Shown]) -> Outgoing | None:
        """Its turn has come. It may have waited for that, and be overtaken by now."""
        driver, state = self._driver, entry.state
        if not driver.is_present(entry) or not machine.awaits_delivery(state, wake_id):
            entry.sending = False
            driver.clock.call_soon(driver.advance, entry)
            return None
        told, shown[:] = views.snapshot(entry, driver.streams, self._wake_streams_max)
        self.deliveries += 1
        # Longer than the lease nobody waits: the wake would be over.
        timeout_s = min(self._timeout_s, state.lease_ttl_ms / 1000)
        assert state.webhook_url is not None, "a webhook has an address"
        body = views.wake_body(state, told, self._tokens.make(state))
        return Outgoing(state.webhook_url, body, timeout_s)

    def _sent(self, entry: Entry, wake_id: str, shown: list[Shown], receipt: Receipt) -> None:
        """A delivery has ended, well or not."""
        entry.sending = False
        if not receipt.problem:
            entry.warned = False
        elif not entry.warned:
            entry.warned = True
            _log.warning("webhook of subscription %r: %s", entry.state.id, receipt.problem)
        try:
            if self._driver.is_present(entry) and entry.state.wake_id == wake_id:
                self._take(entry, wake_id, shown, receipt)
        except HoldfastError:
            # Not recorded: it is delivered again later.
            self._driver.pause(entry)
        self._driver.advance(entry)

    def _take(self, entry: Entry, wake_id: str, shown: list[Shown], receipt: Receipt) -> None:
        driver, state = self._driver, entry.state
        now_ms = driver.clock.now_ms()
        if receipt.done:
            ended = machine.end_wake(machine.delivered(state, now_ms))
            driver.conclude(entry, ended, _acknowledged(entry, shown))
        elif not machine.awaits_delivery(state, wake_id):
            # A callback came first, and says all there is to say.
            return
        elif receipt.problem:
            self.failures += 1
            limit = machine.JITTER_PERMILLE
            jitter = driver.clock.random_int(-limit, limit)
            driver.commit(entry, machine.delivery_failed(state, now_ms, jitter))
        else:
            driver.commit(entry, machine.delivered(state, now_ms))


class WakeStreamOutlet:
    """Offers wakes on the streams that workers watch."""

    def __init__(self, driver: Driver, shard: Shard) -> None:
        self._driver = driver
        self._shard = shard

    def issue(self, entry: Entry) -> None:
        """Write the present wake to the wake stream."""
        entry.offer_ms = None
        name = entry.state.wake_stream
        assert name is not None, "pull-wake has a wake stream"
        request = AppendRequest(views.wake_event(entry, self._driver.clock.now_ms()), JSON)
        context = entry, entry.state.wake_id
        try:
            self._shard.append(name, request, self._offered, context)
        except HoldfastError as error:
            self._offered(context, error)

    def _offered(self, context: tuple[Entry, str | None], outcome: object) -> None:
        entry, wake_id = context
        if isinstance(outcome, StreamAppended):
            entry.warned = False
            return
        assert isinstance(outcome, HoldfastError)
        state = entry.state
        if not entry.warned:
            entry.warned = True
            _log.warning(
                "subscription %r cannot wake anybody through the stream %r, "
                "which has to exist, be open and hold application/json: %s",
                state.id,
                path_of(state.wake_stream or ""),
                outcome.message,
            )
        if state.wake_id == wake_id:
            delay_ms = PAUSE_MS if isinstance(outcome, UnavailableError) else state.lease_ttl_ms
            entry.offer_ms = self._driver.clock.now_ms() + delay_ms
            # Not at once: this may be called from within `advance`.
            self._driver.clock.call_soon(self._driver.advance, entry)


def _acknowledged(entry: Entry, shown: list[Shown]) -> dict[str, Link]:
    """The links as they are once everything that was shown is processed."""
    changed = {}
    for name, number, tail in shown:
        link = entry.links.get(name)
        # A stream created anew meanwhile is not the one that was shown.
        if link is not None and link.number == number and tail > link.acked:
            changed[name] = link.with_acked(tail)
    return changed
