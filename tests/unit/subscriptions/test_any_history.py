"""Whatever happens, in whatever order: no wake is lost, one holder at a time, nothing goes back.

One subscription of each type watches the same few streams, which are appended to, deleted and
created anew, while the log fails, the server is killed, and workers do what workers do.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.subscriptions.delivery import DeliveryResult
from holdfast.subscriptions.machine import decode_link, decode_subscription, parse_link_key
from tests.thorough import examples
from tests.unit.engine.driver import COMMITTED, FAILED
from tests.unit.subscriptions.harness import Harness, tails

PATHS = st.sampled_from(["events/a", "events/b", "events/c"])
PULL, HOOK = "pull", "hook"
LEASE_S = 2


class Histories(RuleBasedStateMachine):
    """A server, its clients, and what they remember."""

    def __init__(self):
        super().__init__()
        self.harness = Harness()
        self.harness.create_stream("wake/pool")
        lease = {"pattern": "events/*", "lease_ttl_ms": LEASE_S * 1000}
        self.harness.create(PULL, type="pull-wake", wake_stream="wake/pool", **lease)
        self.harness.create(HOOK, type="webhook", **lease)
        # Wakes that somebody was given, oldest first, and the ids of generations.
        self.claims = []
        self.hooks = []
        self.ids = {}
        self.acked = {}

    # Streams.

    @rule(path=PATHS)
    def append(self, path):
        harness = self.harness
        if harness.engine.exists(path):
            harness.engine.append(b"1", path, "application/json")
        else:
            harness.engine.create(path, "application/json", body=b"1")

    @rule(path=PATHS)
    def create_empty(self, path):
        self.harness.engine.create(path, "application/json")

    @rule(path=PATHS)
    def delete(self, path):
        self.harness.engine.delete(path)

    # The log, the clock, the machine.

    @rule()
    def commit_one(self):
        self.answer_log(COMMITTED)

    @rule()
    def commit_all(self):
        self.harness.engine.commit()

    @rule()
    def fail(self):
        self.answer_log(FAILED)

    def answer_log(self, outcome):
        self.harness.clock.run()
        if self.harness.engine.log.under_way is not None:
            self.harness.engine.answer(outcome)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.1, 2.5, 10]))
    def wait(self, seconds):
        self.harness.clock.advance(seconds)

    @rule()
    def kill(self):
        self.harness = self.harness.restart()

    # Workers.

    @rule(worker=st.sampled_from(["one", "two"]))
    def claim(self, worker):
        said = self.harness.claim(worker, subscription=PULL)
        if said.status == 200:
            self.remember(PULL, said.json)
            self.claims.append(said.json)
            assert self.harness.show(PULL)["holder"] == worker
        else:
            assert said.code in {"ALREADY_CLAIMED", "NO_PENDING_WORK"} or said.status == 503

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), done=st.booleans())
    def ack(self, data, done):
        self.speak(PULL, "ack", data.draw(st.sampled_from(self.claims[-3:])), data, done=done)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data):
        wake = data.draw(st.sampled_from(self.claims[-3:]))
        said = self.harness.speak("release", wake, subscription=PULL)
        assert said.status in {204, 409, 503}

    @precondition(lambda self: self.harness.courier.under_way)
    @rule(
        receipt=st.sampled_from(
            [DeliveryResult(), DeliveryResult(done=True), DeliveryResult("Refused.")]
        )
    )
    def receive(self, receipt):
        body, take = self.harness.courier.under_way.pop(0)
        self.remember(HOOK, body)
        self.hooks.append(body)
        take(receipt)

    @precondition(lambda self: self.hooks)
    @rule(data=st.data(), done=st.booleans())
    def callback(self, data, done):
        self.speak(HOOK, "callback", data.draw(st.sampled_from(self.hooks[-3:])), data, done=done)

    def speak(self, subscription, method, wake, data, *, done):
        acks = {
            path: tail for path, tail in tails(wake).items() if data.draw(st.booleans(), label=path)
        }
        said = self.harness.speak(method, wake, acks, done=done, subscription=subscription)
        # The generation at the time of the request may be known only now: but nobody who speaks
        # of an earlier one is ever heard.
        current = self.harness.show(subscription)["generation"]
        assert said.status in {200, 409, 503}
        if said.status == 200:
            assert current - wake["generation"] in ({0, 1} if done else {0})
        elif wake["generation"] < current:
            assert said.code == "FENCED" or said.status == 503

    def remember(self, subscription, wake):
        """A generation is one wake, and the next one is another."""
        key = subscription, wake["generation"]
        assert self.ids.setdefault(key, wake["wake_id"]) == wake["wake_id"]
        assert len(set(self.ids.values())) == len(self.ids)

    # What always holds.

    @invariant()
    def generations_and_acknowledgements_never_go_back(self):
        if self.harness.engine.log.under_way is not None:
            return
        for subscription in (PULL, HOOK):
            entry = self.harness.service.driver.registry.entries[subscription]
            last = self.acked.get((subscription, ""), 0)
            assert entry.state.generation >= last
            for name, link in entry.links.items():
                key = subscription, (name, link.number)
                assert link.acked >= self.acked.get(key, -1)

    @invariant()
    def what_is_durable_is_remembered(self):
        """Only that: what is pending may come to nothing."""
        documents = self.harness.engine.shard.documents
        for _, value in documents.items("subscription/"):
            state = decode_subscription(value)
            key = state.id, ""
            assert state.generation >= self.acked.get(key, 0)
            self.acked[key] = state.generation
        for key, value in documents.items("link/"):
            subscription, name = parse_link_key(key)
            link = decode_link(value)
            known = subscription, (name, link.number)
            assert link.acked >= self.acked.get(known, -1)
            self.acked[known] = link.acked

    def teardown(self):
        """Once everything works again, everything gets processed."""
        harness = self.harness
        for _ in range(200):
            harness.engine.commit()
            harness.clock.advance(1)
            harness.engine.commit()
            while harness.courier.under_way:
                harness.answer(done=True)
            if harness.events("wake/pool"):
                self.work()
        offered = {event["generation"] for event in harness.events("wake/pool")}
        assert harness.show(PULL)["generation"] in offered | {0} or self.claims
        for subscription in (PULL, HOOK):
            shown = harness.show(subscription)
            assert (shown["pending"], shown["status"]) == (0, "active")
            acked = harness.acked(subscription)
            for path in ("events/a", "events/b", "events/c"):
                if harness.engine.exists(path) and harness.tail(path) != f"{0:020d}":
                    assert acked[path] == harness.tail(path)

    def work(self):
        """Do what a worker does that watches the wake stream: claim only what was offered."""
        harness = self.harness
        offered = harness.events("wake/pool")[-1]["generation"]
        if harness.show(PULL)["generation"] != offered:
            return
        said = harness.claim(subscription=PULL)
        if said.status == 200:
            self.remember(PULL, said.json)
            self.claims.append(said.json)
            harness.speak("ack", said.json, tails(said.json), done=True, subscription=PULL)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
