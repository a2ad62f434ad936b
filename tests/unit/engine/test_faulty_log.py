"""Concurrent producers on a log that fails, hangs and loses track.

Whatever happens, and whenever the process dies: nothing that was answered with success is missing,
nothing that was answered "nothing was stored" is present, everything is in order, and a producer's
retries leave exactly one copy.
"""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.writes import StreamAppended
from holdfast.errors import CommitFailedError, CommitUnknownError, HoldfastError, ProducerGapError
from tests.thorough import examples
from tests.unit.engine.driver import (
    COMMIT_TIMEOUT_S,
    COMMITTED,
    FAILED,
    UNKNOWN,
    Driver,
)

NAMES = ("b/1", "b/2")
PRODUCERS = (b"p", b"q", b"r")
MESSAGE_BYTES = 8


def message(producer_id, seq):
    """A payload that says who sent it, of a fixed size, so that a stream can be taken apart."""
    return b"%b%07d" % (producer_id, seq)


class Clients:
    """Producers that send, retry what is pending or lost, and run ahead of their answers."""

    def __init__(self, driver):
        self.driver = driver
        self.sent = []
        for name in NAMES:
            driver.create(name)
        driver.commit()

    def send(self, name, producer_id, ahead):
        """The next sequence that was not acknowledged, or one a little ahead of it."""
        seq = self.next_seq(name, producer_id) + ahead
        self.sent.append((name, producer_id, seq, self.produce(name, producer_id, seq)))

    def produce(self, name, producer_id, seq):
        """One producer's appends are several messages each, which are stored together or not."""
        body = message(producer_id, seq)
        lengths = [1, 2, 5] if producer_id == b"q" else None
        return self.driver.produce(seq, body, producer_id=producer_id, name=name, lengths=lengths)

    def next_seq(self, name, producer_id):
        acknowledged = [
            seq
            for at, who, seq, ask in self.sent
            if (at, who) == (name, producer_id) and succeeded(ask)
        ]
        return max(acknowledged, default=-1) + 1

    def pending(self):
        return [ask for *_, ask in self.sent if not ask.answered]


def succeeded(ask):
    return ask.answered and isinstance(ask.outcome, StreamAppended)


def surely_refused(ask):
    return (
        ask.answered
        and isinstance(ask.outcome, HoldfastError)
        and not isinstance(ask.outcome, CommitUnknownError)
    )


def contents(driver, name):
    """The messages of a stream, in order."""
    whole = driver.read(name)
    assert len(whole) % MESSAGE_BYTES == 0
    parts = [whole[at : at + MESSAGE_BYTES] for at in range(0, len(whole), MESSAGE_BYTES)]
    return [(part[:1], int(part[1:])) for part in parts]


def check(driver, sent):
    """Everything promised, of what this server has."""
    attempts = defaultdict(list)
    for name, producer_id, seq, ask in sent:
        attempts[name, producer_id, seq].append(ask)
    for name in NAMES:
        found = contents(driver, name)
        for producer_id in PRODUCERS:
            seqs = [seq for who, seq in found if who == producer_id]
            assert seqs == list(range(len(seqs))), "in order, without gaps, exactly once"
        for (at, producer_id, seq), asks in attempts.items():
            if at != name:
                continue
            count = found.count((producer_id, seq))
            if any(succeeded(ask) for ask in asks):
                assert count == 1, "what was acknowledged is there once"
            elif all(surely_refused(ask) for ask in asks):
                assert count == 0, "what was refused is not there"
    for name, producer_id, seq, ask in sent:
        if succeeded(ask) and ask.outcome.added:
            tail = ask.outcome.tail
            there = driver.read(name)[tail - MESSAGE_BYTES : tail]
            assert there == message(producer_id, seq), "it is where its answer says"


steps = st.one_of(
    st.tuples(
        st.just("send"),
        st.sampled_from(NAMES),
        st.sampled_from(PRODUCERS),
        st.sampled_from([0, 0, 0, 1, 2, -1]),
    ),
    st.just(("loop",)),
    st.tuples(
        st.just("answer"),
        st.sampled_from([COMMITTED, COMMITTED, COMMITTED, FAILED, FAILED, UNKNOWN]),
        st.booleans(),
    ),
    st.just(("hang",)),
)
histories = st.lists(steps, max_size=30) | st.lists(steps, min_size=25, max_size=60)
limits = st.sampled_from([{}, {"batch_bytes_max": 1}, {"batch_bytes_max": 150}])


def run(history, driver, clients):
    """Run the steps, checking after each that a crash right now would lose nothing."""
    stored = None
    for kind, *args in history:
        if kind == "send":
            name, producer_id, ahead = args
            if clients.next_seq(name, producer_id) + ahead >= 0:
                clients.send(name, producer_id, ahead)
        elif kind == "loop":
            driver.clock.run()
        elif kind == "hang":
            driver.clock.advance(COMMIT_TIMEOUT_S)
        elif driver.log.under_way is not None:
            outcome, truth = args
            stored = stored if driver.log.settling else truth
            if driver.log.settling and outcome is not UNKNOWN:
                outcome = COMMITTED if stored else FAILED
            driver.log.answer(outcome, stored=stored)
        yield


@settings(max_examples=examples(250))
@given(histories, limits)
def test_crash_at_any_moment_keeps_every_promise(history, batch_limits):
    driver = Driver(**batch_limits)
    clients = Clients(driver)
    for _ in run(history, driver, clients):
        check(driver.restart(), clients.sent)


@settings(max_examples=examples(250))
@given(histories, limits)
def test_live_server_keeps_every_promise(history, batch_limits):
    driver = Driver(**batch_limits)
    clients = Clients(driver)
    for _ in run(history, driver, clients):
        for name in NAMES:
            for who, seq in contents(driver, name):
                assert any((name, who, seq) == sent[:3] for sent in clients.sent)
    settle(driver)
    assert clients.pending() == []
    check(driver, clients.sent)
    check(driver.restart(), clients.sent)


def settle(driver):
    """Bring everything to its end; an unknown outcome becomes what it is."""
    driver.clock.run()
    while driver.log.under_way is not None:
        stored = driver.log.under_way in driver.log.batches
        driver.log.answer(COMMITTED if stored or not driver.log.settling else FAILED)
        driver.clock.run()


@settings(max_examples=examples(150))
@given(histories, limits, st.booleans())
def test_retries_to_the_end_leave_each_message_once(history, batch_limits, crash):
    driver = Driver(**batch_limits)
    clients = Clients(driver)
    for _ in run(history, driver, clients):
        pass
    if crash:
        driver = driver.restart()
    settle(driver)
    for name, producer_id in ((name, who) for name in NAMES for who in PRODUCERS):
        for seq in range(5):
            ask = driver.produce(seq, message(producer_id, seq), producer_id=producer_id, name=name)
            driver.commit()
            assert isinstance(ask.outcome, StreamAppended)
    for name in NAMES:
        found = contents(driver.restart(), name)
        for producer_id in PRODUCERS:
            seqs = [seq for who, seq in found if who == producer_id]
            assert seqs[:5] == list(range(5))
            assert len(set(seqs)) == len(seqs)


def test_retry_of_a_staged_sequence_is_acknowledged_with_the_original():
    driver = Driver()
    clients = Clients(driver)
    for _ in range(3):
        clients.send("b/1", b"p", 0)
    assert len(clients.pending()) == 3
    driver.answer(COMMITTED)
    assert [ask.outcome.added for *_, ask in clients.sent] == [True, False, False]
    check(driver.restart(), clients.sent)


def test_retry_of_a_staged_sequence_fails_with_the_original():
    driver = Driver()
    clients = Clients(driver)
    for ahead in (0, 0, 1, 1, 2):
        clients.send("b/1", b"p", ahead)
    driver.answer(FAILED)
    assert all(isinstance(ask.outcome, CommitFailedError) for *_, ask in clients.sent)
    clients.send("b/1", b"p", 1)
    assert isinstance(clients.sent[-1][-1].outcome, ProducerGapError)
    clients.send("b/1", b"p", 0)
    driver.commit()
    check(driver.restart(), clients.sent)


def test_retry_after_a_timeout_finds_what_became_of_it():
    for stored in (True, False):
        driver = Driver()
        clients = Clients(driver)
        clients.send("b/1", b"p", 0)
        driver.clock.run()
        driver.clock.advance(COMMIT_TIMEOUT_S)
        assert isinstance(clients.sent[0][-1].outcome, CommitUnknownError)
        driver.answer(UNKNOWN, stored=stored)
        driver.answer(COMMITTED if stored else FAILED)
        clients.send("b/1", b"p", 0)
        driver.commit()
        assert clients.sent[-1][-1].outcome.added is not stored
        check(driver.restart(), clients.sent)
        assert contents(driver.restart(), "b/1") == [(b"p", 0)]
