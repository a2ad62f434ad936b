"""Cursors: the interval's number, and always past what a client echoes."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.cursor import (
    EPOCH_MS,
    INTERVAL_S,
    JITTER_S_MAX,
    interval_at,
    next_cursor,
    parse_cursor,
)

times = st.integers(EPOCH_MS, EPOCH_MS + 10**13)
jitters = st.integers(1, JITTER_S_MAX)


@pytest.mark.spec("base 8.1-15")
def test_epoch_and_interval_are_the_specified_ones():
    assert datetime(2024, 10, 9, tzinfo=UTC).timestamp() * 1000 == EPOCH_MS
    assert INTERVAL_S == 20


@pytest.mark.spec("base 8.1-15")
@pytest.mark.parametrize(
    ("after_ms", "interval"),
    [(0, 0), (19_999, 0), (20_000, 1), (39_999, 1), (86_400_000, 4320)],
)
def test_interval_counts_twenty_seconds_from_the_epoch(after_ms, interval):
    assert interval_at(EPOCH_MS + after_ms) == interval


@given(times, jitters)
def test_without_an_echo_it_is_the_current_interval(now_ms, jitter_s):
    assert next_cursor(None, now_ms, jitter_s) == interval_at(now_ms)


@pytest.mark.spec("base 8.1-11", "base 8.1-12")
@given(st.integers(0, 10**12), times, jitters)
def test_it_is_never_behind_the_interval_and_always_past_the_echo(echoed, now_ms, jitter_s):
    cursor = next_cursor(echoed, now_ms, jitter_s)
    assert cursor > echoed
    assert cursor >= interval_at(now_ms)


@pytest.mark.spec("base 8.1-12")
@given(times, jitters)
def test_jitter_is_between_one_interval_and_an_hour(now_ms, jitter_s):
    current = interval_at(now_ms)
    ahead = next_cursor(current, now_ms, jitter_s) - current
    assert 1 <= ahead <= JITTER_S_MAX // INTERVAL_S


@pytest.mark.spec("base 8.1-11")
@given(st.lists(st.tuples(st.integers(0, 60_000), jitters), max_size=20))
def test_chain_of_echoes_never_goes_back(steps):
    now_ms, cursor = EPOCH_MS, None
    for passed_ms, jitter_s in steps:
        now_ms += passed_ms
        following = next_cursor(cursor, now_ms, jitter_s)
        assert cursor is None or following > cursor
        cursor = following


@pytest.mark.parametrize(("text", "cursor"), [("0", 0), ("42", 42), ("9" * 18, 10**18 - 1)])
def test_echo_is_parsed(text, cursor):
    assert parse_cursor(text) == cursor


@pytest.mark.parametrize("text", [None, "", "-1", "abc", "1.5", " 1", "²", "٣", "9" * 19, "1e3"])
def test_what_is_not_ours_counts_as_no_echo(text):
    assert parse_cursor(text) is None
