"""Subscriptions as their clients see them: one method for each request.

What these methods return holds in memory only, and may still be undone. So they are called through
`respond`, which replies once everything that the response depends on is durable.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import (
    HoldfastError,
    OutboundRefusedError,
    QuotaExceededError,
    SubscriptionError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    WebhookUrlRejectedError,
)
from holdfast.net.targets import TargetPolicy
from holdfast.storage.catalog import BY_NAME
from holdfast.subscriptions import bodies, machine
from holdfast.subscriptions.bodies import check_not_wake_stream
from holdfast.subscriptions.delivery import HttpWebhookSender
from holdfast.subscriptions.driver import SubscriptionDriver
from holdfast.subscriptions.keys import KEYS_FILE, KeyStore, WakeTokens, WebhookSigner
from holdfast.subscriptions.ledger import restore
from holdfast.subscriptions.machine import BEFORE_FIRST, EXPLICIT, GLOB, Link, Step, Subscription
from holdfast.subscriptions.registry import SubscriptionEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.engine.commit import Reply
    from holdfast.engine.shard import Shard
    from holdfast.net.targets import TargetPolicy
    from holdfast.settings import WebhookSettings
    from holdfast.subscriptions.bodies import SubscriptionConfig, WakeBody
    from holdfast.subscriptions.delivery import WebhookSender
    from holdfast.subscriptions.keys import WakeTokens, WebhookSigner


class SubscriptionResponse(NamedTuple):
    status: int
    body: bytes = b""


class Subscriptions:
    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        settings: WebhookSettings,
        policy: TargetPolicy,
        sender: WebhookSender,
        signer: WebhookSigner,
        tokens: WakeTokens,
    ) -> None:
        self._shard = shard
        self._clock = clock
        self.settings = settings
        self._policy = policy
        self._sender = sender
        self.signer = signer
        self._tokens = tokens
        self.driver = SubscriptionDriver(shard, clock, sender, tokens, settings)
        self._ledger = self.driver.ledger
        self._entries = self.driver.registry.entries
        self._stale: list[str] = []

    def recover(self) -> int:
        """Load the subscriptions, and return their number.

        May run in a thread, once the shard is recovered and before `start`.
        """
        self._stale = restore(self.driver.registry, self.driver.streams, self._shard.documents)
        if self._entries:
            # Fail now if the keys cannot be read.
            _ = self.signer.kid
        return len(self._entries)

    def start(self) -> None:
        """Wake, deliver and expire from now on; the shard has started before."""
        if self._stale:
            with contextlib.suppress(HoldfastError):
                changes = dict.fromkeys(self._stale)
                self._shard.documents.commit(changes, lambda _context, _outcome: None, None)
        if self._entries:
            self.driver.watch()
        self.driver.start()

    def stop(self) -> None:
        self.driver.stop()

    async def close(self) -> None:
        await self._sender.close()

    def respond(
        self,
        subscription_id: str | None,
        reply: Reply,
        context: Any,
        act: Callable[[], SubscriptionResponse],
    ) -> None:
        """Call `act`, and reply once every step of the subscription, or of all, is durable.

        `act` calls one of the methods below; `reply(context, outcome)` gets what it returned, or
        the HoldfastError that it raised or that kept it from becoming durable.
        """
        outcome: SubscriptionResponse | HoldfastError
        self._expect_streams(self._entries.get(subscription_id or ""))
        self.driver.catch_up()
        try:
            outcome = act()
        except HoldfastError as error:
            outcome = error
        self._ledger.respond(subscription_id, reply, context, outcome)

    def _expect_streams(self, entry: SubscriptionEntry | None) -> None:
        """Look up pending streams that are not in memory before anything changes."""
        catalog = self._shard.catalog
        if catalog is None or not catalog.may_wait:
            return
        pending = [] if entry is None else islice(entry.pending, self.settings.links_max)
        known = self._shard.state.by_name
        catalog.expect((BY_NAME, (name,)) for name in pending if name not in known)

    def _entry(self, subscription_id: str) -> SubscriptionEntry:
        entry = self._entries.get(subscription_id)
        if entry is None:
            raise SubscriptionNotFoundError(subscription_id)
        return entry

    def _shown(
        self, status: int, entry: SubscriptionEntry, after: str = "", limit: int = 0
    ) -> SubscriptionResponse:
        limit = limit or self.settings.wake_streams_max
        return SubscriptionResponse(
            status, bodies.encode(bodies.full(entry, self.signer.kid, after, limit))
        )

    def show(self, subscription_id: str, after: str, limit: int) -> SubscriptionResponse:
        """A subscription, and a page of its streams: those with names after `after`."""
        return self._shown(200, self._entry(subscription_id), after, limit)

    def listing(self, after: str, limit: int) -> SubscriptionResponse:
        ids = sorted(each for each in self._entries if each > after)
        kid = self.signer.kid
        body = {
            "subscriptions": [bodies.summary(self._entries[each], kid) for each in ids[:limit]],
            "next_after": ids[limit - 1] if len(ids) > limit else None,
        }
        return SubscriptionResponse(200, bodies.encode(body))

    def create(
        self, subscription_id: str, config: SubscriptionConfig, base_url: str
    ) -> SubscriptionResponse:
        """Create a subscription; one that exists with the same configuration is returned."""
        present = self._entries.get(subscription_id)
        if present is not None:
            if present.state.config_hash != config.hash():
                raise SubscriptionExistsError(
                    f"The subscription {subscription_id!r} exists with another configuration."
                )
            return self._shown(200, present)
        self._check_allowed(config)
        state = Subscription(
            id=subscription_id,
            type=config.type,
            incarnation=self._clock.random_u64(),
            config_hash=config.hash(),
            base_url=base_url,
            created_ms=self._clock.now_ms(),
            lease_ttl_ms=config.lease_ttl_ms,
            pattern=config.pattern,
            webhook_url=config.webhook_url,
            wake_stream=config.wake_stream,
            description=config.description,
        )
        # Fail before anything is stored if the keys cannot be written.
        _ = self.signer.kid
        entry = SubscriptionEntry(state)
        self._ledger.commit(entry, Step(state, self._first_links(entry, config.streams)))
        self.driver.watch()
        return self._shown(201, entry)

    def _check_allowed(self, config: SubscriptionConfig) -> None:
        if config.webhook_url is not None:
            try:
                self._policy.check_url(config.webhook_url)
            except OutboundRefusedError as error:
                raise WebhookUrlRejectedError(error.message) from None
        if len(self._entries) >= self.settings.subscriptions_max:
            raise QuotaExceededError(
                f"There are {len(self._entries)} subscriptions, as many as this server allows."
            )

    def _first_links(self, entry: SubscriptionEntry, names: Iterable[str]) -> dict[str, Link]:
        """Links at the current tails: a subscription covers what is appended after it."""
        links = {name: self._link_at_tail(name) for name in names}
        if entry.glob is None:
            return links
        for name, known in self.driver.streams.matching(entry.glob):
            if name in links:
                links[name] = links[name].with_kinds(EXPLICIT | GLOB)
            elif name != entry.state.wake_stream:
                links[name] = Link(known.tail, GLOB, known.number)
            if len(links) > self.settings.links_max:
                raise SubscriptionError(
                    f"The pattern matches more than {self.settings.links_max} streams that exist."
                )
        return links

    def _link_at_tail(self, name: str) -> Link:
        known = self.driver.streams.find(name)
        if known is None:
            return Link(BEFORE_FIRST, EXPLICIT)
        return Link(known.tail, EXPLICIT, known.number)

    def delete(self, subscription_id: str) -> SubscriptionResponse:
        entry = self._entries.get(subscription_id)
        if entry is not None:
            self._ledger.commit(entry, Step(None))
        return SubscriptionResponse(204)

    def add_streams(self, subscription_id: str, names: tuple[str, ...]) -> SubscriptionResponse:
        entry = self._entry(subscription_id)
        check_not_wake_stream(names, entry.state.wake_stream)
        links = {}
        for name in names:
            link = entry.links.get(name)
            if link is None:
                links[name] = self._link_at_tail(name)
            elif not link.kinds & EXPLICIT:
                links[name] = link.with_kinds(link.kinds | EXPLICIT)
        self.driver.commit(entry, entry.state, links)
        return SubscriptionResponse(204)

    def remove_stream(self, subscription_id: str, name: str) -> SubscriptionResponse:
        """Remove an explicit link; a stream that the pattern matches stays linked."""
        entry = self._entry(subscription_id)
        link = entry.links.get(name)
        if link is not None and link.kinds & EXPLICIT:
            stays = link.number and entry.concerns(name)
            self._ledger.commit(
                entry, Step(entry.state, {name: link.with_kinds(GLOB) if stays else None})
            )
            self.driver.advance(entry)
        return SubscriptionResponse(204)

    def claim(self, subscription_id: str, worker: str) -> SubscriptionResponse:
        entry = self._entry(subscription_id)
        # The lease may have ended by now.
        self.driver.advance(entry)
        state = entry.state
        machine.check_claim(state, pending=bool(entry.pending))
        if state.wake_id is None:
            state = self.driver.next_wake(entry, state)
        state = machine.claim(state, worker, self._clock.now_ms())
        self.driver.commit(entry, state)
        streams, _ = bodies.snapshot(entry, self.driver.streams, self.settings.wake_streams_max)
        body = {
            "wake_id": state.wake_id,
            "generation": state.generation,
            "token": self._tokens.make(state),
            "streams": streams,
            "lease_ttl_ms": state.lease_ttl_ms,
        }
        return SubscriptionResponse(200, bodies.encode(body))

    def callback(self, subscription_id: str, token: str, request: WakeBody) -> SubscriptionResponse:
        """Acknowledge on behalf of the receiver of a webhook."""
        return self._acknowledge(self._fenced(subscription_id, "webhook", token, request), request)

    def ack(self, subscription_id: str, token: str, request: WakeBody) -> SubscriptionResponse:
        """Acknowledge on behalf of the worker that has claimed the wake."""
        return self._acknowledge(
            self._fenced(subscription_id, "pull-wake", token, request), request
        )

    def _acknowledge(self, entry: SubscriptionEntry, request: WakeBody) -> SubscriptionResponse:
        links = machine.acknowledge(entry.links, request.offsets(), self.driver.streams.tail)
        state = machine.extend(entry.state, self._clock.now_ms())
        more = False
        if request.done:
            more = self.driver.conclude(entry, machine.end_wake(state), links)
        else:
            self.driver.commit(entry, state, links)
        return SubscriptionResponse(200, bodies.encode({"ok": True, "next_wake": more}))

    def release(self, subscription_id: str, token: str, request: WakeBody) -> SubscriptionResponse:
        """End a worker's claim before its lease does."""
        entry = self._fenced(subscription_id, "pull-wake", token, request)
        self.driver.conclude(entry, machine.end_wake(entry.state), {})
        return SubscriptionResponse(204)

    def _fenced(
        self, subscription_id: str, wanted: str, token: str, request: WakeBody
    ) -> SubscriptionEntry:
        """The subscription, if the request names its current wake."""
        entry = self._entry(subscription_id)
        machine.check_type(entry.state, wanted)
        self.driver.advance(entry)
        generation = self._tokens.generation(token, entry.state)
        machine.check_fence(entry.state, generation, request.wake_id, request.generation)
        return entry


def open_subscriptions(
    shard: Shard, clock: Clock, settings: WebhookSettings, data_dir: Path | None
) -> Subscriptions:
    """The subscriptions of a shard; without a data directory the keys last as long as the process.

    Call `shard.recover()`, `recover()`, `shard.start()`, `start()` in this order; at the end
    `stop()`, and `close()` once nothing is pending.
    """
    policy = TargetPolicy(settings.allow)
    keys = KeyStore(None if data_dir is None else data_dir / KEYS_FILE, clock)
    signer = WebhookSigner(keys, clock)
    sender = HttpWebhookSender(policy, signer, concurrent_max=settings.concurrent_max)
    return Subscriptions(shard, clock, settings, policy, sender, signer, WakeTokens(keys, clock))
