"""Idempotent producers: whatever is sent, each accepted sequence is applied exactly once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.errors import InvalidRequestError, ProducerFencedError, ProducerGapError
from holdfast.protocol.producer import (
    ID_BYTES_MAX,
    NUMBER_MAX,
    Producer,
    ProducerState,
    is_duplicate,
    parse_producer,
)
from tests.thorough import examples


class Producers(RuleBasedStateMachine):
    """Sessions of one producer id, retrying and racing, against one stream.

    The model knows only what was applied: a list of (epoch, seq). It derives what the stream must
    answer from that list, not from a last pair.
    """

    def __init__(self):
        super().__init__()
        self.state = None
        self.applied = []

    def send(self, epoch, seq):
        """What the stream answers; an accepted request is applied."""
        producer = Producer(b"p", epoch, seq)
        try:
            if is_duplicate(self.state, producer):
                return "duplicate"
        except ProducerFencedError as error:
            return ("fenced", error.epoch)
        except ProducerGapError as error:
            return ("gap", error.expected, error.received)
        except InvalidRequestError:
            return "malformed"
        self.state = ProducerState(epoch, seq)
        self.applied.append((epoch, seq))
        return "accepted"

    def expected(self, epoch, seq):
        """What the model says the answer must be."""
        latest = max((epoch for epoch, _ in self.applied), default=None)
        if latest is None:
            return "accepted" if seq == 0 else ("gap", 0, seq)
        if epoch < latest:
            return ("fenced", latest)
        if epoch > latest:
            return "accepted" if seq == 0 else "malformed"
        if (epoch, seq) in self.applied:
            return "duplicate"
        following = sum(1 for at, _ in self.applied if at == latest)
        return "accepted" if seq == following else ("gap", following, seq)

    @rule(epoch=st.integers(0, 3), seq=st.integers(0, 6))
    def send_anything(self, epoch, seq):
        expected = self.expected(epoch, seq)
        assert self.send(epoch, seq) == expected

    @rule()
    def send_the_next(self):
        epoch, seq = self.applied[-1] if self.applied else (0, -1)
        assert self.send(epoch, seq + 1) == "accepted"

    @rule(data=st.data())
    def retry(self, data):
        if self.applied:
            epoch, seq = data.draw(st.sampled_from(self.applied))
            latest = self.applied[-1][0]
            expected = "duplicate" if epoch == latest else ("fenced", latest)
            assert self.send(epoch, seq) == expected

    @rule()
    def claim_the_next_epoch(self):
        epoch = self.applied[-1][0] + 1 if self.applied else 0
        assert self.send(epoch, 0) == "accepted"

    @invariant()
    def every_sequence_is_applied_once_and_in_order(self):
        assert len(set(self.applied)) == len(self.applied)
        assert self.applied == sorted(self.applied)
        for epoch in {epoch for epoch, _ in self.applied}:
            seqs = [seq for at, seq in self.applied if at == epoch]
            assert seqs == list(range(len(seqs)))


TestProducers = Producers.TestCase
TestProducers.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestProducers.pytestmark = [pytest.mark.spec("base 5.2.1-11", "base 5.2.1-14")]


@given(st.integers(0, NUMBER_MAX))
def test_new_producer_may_start_with_any_epoch(epoch):
    assert is_duplicate(None, Producer(b"p", epoch, 0)) is False


@given(st.integers(1, NUMBER_MAX))
def test_new_producer_must_start_with_sequence_zero(seq):
    with pytest.raises(ProducerGapError) as caught:
        is_duplicate(None, Producer(b"p", 0, seq))
    assert (caught.value.expected, caught.value.received) == (0, seq)


@pytest.mark.spec("base 5.2.1-12", "base 5.2.1-15")
def test_fenced_producer_learns_the_epoch_and_can_claim_the_next():
    state = ProducerState(7, 41)
    with pytest.raises(ProducerFencedError) as caught:
        is_duplicate(state, Producer(b"p", 6, 42))
    assert is_duplicate(state, Producer(b"p", caught.value.epoch + 1, 0)) is False


@pytest.mark.spec("base 5.2.1-13")
def test_gap_names_what_was_expected():
    with pytest.raises(ProducerGapError) as caught:
        is_duplicate(ProducerState(7, 41), Producer(b"p", 7, 50))
    assert (caught.value.expected, caught.value.received) == (42, 50)


@pytest.mark.spec("base 5.2.1-4", "base 5.2.1-5")
@given(st.binary(min_size=1, max_size=ID_BYTES_MAX), st.integers(0, NUMBER_MAX))
def test_headers_are_parsed(producer_id, number):
    raw = b"%d" % number
    assert parse_producer(producer_id, raw, raw) == Producer(producer_id, number, number)


def test_no_headers_are_no_producer():
    assert parse_producer(None, None, None) is None


@pytest.mark.spec("base 5.2.1-1", "base 5.2.1-2")
@pytest.mark.parametrize(
    ("producer_id", "epoch", "seq"),
    [
        (b"p", None, None),
        (None, b"0", None),
        (None, None, b"0"),
        (b"p", b"0", None),
        (b"p", None, b"0"),
        (None, b"0", b"0"),
    ],
)
def test_some_headers_without_the_others_are_refused(producer_id, epoch, seq):
    with pytest.raises(InvalidRequestError, match="together"):
        parse_producer(producer_id, epoch, seq)


@pytest.mark.spec("base 5.2.1-3")
@pytest.mark.parametrize("producer_id", [b"", b"x" * (ID_BYTES_MAX + 1)])
def test_id_has_a_length(producer_id):
    with pytest.raises(InvalidRequestError, match="Producer-Id"):
        parse_producer(producer_id, b"0", b"0")


@pytest.mark.spec("base 5.2.1-4", "base 5.2.1-5")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"-1",
        b"+1",
        b"1.0",
        b"1e3",
        b" 1",
        b"0x1",
        b"one",
        b"\xb2",
        b"%d" % (NUMBER_MAX + 1),
        b"9" * 5000,
    ],
)
def test_numbers_are_whole_and_bounded(raw):
    with pytest.raises(InvalidRequestError, match="Producer-Epoch"):
        parse_producer(b"p", raw, b"0")
    with pytest.raises(InvalidRequestError, match="Producer-Seq"):
        parse_producer(b"p", b"0", raw)
