"""Header values: TTL, expiry times, flags, Stream-Seq."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequestError
from holdfast.protocol.fields import (
    STREAM_SEQ_BYTES_MAX,
    TTL_S_MAX,
    check_stream_seq,
    format_time_ms,
    is_true,
    parse_expires_at_ms,
    parse_ttl_s,
)

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
