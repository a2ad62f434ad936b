"""Stream names: what a path may be, and which stream it names."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequestError, NotFoundError
from holdfast.protocol.names import NAME_BYTES_MAX, decode_path, parse_flat_path


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"a", "_default/a"),
        (b"_default/a", "_default/a"),
        (b"bucket/a", "bucket/a"),
        (b"bucket/a/b/c", "bucket/a/b/c"),
        (b"bucket/a//b", "bucket/a//b"),
        (b"bucket/a/", "bucket/a/"),
        (b"bucket/a%2Fb", "bucket/a/b"),
        (b"bucket%2Fa", "bucket/a"),
        (b"b/%E2%82%AC", "b/\N{EURO SIGN}"),
        ("b/\N{EURO SIGN}".encode(), "b/\N{EURO SIGN}"),
        (b"b/a%20b", "b/a b"),
        (b"b/100%", "b/100%"),
        (b"b/%zz", "b/%zz"),
        (b"b/...", "b/..."),
        (b"b/.hidden", "b/.hidden"),
        (b"b/a..b", "b/a..b"),
        (b"b/a/snapshot/5", "b/a/snapshot/5"),
        (b"b/__ds", "b/__ds"),
        (b"b/_proxy", "b/_proxy"),
    ],
)
def test_path_names_a_stream(raw, name):
    assert parse_flat_path(raw) == name


@pytest.mark.parametrize("raw", [b"", b"/", b"/a", b"a/", b"%2F", b"%2Fa", b"a%2f"])
def test_empty_parts_are_refused(raw):
    with pytest.raises(InvalidRequestError, match="is empty"):
        parse_flat_path(raw)


@pytest.mark.spec("base 10.2-2")
@pytest.mark.parametrize(
    "raw",
    [
        b"..",
        b".",
        b"../a",
        b"a/..",
        b"a/../b",
        b"a/./b",
        b"a/%2e%2e/b",
        b"a/%2E%2E",
        b"a/.%2e/b",
        b"a%2F..%2Fb",
        b"a/b/../../../etc/passwd",
    ],
)
def test_dot_segments_are_refused(raw):
    with pytest.raises(InvalidRequestError, match="segment"):
        parse_flat_path(raw)


@pytest.mark.spec("base 10.2-2")
@pytest.mark.parametrize("raw", [b"a/\0", b"a/%00", b"%00", b"a/b%00c"])
def test_nul_is_refused(raw):
    with pytest.raises(InvalidRequestError, match="NUL"):
        parse_flat_path(raw)


@pytest.mark.parametrize("raw", [b"a/\xff", b"a/%ff", b"a/%ED%A0%80", b"a/%C0%AF"])
def test_what_is_not_utf8_is_refused(raw):
    with pytest.raises(InvalidRequestError, match="not UTF-8"):
        parse_flat_path(raw)


@pytest.mark.spec("base 10.2-2")
def test_longest_path_is_accepted_and_one_more_byte_is_refused():
    longest = b"b/" + b"x" * (NAME_BYTES_MAX - 2)
    assert parse_flat_path(longest) == longest.decode()
    with pytest.raises(InvalidRequestError, match="longer than"):
        parse_flat_path(longest + b"x")


def test_length_counts_decoded_bytes():
    decoded = "\N{EURO SIGN}" * 300
    assert decode_path(quote(decoded).encode()) == decoded
    with pytest.raises(InvalidRequestError, match="longer than"):
        decode_path(quote("\N{EURO SIGN}" * 342).encode())


@pytest.mark.parametrize("raw", [b"__ds/a", b"__ds/a/b", b"_proxy/a", b"__ds%2Fa", b"%5Fproxy/a"])
def test_reserved_buckets_hold_no_streams(raw):
    with pytest.raises(NotFoundError, match="reserved"):
        parse_flat_path(raw)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_percent_encoding_makes_no_difference(text):
    def outcome(raw):
        try:
            return parse_flat_path(raw)
        except (InvalidRequestError, NotFoundError) as error:
            return type(error), error.message

    encoded = "".join(f"%{byte:02X}" for byte in text.encode()).encode()
    if "%" not in text:
        assert outcome(text.encode()) == outcome(encoded)
    else:
        assert outcome(quote(text).encode()) == outcome(encoded)


@given(st.binary(max_size=60))
def test_every_accepted_name_is_a_bucket_and_an_id(raw):
    try:
        name = parse_flat_path(raw)
    except (InvalidRequestError, NotFoundError):
        return
    bucket, slash, stream_id = name.partition("/")
    assert bucket
    assert slash
    assert stream_id
    assert "\0" not in name
    assert not {".", ".."} & set(name.split("/"))
    assert parse_flat_path(quote(name).encode()) == name
