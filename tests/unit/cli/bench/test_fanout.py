"""Messages with stamps in them: found in every framing, counted exactly."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.bench.fanout import SIZE_BYTES_MIN, StampReader, Tally, stamped
from holdfast.cli.bench.messages import StreamWritten

TYPES = [
    "text/plain",
    "application/octet-stream",
    "application/json",
    "Application/JSON; charset=utf-8",
]


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def tally_of(*numbers):
    tally = Tally()
    for number in numbers:
        tally.take(number)
    return tally


@pytest.mark.parametrize("content_type", TYPES)
@pytest.mark.parametrize("size_bytes", [SIZE_BYTES_MIN, 256])
def test_a_message_has_its_size(content_type, size_bytes):
    assert len(stamped(999_999_999, 1e9, content_type, size_bytes)) == size_bytes


@given(places=st.lists(st.integers(0, 10_000), max_size=20))
def test_stamps_are_found_wherever_the_content_is_cut(places):
    content = b"".join(stamped(number, number + 0.5, "text/plain", 40) for number in range(9))
    reader = StampReader()
    found = [stamp for piece in cut(content, places) for stamp in reader.feed(piece)]
    assert found == [(number, number + 0.5) for number in range(9)]


@pytest.mark.parametrize("content_type", TYPES[2:])
def test_stamps_are_found_in_a_json_array(content_type):
    values = [stamped(number, 1.0, content_type, 64) for number in range(3)]
    content = b"[\n" + b", ".join(values) + b"]"
    json.loads(content)
    assert [number for number, _ in StampReader().feed(content)] == [0, 1, 2]


class TestTally:
    def test_all_in_order_is_exact(self):
        tally = tally_of(0, 1, 2)
        assert (tally.duplicated, tally.reordered, tally.lost(StreamWritten(3))) == (0, 0, 0)

    def test_what_is_missing_is_lost(self):
        tally = tally_of(0, 2)
        assert tally.lost(StreamWritten(3)) == 1
        assert tally.lost(StreamWritten(5)) == 3

    def test_what_may_not_be_there_is_not_lost(self):
        assert tally_of(0, 2).lost(StreamWritten(4, [1, 3])) == 0

    def test_what_comes_later_is_reordered_and_not_lost(self):
        tally = tally_of(0, 2, 1)
        assert (tally.reordered, tally.lost(StreamWritten(3))) == (1, 0)

    def test_what_comes_twice_is_duplicated(self):
        tally = tally_of(0, 1)
        assert not tally.take(1)
        assert tally.duplicated == 1

    def test_what_comes_again_after_a_break_is_replayed(self):
        tally = tally_of(0, 1)
        tally.expect_replay()
        tally.take(1)
        tally.take(2)
        tally.take(2)
        assert (tally.replayed, tally.duplicated) == (1, 1)
