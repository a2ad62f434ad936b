"""Header values: offsets, flags, lifetimes, entity tags and cursors."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidOffsetError, InvalidRequestError
from holdfast.protocol.headers import (
    CURSOR_EPOCH_MS,
    CURSOR_INTERVAL_S,
    CURSOR_JITTER_S_MAX,
    NOW,
    OFFSET_MAX,
    START,
    STREAM_SEQ_BYTES_MAX,
    TTL_S_MAX,
    check_stream_seq,
    format_offset,
    format_time_ms,
    interval_at,
    is_true,
    matches_etag,
    next_cursor,
    parse_cursor,
    parse_expires_at_ms,
    parse_offset,
    parse_ttl_s,
    read_etag,
)

offsets = st.integers(0, OFFSET_MAX)


@given(offsets, st.integers(1, 20))
def test_round_trip(offset, digits):
    assert parse_offset(format_offset(offset).decode()) == offset
    assert parse_offset(f"{offset:0{digits}d}") == offset


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
        "-1",
        "now",
        "+5",
        "-5",
        " 5",
        "5 ",
        "1e3",
        "1_0",
        "0x5",
        "٥",
        "²",
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
    assert format_offset(offset).decode() == text.zfill(20)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_MS = -62_135_596_800_000  # 0001-01-01T00:00:00Z
LAST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


@pytest.mark.spec("base 4.1-1", "base 4.1-2")
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"true", True),
        (b"True", True),
        (b"TRUE", True),
        (None, False),
        (b"", False),
        (b"false", False),
        (b"yes", False),
        (b"1", False),
        (b"true,true", False),
        (b" true", False),
    ],
)
def test_flag_is_set_by_true_alone(raw, expected):
    assert is_true(raw) is expected


@pytest.mark.spec("base 5.1-3")
@given(st.integers(0, TTL_S_MAX))
def test_ttl_is_decimal_seconds(ttl_s):
    assert parse_ttl_s(b"%d" % ttl_s) == ttl_s


@pytest.mark.spec("base 5.1-3")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"-1",
        b"+1",
        b"-0",
        b"00",
        b"01",
        b"1.0",
        b"1.",
        b".5",
        b"1e3",
        b"0x10",
        b"1_000",
        b" 1",
        b"1 ",
        b"1\n",
        b"abc",
        b"\xb2",
        b"%d" % (TTL_S_MAX + 1),
        b"9" * 5000,
    ],
)
def test_malformed_ttl_is_refused(raw):
    with pytest.raises(InvalidRequestError, match="Malformed Stream-TTL") as caught:
        parse_ttl_s(raw)
    assert len(caught.value.message) < 300


@given(
    st.integers(0, LAST_MS // 1000),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
    st.sampled_from(["T", "t"]),
)
def test_expiry_is_an_instant_whatever_its_zone(at_s, zone_minutes, separator):
    zone = timezone(timedelta(minutes=zone_minutes))
    instant = EPOCH + timedelta(seconds=at_s)
    try:
        text = instant.astimezone(zone).isoformat(separator)
    except OverflowError:
        return
    assert parse_expires_at_ms(text.encode()) == at_s * 1000


@pytest.mark.parametrize(
    ("raw", "at_ms"),
    [
        (b"1970-01-01T00:00:00Z", 0),
        (b"1970-01-01t00:00:00z", 0),
        (b"1970-01-01T00:00:00-00:00", 0),
        (b"1970-01-01T01:00:00+01:00", 0),
        (b"1970-01-01T00:00:00.5Z", 500),
        (b"1970-01-01T00:00:00.123456789Z", 123),
        (b"2030-01-31T12:00:00Z", 1_896_091_200_000),
        (b"2024-02-29T00:00:00Z", 1_709_164_800_000),
    ],
)
def test_forms_of_rfc_3339(raw, at_ms):
    assert parse_expires_at_ms(raw) == at_ms


@pytest.mark.spec("base 5.1-10")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"tomorrow",
        b"1896091200",
        b"2030-01-31",
        b"2030-01-31T12:00:00",
        b"2030-01-31 12:00:00Z",
        b"2030-01-31T12:00Z",
        b"2030-01-31T12:00:00.Z",
        b"2030-01-31T12:00:00+01",
        b"2030-01-31T12:00:00+0100",
        b"2030-02-30T12:00:00Z",
        b"2030-13-01T12:00:00Z",
        b"2030-01-31T24:01:00Z",
        b"2030-01-31T12:60:00Z",
        b"2030-01-31T12:00:61Z",
        b"2030-01-31T12:00:00+24:00",
        b"0000-01-01T00:00:00Z",
        b"12030-01-31T12:00:00Z",
        b"2030-01-31T12:00:00Z ",
        b"2030-01-31T12:00:00Z\n",
        b"20\xb20-01-31T12:00:00Z",
    ],
)
def test_malformed_expiry_is_refused(raw):
    with pytest.raises(InvalidRequestError, match="Malformed Stream-Expires-At"):
        parse_expires_at_ms(raw)


@given(st.integers(FIRST_MS, LAST_MS))
def test_printed_time_is_parsed_back_to_the_millisecond(at_ms):
    assert parse_expires_at_ms(format_time_ms(at_ms)) == at_ms


@pytest.mark.parametrize(
    ("at_ms", "printed"),
    [
        (0, b"1970-01-01T00:00:00Z"),
        (1, b"1970-01-01T00:00:00.001Z"),
        (1_896_091_200_000, b"2030-01-31T12:00:00Z"),
        (1_896_091_200_250, b"2030-01-31T12:00:00.250Z"),
    ],
)
def test_time_is_printed_in_utc(at_ms, printed):
    assert format_time_ms(at_ms) == printed


@pytest.mark.parametrize(
    "raw",
    [
        b"9999-12-31T23:59:59-01:00",
        b"9999-12-31T23:59:59.999Z",
        b"0001-01-01T00:00:00+01:00",
        b"1969-12-31T23:59:59Z",
    ],
)
def test_every_accepted_expiry_can_be_printed(raw):
    try:
        at_ms = parse_expires_at_ms(raw)
    except InvalidRequestError:
        return
    assert parse_expires_at_ms(format_time_ms(at_ms)) == at_ms


@pytest.mark.parametrize("raw", [None, b"a", b"\x00", b"x" * STREAM_SEQ_BYTES_MAX])
def test_stream_seq_is_any_bytes(raw):
    assert check_stream_seq(raw) == raw


@pytest.mark.parametrize("raw", [b"", b"x" * (STREAM_SEQ_BYTES_MAX + 1)])
def test_stream_seq_has_a_length(raw):
    with pytest.raises(InvalidRequestError, match="1 to 255 bytes"):
        check_stream_seq(raw)


numbers = st.integers(0, 2**63 - 1)
tags = st.tuples(numbers, numbers, numbers, st.booleans())


def tag_of(parts):
    number, start, end, closed = parts
    return read_etag(number, start, end, closed=closed)


@given(tags, tags)
def test_tags_are_equal_only_for_the_same_stream_range_and_closure(one, other):
    assert (tag_of(one) == tag_of(other)) == (one == other)


@pytest.mark.spec("base 8.1-5", "base 8.1-6", "base 8.1-7")
def test_closure_shows_in_the_tag():
    assert read_etag(31, 0, 5, closed=False) == b'"1f:0:5"'
    assert read_etag(31, 0, 5, closed=True) == b'"1f:0:5:c"'


@given(tags)
def test_tag_is_one_quoted_string(parts):
    tag = tag_of(parts)
    assert tag[:1] == tag[-1:] == b'"'
    assert b'"' not in tag[1:-1]
    assert b"," not in tag


@pytest.mark.parametrize(
    "header",
    [
        b'"1f:0:5"',
        b'W/"1f:0:5"',
        b' "1f:0:5" ',
        b'"other", "1f:0:5"',
        b'"other",W/"1f:0:5","another"',
        b"*",
        b" * ",
    ],
)
def test_header_that_names_the_tag_matches(header):
    assert matches_etag(header, b'"1f:0:5"')


@pytest.mark.parametrize(
    "header",
    [b"", b'"1f:0:5:c"', b"1f:0:5", b'"1f:0:50"', b'"1f:0:5', b'"*"', b'w/"1f:0:5"', b",", b'"a"'],
)
def test_header_that_does_not_name_the_tag_does_not_match(header):
    assert not matches_etag(header, b'"1f:0:5"')


times = st.integers(CURSOR_EPOCH_MS, CURSOR_EPOCH_MS + 10**13)
jitters = st.integers(1, CURSOR_JITTER_S_MAX)


@pytest.mark.spec("base 8.1-15")
def test_epoch_and_interval_are_the_specified_ones():
    assert datetime(2024, 10, 9, tzinfo=UTC).timestamp() * 1000 == CURSOR_EPOCH_MS
    assert CURSOR_INTERVAL_S == 20


@pytest.mark.spec("base 8.1-15")
@pytest.mark.parametrize(
    ("after_ms", "interval"),
    [(0, 0), (19_999, 0), (20_000, 1), (39_999, 1), (86_400_000, 4320)],
)
def test_interval_counts_twenty_seconds_from_the_epoch(after_ms, interval):
    assert interval_at(CURSOR_EPOCH_MS + after_ms) == interval


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
    assert 1 <= ahead <= CURSOR_JITTER_S_MAX // CURSOR_INTERVAL_S


@pytest.mark.spec("base 8.1-11")
@given(st.lists(st.tuples(st.integers(0, 60_000), jitters), max_size=20))
def test_chain_of_echoes_never_goes_back(steps):
    now_ms, cursor = CURSOR_EPOCH_MS, None
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
