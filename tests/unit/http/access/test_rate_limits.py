"""Rate limits: the allowance, how it comes back, and how many keys are remembered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.access.gate import RateLimit, client_of, retry_after_s


def taken(limit, key, now_s, tries=1000):
    """How many requests in a row pass."""
    return sum(limit.take(key, now_s) == 0 for _ in range(tries))


def test_a_burst_passes_and_comes_back_at_the_rate():
    limit = RateLimit(rate=10, burst=5)
    assert taken(limit, "a", 100.0) == 5
    assert taken(limit, "a", 100.09) == 0
    assert taken(limit, "a", 100.1) == 1
    assert taken(limit, "a", 100.35) == 2
    assert taken(limit, "a", 200.0) == 5


def test_without_a_burst_a_second_s_worth_passes():
    assert taken(RateLimit(rate=20), "a", 0.0) == 20
    assert taken(RateLimit(rate=1), "a", 0.0) == 1


def test_keys_do_not_share():
    limit = RateLimit(rate=1, burst=2)
    assert taken(limit, "a", 0.0) == 2
    assert taken(limit, "b", 0.0) == 2


def test_the_wait_is_told_and_enough():
    limit = RateLimit(rate=2, burst=1)
    assert limit.take("a", 10.0) == 0
    wait_s = limit.take("a", 10.0)
    assert wait_s == pytest.approx(0.5)
    # Asking again does not make it longer.
    assert limit.take("a", 10.0) == wait_s
    assert limit.take("a", 10.0 + wait_s) == 0


@pytest.mark.parametrize(("wait_s", "told"), [(0.001, 1), (1.0, 1), (1.01, 2), (59.5, 60)])
def test_retry_after_is_in_whole_seconds(wait_s, told):
    assert retry_after_s(wait_s) == told


@given(
    st.integers(1, 50),
    st.integers(1, 50),
    st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=60),
)
def test_never_more_than_burst_and_rate_allow(rate, burst, pauses):
    limit = RateLimit(rate, burst)
    now_s = 0.0
    passed = []
    for pause in pauses:
        now_s += pause
        passed += [now_s for _ in range(3) if limit.take("a", now_s) == 0]
    for at, begin_s in enumerate(passed):
        for count, end_s in enumerate(passed[at:], 1):
            assert count <= burst + rate * (end_s - begin_s) + 1e-6


def test_the_table_is_bounded_and_forgets_who_is_idle_first():
    limit = RateLimit(rate=1, burst=10, keys_max=100)
    assert taken(limit, "busy", 1000.0) == 10
    for client in range(1000):
        limit.take(f"client {client}", 1000.0)
        assert len(limit) <= 100
    assert taken(limit, "busy", 1000.0) == 0


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("10.1.2.3", "address 10.1.2.3"),
        ("", "address "),
        ("2001:db8:1:2:3:4:5:6", "address 2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "address 2001:db8:1:2::/64"),
        ("fe80::1%eth0", "address fe80::/64"),
        ("::ffff:10.1.2.3", "address 10.1.2.3"),
        ("not:an:address", "address not:an:address"),
    ],
)
def test_a_client_is_an_address_or_its_network(peer, client):
    assert client_of(peer) == client
