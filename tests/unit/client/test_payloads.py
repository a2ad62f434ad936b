"""What applications append, as bytes."""

import pytest

from holdfast.client.messages import check_framing, message_bytes, request_body
from holdfast.errors import InvalidJsonError, InvalidRequestError
from holdfast.protocol.content import frame, store_form

JSON = "application/json"
TEXT = "text/plain"


@pytest.mark.parametrize("value", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"])
def test_bytes_and_text_are_appended_as_they_are(value):
    assert message_bytes(value, TEXT, None) == b"ab"
    assert message_bytes(value, TEXT, "length-prefixed") == frame(b"ab")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}, b'{"a":1}'),
        ("text", b'"text"'),
        (None, b"null"),
        ([1, [2]], b"[1,[2]]"),
        (b'{"a":  1}', b'{"a":  1}'),
    ],
)
def test_values_are_written_as_json_unless_they_are_json_already(value, text):
    assert message_bytes(value, JSON, None) == text


@pytest.mark.parametrize("value", [object(), {1, object()}, 2**70j, {"a": object()}])
def test_what_cannot_be_json_is_refused(value):
    with pytest.raises(InvalidJsonError, match="cannot be written as JSON"):
        message_bytes(value, JSON, None)


@pytest.mark.parametrize("value", [1, None, {"a": 1}, ["a"]])
def test_values_are_no_messages_of_byte_streams(value):
    with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
        message_bytes(value, TEXT, None)


def test_text_with_half_a_character_is_refused():
    with pytest.raises(ValueError, match="surrogates"):
        message_bytes("\ud800", TEXT, None)
    with pytest.raises(InvalidJsonError):
        message_bytes("\ud800", JSON, None)


@pytest.mark.parametrize("values", [[[1, 2]], [[]], [1, [2], "x"], [[[]]]])
def test_one_level_of_array_is_ours_so_arrays_stay_messages(values):
    body = request_body([message_bytes(value, JSON, None) for value in values], JSON)
    assert store_form(body).count(b"\x1e") == len(values)


def test_messages_of_byte_streams_are_joined():
    assert request_body([b"a", b"b"], TEXT) == b"ab"


def test_unknown_framing_is_refused():
    check_framing(None)
    check_framing("length-prefixed")
    with pytest.raises(InvalidRequestError, match="Unknown framing 'lines'"):
        check_framing("lines")


@pytest.mark.parametrize("value", [{"a": 1}, b"1"])
def test_json_is_not_framed(value):
    with pytest.raises(InvalidRequestError, match="cannot be framed"):
        message_bytes(value, "application/json", "length-prefixed")
