"""Whatever is flushed, evicted, loaded or restarted: requests are answered as without a tier."""

import random
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.writes import StreamAppended, StreamCreated
from holdfast.errors import BucketNotEmptyError, HoldfastError
from tests.memory_directory import memory_directory
from tests.producer_states import known_producers
from tests.thorough import examples
from tests.unit.engine.driver import FAILED, TEXT, Driver
from tests.unit.engine.tiered import Tiered

NAMES = [f"{'bc'[at // 5]}/{at}" for at in range(8)]
ACTIONS = (
    ["create"] * 4
    + ["append"] * 8
    + ["produce", "close", "delete", "delete"]
    + ["commit"] * 5
    + ["fail_batch", "advance", "advance"]
    + ["begin", "begin", "finish", "finish", "finish_unheard", "fail_flush"]
    + ["look"] * 3
    + ["restart"]
)

# The same with streams and buckets that have to do with one another.
RELATED = [
    *ACTIONS,
    *["fork"] * 6,
    *["publish"] * 4,
    *["delete"] * 3,
    *["create_bucket", "delete_bucket", "documents"],
]
BUCKETS = ("b", "c", "unused")


FIELDS = (
    "tail", "closed", "closer", "seq", "last_write_ms", "start", "earliest", "forks",
)  # fmt: skip


class Pair:
    """A shard with a tier and one without, which are asked the same."""

    def __init__(self, path, seed):
        self.chance = random.Random(seed)
        self.tiered = Tiered(path, streams_cached_max=2)
        self.plain = Driver()
        self.asked = []
        self.bodies = 0

    def both(self, call):
        """Ask both; what they say is compared once all is durable."""
        self.asked.append((call(self.tiered), call(self.plain)))

    @property
    def name(self):
        return self.chance.choice(NAMES)

    @property
    def body(self):
        self.bodies += 1
        return b"<%d>" % self.bodies

    # Requests.

    def create(self):
        name, body = self.name, self.body
        ttl_s = self.chance.choice([None, None, 5, 30])
        self.both(lambda driver: driver.create(name, TEXT, body=body, ttl_s=ttl_s))

    def append(self):
        name, body = self.name, self.body
        self.both(lambda driver: driver.append(body, name=name))

    def produce(self):
        name, body, seq = self.name, self.body, self.chance.randrange(3)
        self.both(lambda driver: driver.produce(seq, body, name=name))

    def close(self):
        name = self.name
        self.both(lambda driver: driver.append(name=name, close=True))

    def delete(self):
        name = self.name
        self.both(lambda driver: driver.delete(name))

    def fork(self):
        name, source, body = self.name, self.name, self.body
        offset = self.chance.choice([None, None, self.chance.randrange(40)])
        self.both(lambda driver: driver.fork(name, source, offset, body=body))

    def publish(self):
        """Of the published stream of this name, if there is one."""
        self.commit()
        name = self.name
        if self.plain.exists(name) and self.tiered.exists(name):
            stream = self.plain.shard.find(name)
            offset = self.chance.choice([stream.tail, *stream.ends, stream.earliest])
            self.both(lambda driver: driver.publish(offset, name))

    def create_bucket(self):
        name = self.chance.choice(BUCKETS)
        self.both(lambda driver: driver.create_bucket(name))

    def delete_bucket(self):
        name = self.chance.choice(BUCKETS)
        self.both(lambda driver: driver.delete_bucket(name))

    def documents(self):
        changes = {self.chance.choice("xyz"): self.chance.choice([b"1", b"2", None])}
        self.both(lambda driver: driver.documents(**changes))

    # The log and the clock.

    def commit(self):
        self.tiered.commit()
        self.plain.commit()
        for one, other in self.asked:
            assert _said(one.outcome) == _said(other.outcome)
        self.asked.clear()

    def fail_batch(self):
        for driver in (self.tiered, self.plain):
            driver.clock.run()
            if driver.log.under_way is not None:
                driver.answer(FAILED)
        self.commit()

    def advance(self):
        for _ in range(self.chance.choice([1, 1, 4, 12])):
            self.commit()
            self.tiered.clock.advance(0.9)
            self.plain.clock.advance(0.9)
        self.commit()

    # What only the tier has.

    def begin(self):
        if not self.tiered.tier.flushing:
            self.tiered.clock.run()
            self.tiered.tier.flush(lambda _: None)
            self.tiered.clock.run()
            self.plain.clock.run()

    def finish(self):
        if self.tiered.worker.asked:
            self.tiered.finish_flush()
            self.plain.clock.run()

    def fail_flush(self):
        if self.tiered.worker.asked:
            self.tiered.worker.fail()

    def finish_unheard(self):
        if self.tiered.worker.asked:
            self.tiered.worker.fail(after_effect=True)

    def restart(self):
        self.commit()
        self.tiered = self.tiered.restart()
        self.plain = self.plain.restart()

    def look(self):
        """Everything that can be seen is the same."""
        self.commit()
        for name in NAMES:
            assert self.tiered.exists(name) == self.plain.exists(name)
            if self.plain.exists(name):
                one, other = self.tiered.shard.find(name), self.plain.shard.find(name)
                for field in FIELDS:
                    assert getattr(one, field) == getattr(other, field)
                known = known_producers(self.tiered.shard.catalog, one)
                assert known == known_producers(None, other)
                assert self.tiered.content(name) == self.plain.content(name)
        self.commit()
        one, other = self.tiered.state, self.plain.shard.state
        assert (one.streams, one.stored_bytes) == (other.streams, other.stored_bytes)
        assert (one.buckets, one.documents) == (other.buckets, other.documents)
        for prefix in ("b/", "c/", "b/1", "unused/"):
            after = self.chance.choice(["", *NAMES])
            assert self.tiered.listed(prefix, after) == self.plain.listed(prefix, after)

    def flush_all(self):
        self.commit()
        while self.tiered.tier.flushing or self.tiered.state.generation.records:
            self.begin()
            self.advance()
            self.finish()


def _said(outcome):
    if isinstance(outcome, BucketNotEmptyError):
        # It says how many streams there are; an expired one that is not in memory goes later.
        return type(outcome)
    if isinstance(outcome, HoldfastError):
        return type(outcome), outcome.message
    if isinstance(outcome, StreamAppended | StreamCreated):
        # Renewals that only one of the two has to record move the numbers.
        return msgspec.structs.replace(outcome, number=0)
    return outcome


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32), st.integers(40, 200), st.sampled_from([ACTIONS, RELATED, RELATED]))
def test_answers_bytes_and_counts_are_the_same(seed, length, actions):
    with memory_directory() as path:
        pair = Pair(Path(path), seed)
        for _ in range(length):
            getattr(pair, pair.chance.choice(actions))()
        pair.look()
        pair.flush_all()
        totals, state = pair.tiered.catalog.totals(), pair.tiered.state
        assert totals.streams == state.streams
        if actions is ACTIONS:
            assert totals.stored_bytes == state.stored_bytes
        assert (state.removed, state.removed_numbers) == ({}, set())
        assert pair.tiered.log.batches == []
        assert pair.tiered.tier.cost_bytes == 0
        pair.look()
        pair.tiered.close()
