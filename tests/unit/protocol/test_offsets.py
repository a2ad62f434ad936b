"""Offsets: 20 digits that sort as text, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidOffsetError
from holdfast.protocol.offsets import NOW, OFFSET_MAX, START, format_offset, parse_offset

offsets = st.integers(0, OFFSET_MAX)


@given(offsets)
def test_round_trip(offset):
    assert parse_offset(format_offset(offset).decode()) == offset


@pytest.mark.spec("base 6-2", "base 6-3")
@given(offsets, offsets)
def test_text_order_is_the_order_of_positions(one, other):
    assert (format_offset(one) < format_offset(other)) == (one < other)
    assert (format_offset(one) == format_offset(other)) == (one == other)


@pytest.mark.spec("base 6-5", "base 6-6", "base 6-8", "base 6-25")
@given(offsets)
def test_wire_form_is_digits_only_and_no_sentinel(offset):
    text = format_offset(offset).decode()
    assert text.isascii()
    assert text.isdigit()
    assert len(text) == 20
    assert text not in {START, NOW}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "now",
        "0" * 19,
        "0" * 21,
        "+0000000000000000001",
        "-0000000000000000001",
        "0000000000000000000x",
        "0000000000000000001 ",
        "00000000000000000_01",
        "0x000000000000000010",
        "٠" * 20,
        "²" * 20,
        "0" * 19 + "\n",
        "0000000000000000_0000000000000000",
    ],
)
def test_anything_else_is_malformed(text):
    with pytest.raises(InvalidOffsetError, match="Malformed offset"):
        parse_offset(text)


@pytest.mark.parametrize("offset", [OFFSET_MAX + 1, 10**20 - 1])
def test_larger_than_any_offset_is_malformed(offset):
    with pytest.raises(InvalidOffsetError, match="larger than any offset"):
        parse_offset(f"{offset:020d}")


def test_largest_offset_is_accepted():
    assert parse_offset(f"{OFFSET_MAX:020d}") == OFFSET_MAX


def test_message_does_not_repeat_a_long_input():
    with pytest.raises(InvalidOffsetError) as caught:
        parse_offset("9" * 10_000)
    assert len(caught.value.message) < 300


@given(st.text(max_size=30))
def test_parsing_gives_an_offset_or_the_error_and_nothing_else(text):
    try:
        offset = parse_offset(text)
    except InvalidOffsetError:
        return
    assert format_offset(offset).decode() == text
