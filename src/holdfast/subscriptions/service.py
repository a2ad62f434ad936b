"""Subscriptions as their clients see them: one method for each request.

What they return holds in memory only, and may still come to nothing. So they are called through
`respond`, which answers once everything that an answer rests on is durable.
"""

from __future__ import annotations

import contextlib
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
from holdfast.subscriptions import machine, views
from holdfast.subscriptions.driver import Driver
from holdfast.subscriptions.model import BEFORE_FIRST, EXPLICIT, GLOB, Link, Step, Subscription
from holdfast.subscriptions.recovery import restore
from holdfast.subscriptions.registry import Entry
from holdfast.subscriptions.requests import check_not_wake_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.clock import Clock
    from holdfast.engine.commit import Reply
    from holdfast.engine.shard import Shard
    from holdfast.net.targets import TargetPolicy
    from holdfast.settings import WebhookSettings
    from holdfast.subscriptions.delivery import Courier
    from holdfast.subscriptions.requests import Config, WakeBody
    from holdfast.subscriptions.signing import Signer
    from holdfast.subscriptions.tokens import Tokens


class Answer(NamedTuple):
    """What a request is answered with: a status, and a JSON body if there is one."""

    status: int
    body: bytes = b""


class Subscriptions:
    """All subscriptions of a shard."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        settings: WebhookSettings,
        policy: TargetPolicy,
        courier: Courier,
        signer: Signer,
        tokens: Tokens,
    ) -> None:
        self._shard = shard
        self._clock = clock
        self.settings = settings
        self._policy = policy
        self._courier = courier
        self.signer = signer
        self._tokens = tokens
        self.driver = Driver(
            shard,
            clock,
            courier,
            tokens,
            timeout_s=settings.timeout_s,
            wake_streams_max=settings.wake_streams_max,
        )
        self._ledger = self.driver.ledger
        self._entries = self.driver.registry.entries
        self._stale: list[str] = []

    # Life.

    def recover(self) -> int:
        """Take up what an earlier server left, and say how many subscriptions that are.

        For a thread, once the shard is recovered and before `start`.
        """
        self._stale = restore(self.driver.registry, self.driver.streams, self._shard.documents)
        if self._entries:
            # Better to find out now that they cannot be read.
            _ = self.signer.kid
        return len(self._entries)

    def start(self) -> None:
        """Wake, deliver and expire from now on; the shard is started before this."""
        if self._stale:
            with contextlib.suppress(HoldfastError):
                changes = dict.fromkeys(self._stale)
                self._shard.documents.commit(changes, lambda _context, _outcome: None, None)
        if self._entries:
            self.driver.watch()
        self.driver.start()

    def stop(self) -> None:
        """Start nothing more; everything that is under way goes on after the next start."""
        self.driver.stop()

    async def close(self) -> None:
        """Wait for deliveries that were given up; after `stop`."""
        await self._courier.close()

    # Requests.

    def respond(
        self, subscription_id: str | None, reply: Reply, context: Any, act: Callable[[], Answer]
    ) -> None:
        """Do something with a subscription, or all, and answer once what it rests on is durable.

        `act` calls one of the methods below; `reply(context, outcome)` gets what it returned, or
        the HoldfastError that it raised or that kept it from becoming durable.
        """
        outcome: Answer | HoldfastError
        self.driver.catch_up()
        try:
            outcome = act()
        except HoldfastError as error:
            outcome = error
        self._ledger.respond(subscription_id, reply, context, outcome)

    def _entry(self, subscription_id: str) -> Entry:
        entry = self._entries.get(subscription_id)
        if entry is None:
            raise SubscriptionNotFoundError(subscription_id)
        return entry

    def _shown(self, status: int, entry: Entry, after: str = "", limit: int = 0) -> Answer:
        limit = limit or self.settings.wake_streams_max
        return Answer(status, views.encode(views.whole(entry, self.signer.kid, after, limit)))

    def show(self, subscription_id: str, after: str, limit: int) -> Answer:
        """A subscription, and a page of its streams: those with names behind `after`."""
        return self._shown(200, self._entry(subscription_id), after, limit)

    def listing(self, after: str, limit: int) -> Answer:
        """A page of subscriptions, in the order of their ids."""
        ids = sorted(each for each in self._entries if each > after)
        kid = self.signer.kid
        body = {
            "subscriptions": [views.summary(self._entries[each], kid) for each in ids[:limit]],
            "next_after": ids[limit - 1] if len(ids) > limit else None,
        }
        return Answer(200, views.encode(body))

    def create(self, subscription_id: str, config: Config, base_url: str) -> Answer:
        """Create a subscription, or confirm that it is there as asked for."""
        existing = self._entries.get(subscription_id)
        if existing is not None:
            if existing.state.config_hash != config.hash():
                raise SubscriptionExistsError(
                    f"The subscription {subscription_id!r} exists with another configuration."
                )
            return self._shown(200, existing)
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
        # Keys that cannot be written are found before anything depends on them.
        _ = self.signer.kid
        entry = Entry(state)
        self._ledger.commit(entry, Step(state, self._first_links(entry, config.streams)))
        self.driver.watch()
        return self._shown(201, entry)

    def _check_allowed(self, config: Config) -> None:
        if config.webhook_url is not None:
            try:
                self._policy.check_url(config.webhook_url)
            except OutboundRefusedError as error:
                raise WebhookUrlRejectedError(error.message) from None
        if len(self._entries) >= self.settings.subscriptions_max:
            raise QuotaExceededError(
                f"There are {len(self._entries)} subscriptions, as many as this server takes."
            )

    def _first_links(self, entry: Entry, names: Iterable[str]) -> dict[str, Link]:
        """Links at the present tails: a subscription starts with what comes after it."""
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

    def delete(self, subscription_id: str) -> Answer:
        """Delete a subscription; one that is not there is deleted already."""
        entry = self._entries.get(subscription_id)
        if entry is not None:
            self._ledger.commit(entry, Step(None))
        return Answer(204)

    def add_streams(self, subscription_id: str, names: tuple[str, ...]) -> Answer:
        """Link streams explicitly."""
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
        return Answer(204)

    def remove_stream(self, subscription_id: str, name: str) -> Answer:
        """Remove an explicit link; what the pattern matches stays linked."""
        entry = self._entry(subscription_id)
        link = entry.links.get(name)
        if link is not None and link.kinds & EXPLICIT:
            stays = link.number and entry.concerns(name)
            self._ledger.commit(
                entry, Step(entry.state, {name: link.with_kinds(GLOB) if stays else None})
            )
            self.driver.advance(entry)
        return Answer(204)

    def claim(self, subscription_id: str, worker: str) -> Answer:
        """Give the wake to a worker, unless another one has it."""
        entry = self._entry(subscription_id)
        # A lease that has ended by now is nobody's.
        self.driver.advance(entry)
        state = entry.state
        machine.check_claim(state, pending=bool(entry.pending))
        if state.wake_id is None:
            state = self.driver.next_wake(entry, state)
        state = machine.claim(state, worker, self._clock.now_ms())
        self.driver.commit(entry, state)
        streams, _ = views.snapshot(entry, self.driver.streams, self.settings.wake_streams_max)
        body = {
            "wake_id": state.wake_id,
            "generation": state.generation,
            "token": self._tokens.make(state),
            "streams": streams,
            "lease_ttl_ms": state.lease_ttl_ms,
        }
        return Answer(200, views.encode(body))

    def callback(self, subscription_id: str, token: str, asked: WakeBody) -> Answer:
        """Hear what the receiver of a webhook has to say."""
        return self._acknowledge(self._fenced(subscription_id, "webhook", token, asked), asked)

    def ack(self, subscription_id: str, token: str, asked: WakeBody) -> Answer:
        """Hear what the worker that has claimed has to say."""
        return self._acknowledge(self._fenced(subscription_id, "pull-wake", token, asked), asked)

    def _acknowledge(self, entry: Entry, asked: WakeBody) -> Answer:
        links = machine.acknowledge(entry.links, asked.offsets(), self.driver.streams.tail)
        state = machine.extend(entry.state, self._clock.now_ms())
        more = False
        if asked.done:
            more = self.driver.conclude(entry, machine.end_wake(state), links)
        else:
            self.driver.commit(entry, state, links)
        return Answer(200, views.encode({"ok": True, "next_wake": more}))

    def release(self, subscription_id: str, token: str, asked: WakeBody) -> Answer:
        """Take the wake back from a worker that does not want it."""
        entry = self._fenced(subscription_id, "pull-wake", token, asked)
        self.driver.conclude(entry, machine.end_wake(entry.state), {})
        return Answer(204)

    def _fenced(self, subscription_id: str, wanted: str, token: str, asked: WakeBody) -> Entry:
        """The subscription, if the request speaks of its present wake."""
        entry = self._entry(subscription_id)
        machine.check_type(entry.state, wanted)
        self.driver.advance(entry)
        generation = self._tokens.generation(token, entry.state)
        machine.check_fence(entry.state, generation, asked.wake_id, asked.generation)
        return entry
