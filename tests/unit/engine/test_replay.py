"""Replay: after any history the log gives back exactly the state that was live."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.writes import Deleted, StreamAppended, StreamCreated
from holdfast.errors import HoldfastError, LogCorruptError
from holdfast.log.interface import ReplayedBatch
from holdfast.protocol.producer import Producer
from holdfast.testing import FakeClock
from tests.thorough import examples
from tests.unit.engine.driver import COMMITTED, FAILED, JSON, TEXT, UNKNOWN, Driver, dump

# Where a record has its flags, and the bytes that are for later use.
FLAGS_AT, RESERVED_AT = 5, 6

names = st.sampled_from(["b/1", "b/2", "b/3"])
producers = st.none() | st.builds(
    Producer,
    st.sampled_from([b"p", b"q"]),
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from([b"", b"digest-1", b"digest-2"]),
)
seqs = st.none() | st.sampled_from([b"1", b"2", b"3"])
media = st.sampled_from([TEXT, TEXT, JSON])
bodies = st.sampled_from([b"", b"1", b"[2, 3]", b"{}"])
lives = st.sampled_from([{}, {}, {"ttl_s": 3}, {"expires_at_ms": 1_800_000_010_000}])

requests = st.one_of(
    st.tuples(st.just("create"), names, media, bodies, st.booleans(), producers, seqs, lives),
    st.tuples(st.just("append"), names, media, bodies, st.booleans(), producers, seqs),
    st.tuples(st.just("append"), names, media, bodies, st.just(False), producers, seqs),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("read"), names),
)
steps = st.one_of(
    requests,
    requests,
    requests,
    st.tuples(st.just("loop")),
    st.tuples(st.just("advance"), st.sampled_from([0.2, 1.0, 2.5])),
    st.tuples(st.just("log"), st.sampled_from([COMMITTED, COMMITTED, COMMITTED, FAILED, UNKNOWN])),
)


class Model:
    """What the answers say there is: a handful of lines that know nothing of batches or records."""

    def __init__(self):
        self.streams = {}

    def apply(self, name, body, outcome):
        if isinstance(outcome, Deleted):
            del self.streams[name]
        elif isinstance(outcome, StreamCreated) and outcome.created:
            self.streams[name] = [body, outcome.closed]
        elif isinstance(outcome, StreamAppended):
            content, closed = self.streams[name]
            added = body if outcome.added else b""
            assert len(content + added) == outcome.tail
            self.streams[name] = [content + added, closed or outcome.closed]


def stored_form(body, content_type):
    """By hand, for the few bodies used here."""
    if content_type != JSON or not body:
        return body
    return {b"1": b"1\x1e", b"[2, 3]": b"2\x1e3\x1e", b"{}": b"{}\x1e"}[body]


class History:
    """Runs steps, and knows in the order of the requests what each was answered."""

    def __init__(self, **limits):
        self.driver = Driver(**limits)
        self.asks = []

    def run(self, step):
        kind, *args = step
        getattr(self, f"do_{kind}")(*args)

    def do_create(self, name, content_type, body, closes, producer, seq, life):
        ask = self.driver.create(
            name, content_type, body=body, close=closes, producer=producer, seq=seq, **life
        )
        self.asks.append((ask, name, stored_form(body, content_type)))

    def do_append(self, name, content_type, body, closes, producer, seq):
        if not body and not closes:
            return
        ask = self.driver.append(body, name, content_type, close=closes, producer=producer, seq=seq)
        self.asks.append((ask, name, stored_form(body, content_type)))

    def do_delete(self, name):
        self.asks.append((self.driver.delete(name), name, b""))

    def do_read(self, name):
        if self.driver.exists(name):
            self.driver.shard.lifetimes.renew(self.driver.shard.find(name))

    def do_loop(self):
        self.driver.clock.run()

    def do_advance(self, seconds):
        # Commits are prompt, so that no answer is lost to the timeout.
        self.driver.commit()
        self.driver.clock.advance(seconds)
        self.driver.commit()

    def do_log(self, outcome):
        self.driver.clock.run()
        if self.driver.log.under_way is None:
            return
        if self.driver.log.settling and outcome is FAILED:
            outcome = COMMITTED
        self.driver.log.answer(outcome, stored=True)

    def model(self):
        model = Model()
        for ask, name, body in self.asks:
            model.apply(name, body, ask.outcome)
        return model


histories = st.lists(steps, max_size=40) | st.lists(steps, min_size=25, max_size=60)
limits = st.sampled_from([{}, {"batch_bytes_max": 1}, {"batch_bytes_max": 120}])


@settings(max_examples=examples(300))
@given(histories, limits)
def test_replay_gives_the_live_state(history_steps, batch_limits):
    history = History(**batch_limits)
    for step in history_steps:
        history.run(step)
    history.driver.commit()
    live = dump(history.driver.shard.state)
    for start_ms in (0, 9_000_000_000_000):
        again = history.driver.restart(clock=FakeClock(start_ms=start_ms))
        assert dump(again.shard.state) == live
        assert again.shard.commits.last_position == history.driver.shard.commits.last_position


@settings(max_examples=examples(300))
@given(histories, limits)
def test_every_answer_is_true_and_nothing_else_happened(history_steps, batch_limits):
    history = History(**batch_limits)
    for step in history_steps:
        history.run(step)
    history.driver.commit()
    expired = history.driver.shard.counters.expirations
    if expired:
        return  # The model knows no clock; see the test above and test_ttl_and_expiry.
    again = history.driver.restart(clock=FakeClock(start_ms=0))
    found = {
        name: [b"".join(stream.chunks), stream.closed]
        for name, stream in again.shard.state.by_name.items()
    }
    assert found == history.model().streams


@given(histories, limits)
def test_every_request_is_answered_once(history_steps, batch_limits):
    history = History(**batch_limits)
    for step in history_steps:
        history.run(step)
    history.driver.commit()
    for ask, *_ in history.asks:
        assert ask.answered
        assert isinstance(ask.outcome, (StreamCreated, StreamAppended, Deleted, HoldfastError))


@pytest.mark.parametrize("at", [FLAGS_AT, RESERVED_AT], ids=["flags", "reserved"])
def test_batch_that_is_sound_but_not_understood_is_refused_in_words(at):
    driver = Driver()
    driver.create("b/1", body=b"x")
    driver.commit()
    batch = driver.log.batches[0]
    body = bytearray(batch.body)
    body[at] |= 0x80
    with pytest.raises(LogCorruptError, match=r"batch 1 .*newer server; nothing was changed"):
        Driver(batches=[ReplayedBatch(batch.position, bytes(body))])
