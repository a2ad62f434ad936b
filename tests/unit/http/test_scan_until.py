"""How far one gets among extents that are spread evenly over their positions."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.scan_journal import ScanLimits, within_amounts
from holdfast.storage.catalog_scan import Amount

MANY = 10**9


@st.composite
def amounts(draw):
    """An extent: a message at each end at least."""
    first = draw(st.integers(1, 50))
    last = first + draw(st.integers(0, 30))
    messages = draw(st.integers(1 if first == last else 2, 40))
    return Amount(first, last, messages * draw(st.integers(1, 100)), messages)


def spread(found, after, until):
    """Bytes and messages in (after, until], position by position."""
    shares = [
        (
            max(0, min(each.last_position, until) - max(each.first_position, after + 1) + 1)
            / (each.last_position - each.first_position + 1),
            each,
        )
        for each in found
    ]
    return (
        sum(share * each.size_bytes for share, each in shares),
        sum(share * each.messages for share, each in shares),
    )


@given(
    st.lists(amounts(), max_size=8),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 2000),
    st.integers(1, 100),
)
def test_furthest_position_within_the_limits(found, after, length, size_bytes, messages):
    until = after + length
    found = [each for each in found if each.last_position > after and each.first_position <= until]
    reached = within_amounts(found, after, until, ScanLimits(size_bytes, messages))
    assert after <= reached.until <= until
    in_bytes, in_messages = spread(found, after, reached.until)
    assert abs(reached.size_bytes - in_bytes) < 0.001
    assert abs(reached.messages - in_messages) < 0.001
    if reached.is_full:
        assert reached.until > after
        before = spread(found, after, reached.until - 1)
        is_over = in_bytes > size_bytes + 0.51 or in_messages > messages + 0.51
        # Too much only if there was nothing before.
        assert not is_over or before == (0, 0)
        more_bytes, more_messages = spread(found, after, reached.until + 1)
        assert more_bytes > size_bytes or more_messages > messages
    else:
        assert reached.until == until
        assert in_bytes <= size_bytes + 0.51
        assert in_messages <= messages + 0.51


def test_nothing():
    assert within_amounts([], 5, 9, ScanLimits(1, 1)) == (9, 0, 0, False)


def test_empty_positions_do_not_count():
    found = [Amount(100, 100, 10, 1), Amount(200, 200, 10, 1)]
    assert within_amounts(found, 0, 300, ScanLimits(10, MANY)) == (199, 10, 1, True)
    assert within_amounts(found, 0, 300, ScanLimits(1, MANY)) == (100, 10, 1, True)
    assert within_amounts(found, 0, 300, ScanLimits(20, MANY)) == (300, 20, 2, False)
