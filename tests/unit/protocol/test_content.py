"""Content types: kept as sent, compared without case and parameters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequestError
from holdfast.protocol.content import (
    CONTENT_TYPE_BYTES_MAX,
    DEFAULT,
    JSON,
    is_text,
    media_type,
    parse_content_type,
)

token = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.+", min_size=1)


@given(token, token)
def test_type_and_subtype_are_kept_as_sent(kind, subtype):
    text = f"{kind}/{subtype}"[:CONTENT_TYPE_BYTES_MAX]
    if not text.endswith("/") and "/" in text:
        assert parse_content_type(text.encode()) == text


def test_parameters_and_case_are_kept_as_sent():
    assert parse_content_type(b"Text/Plain; charset=UTF-8") == "Text/Plain; charset=UTF-8"


def test_white_space_around_is_dropped():
    assert parse_content_type(b"  text/plain\t") == "text/plain"


@pytest.mark.parametrize(
    ("sent", "media"),
    [
        ("text/plain", "text/plain"),
        ("Text/PLAIN", "text/plain"),
        ("application/json;charset=utf-8", JSON),
        ("application/json ; charset=utf-8", JSON),
        ("Application/JSON", JSON),
        (DEFAULT, "application/octet-stream"),
    ],
)
def test_media_type_is_the_type_alone_in_lower_case(sent, media):
    assert media_type(sent) == media


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"text",
        b"/",
        b"text/",
        b"/plain",
        b";charset=utf-8",
        b"text/;a=b",
        b"text/pl\x00ain",
        b"text/plain\x01",
        b"text/plain; a=\x7f",
        b"text/pl\xe4in",
        b"text/plain; a=\r\nb",
    ],
)
def test_malformed_is_refused(raw):
    with pytest.raises(InvalidRequestError, match="Malformed Content-Type"):
        parse_content_type(raw)


def test_longest_is_accepted_and_one_more_is_refused():
    longest = b"a/" + b"b" * (CONTENT_TYPE_BYTES_MAX - 2)
    assert parse_content_type(longest) == longest.decode()
    with pytest.raises(InvalidRequestError, match="longer than 255"):
        parse_content_type(longest + b"b")


@pytest.mark.parametrize(
    ("media", "expected"),
    [
        ("text/plain", True),
        ("text/html", True),
        (JSON, True),
        (DEFAULT, False),
        ("image/png", False),
        ("application/jsonl", False),
        ("application/ndjson", False),
        ("context/plain", False),
    ],
)
def test_text_and_json_travel_as_text(media, expected):
    assert is_text(media) is expected


@given(st.binary(max_size=40))
def test_parsing_gives_printable_text_or_the_error(raw):
    try:
        text = parse_content_type(raw)
    except InvalidRequestError:
        return
    assert text.isascii()
    assert text.isprintable()
    assert "/" in media_type(text)
