"""Content types, JSON messages and length-prefixed messages."""

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import (
    BadAnswerError,
    InvalidJsonError,
    InvalidRequestError,
    PayloadTooLargeError,
)
from holdfast.protocol import content
from holdfast.protocol.content import (
    CONTENT_TYPE_BYTES_MAX,
    DEFAULT,
    JSON,
    PREFIX_BYTES,
    SEPARATOR,
    Unframer,
    array_form,
    frame,
    frame_all,
    is_text,
    media_type,
    parse_content_type,
    store_form,
)
from tests.thorough import for_each
from tests.unit.protocol.splits import cut_at, random_cuts, single_bytes, two_pieces

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


# Surrogates cannot be UTF-8, and lone ones are refused; see below.
text = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
white_space = st.text(" \t\r\n", max_size=4)
formats = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.none() | st.integers(0, 3) | st.sampled_from(["\t", "\r\n "]),
        "separators": st.sampled_from([None, (",", ":"), (" ,\n", "\t: ")]),
    }
)


@st.composite
def documents(draw, inner):
    """A value, and its JSON text in some formatting."""
    value = draw(inner)
    body = json.dumps(value, **draw(formats))
    return value, (draw(white_space) + body + draw(white_space)).encode()


def as_messages(value):
    return value if isinstance(value, list) else [value]


@pytest.mark.spec("base 7.1-1", "base 7.1-2", "base 7.1-3")
@given(documents(values))
def test_array_form_of_the_store_form_is_the_messages(document):
    value, body = document
    stored = store_form(body)
    assert json.loads(array_form(stored)) == as_messages(value)
    assert stored.count(SEPARATOR) == len(as_messages(value))


@pytest.mark.spec("base 7.1-1", "base 7.1-3")
@given(st.lists(documents(values), max_size=5))
def test_appends_join_to_one_array(appends):
    stored = b"".join(store_form(body) for _, body in appends)
    expected = [message for value, _ in appends for message in as_messages(value)]
    assert json.loads(array_form(stored)) == expected


@pytest.mark.spec("base 7.1-1")
@given(st.lists(documents(values), min_size=1, max_size=5))
def test_messages_keep_their_source_bytes(messages):
    sources = [body.strip(b" \t\r\n") for _, body in messages]
    stored = store_form(b"[" + b" ,\n".join(body for _, body in messages) + b"]")
    assert stored == b"".join(source + SEPARATOR for source in sources)


@pytest.mark.spec("base 7.1-3")
def test_exactly_one_level_is_flattened():
    assert store_form(b"[[1, 2], [[3]]]") == b"[1, 2]\x1e[[3]]\x1e"


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b"[\n]"])
def test_empty_array_has_no_messages(body):
    assert store_form(body) == b""


def test_array_of_an_empty_array_is_one_message():
    assert store_form(b"[[]]") == b"[]\x1e"


@pytest.mark.spec("base 7.1-8")
def test_nothing_stored_reads_as_an_empty_array():
    assert array_form(b"") == b"[]"


@pytest.mark.parametrize(
    "body",
    [
        b'"a\\u001eb"',
        b'"\\ud83d\\ude00"',
        '"\N{GRINNING FACE}"'.encode(),
        '"\u2028\x7f"'.encode(),
        b'{"a":1,"a":2}',
        b"1e999",
        b"-1e-999",
        b"9" * 5000,
        b"0." + b"1" * 5000,
        b"-0",
    ],
)
def test_unusual_json_is_kept_byte_for_byte(body):
    assert store_form(body) == body + SEPARATOR
    assert store_form(b"[" + body + b"]") == body + SEPARATOR


def test_numbers_too_large_for_a_float_are_still_json():
    assert json.loads(array_form(store_form(b"1e999"))) == [math.inf]


@pytest.mark.spec("base 7.1-5", "base 7.1-6")
@for_each(
    "body",
    [
        b"",
        b"  ",
        b"x",
        b"'a'",
        b"nul",
        b"nullx",
        b"NaN",
        b"Infinity",
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"1e",
        b"-",
        b"1 2",
        b"1,2",
        b"[1,]",
        b"[1",
        b"[1]]",
        b"[1]x",
        b'{"a":1,}',
        b'{"a"}',
        b"{1:2}",
        b'"a',
        b'"\\x"',
        b'"\\u12"',
        b'"\t"',
        b'"\x00"',
        b"\x00",
        b"1\x0b",
        b"\x0c1",
        b"\xef\xbb\xbf1",
        b"\xa01",
    ],
)
def test_what_is_not_json_is_refused(body):
    with pytest.raises(InvalidJsonError):
        store_form(body)


@pytest.mark.parametrize("body", [b'"\x1e"', b'["\x1e"]', b"1\x1e", b"\x1e1", b"[1\x1e,2]"])
def test_raw_separator_is_never_accepted(body):
    with pytest.raises(InvalidJsonError):
        store_form(body)


@pytest.mark.parametrize("position", range(4))
def test_raw_separator_is_refused_anywhere_in_a_string(position):
    body = bytearray(b'{"key":"abcd"}')
    body.insert(8 + position, 0x1E)
    with pytest.raises(InvalidJsonError):
        store_form(bytes(body))


@pytest.mark.parametrize(
    "body",
    [b'"\xff"', b'"\xc3"', b'["\xe4"]', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'"\xf4\x90\x80\x80"'],
)
def test_invalid_utf8_is_refused_in_words(body):
    with pytest.raises(InvalidJsonError, match="not UTF-8"):
        store_form(body)


@pytest.mark.parametrize(
    "body",
    [
        b'"\\ud800"',
        b'"\\udc00"',
        b'"\\ud800 and more text"',
        b'"\\ud800\\u0041"',
        b'"\\ud800\\ud800"',
        b'["\\udfff"]',
        b'{"\\ud800": 1}',
    ],
)
def test_lone_surrogate_escapes_are_refused(body):
    with pytest.raises(InvalidJsonError):
        store_form(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'[{"a":' * 50_000,
    ],
    ids=["open arrays", "arrays", "objects", "mixed"],
)
def test_deep_nesting_is_refused_in_words(body):
    with pytest.raises(InvalidJsonError, match="nested too deeply"):
        store_form(body)


def test_reasonable_nesting_is_accepted():
    body = b"[" * 200 + b"]" * 200
    assert store_form(body) == body[1:-1] + SEPARATOR


@given(st.binary(max_size=60))
def test_any_bytes_are_stored_soundly_or_refused(body):
    try:
        stored = store_form(body)
    except InvalidJsonError:
        return
    assert json.loads(array_form(stored)) == as_messages(json.loads(body))


@given(documents(values), st.data())
def test_damaged_json_is_stored_soundly_or_refused(document, data):
    _, body = document
    at = data.draw(st.integers(0, len(body)))
    damaged = body[:at] + data.draw(st.binary(max_size=2)) + body[at + 1 :]
    try:
        stored = store_form(damaged)
    except InvalidJsonError:
        return
    assert json.loads(array_form(stored)) == as_messages(json.loads(damaged))


def test_stored_bytes_do_not_pin_the_request_body():
    body = bytearray(b'["' + b"a" * 1000 + b'"]')
    stored = store_form(bytes(body))
    body[2:10] = b"xxxxxxxx"
    assert type(stored) is bytes
    assert b"x" not in stored


def test_array_has_at_most_so_many_messages():
    body = b"[" + b"1," * 199_999 + b"1]"
    assert store_form(body).count(SEPARATOR) == 200_000
    with pytest.raises(PayloadTooLargeError, match="200001 messages"):
        store_form(body[:-1] + b",1]")


MESSAGES = [b"", b"a", b"\x00\x00\x00\x01", b"message " * 40, b""]


def unframed(pieces):
    unframer, found = Unframer(), []
    for piece in pieces:
        found += unframer.feed(piece)
    return found, unframer.pending_bytes


def test_the_length_comes_first_and_is_big_endian():
    assert frame(b"abc") == struct.pack(">I", 3) + b"abc"
    assert frame(b"") == b"\0\0\0\0"
    assert frame(b"x" * 70_000)[:PREFIX_BYTES] == b"\x00\x01\x11\x70"


def test_every_split_into_two_gives_the_same_messages():
    for pieces in two_pieces(frame_all(MESSAGES)):
        assert unframed(pieces) == (MESSAGES, 0)


def test_byte_by_byte_gives_the_same_messages():
    assert unframed(single_bytes(frame_all(MESSAGES))) == (MESSAGES, 0)


@given(st.lists(st.binary(max_size=40), max_size=10), random_cuts)
def test_any_messages_in_any_pieces(messages, cuts):
    assert unframed(cut_at(frame_all(messages), cuts)) == (messages, 0)


def test_a_message_is_given_with_its_last_byte_and_not_before():
    framed = frame(b"four")
    unframer = Unframer()
    for at, byte in enumerate(single_bytes(framed[:-1]), start=1):
        assert unframer.feed(byte) == []
        assert unframer.pending_bytes == at
    assert unframer.feed(framed[-1:]) == [b"four"]
    assert unframer.pending_bytes == 0


def test_what_is_unfinished_is_held_and_counted():
    unframer = Unframer()
    assert unframer.feed(frame(b"one") + frame(b"second")[:7]) == [b"one"]
    assert unframer.pending_bytes == 7
    assert unframer.feed(b"") == []
    assert unframer.feed(b"ond" + b"\0\0") == [b"second"]
    assert unframer.pending_bytes == 2


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b'{"a": 1}', b"\xff\xff\xff\xff"])
def test_what_is_not_framed_is_refused_rather_than_waited_for(data):
    with pytest.raises(BadAnswerError, match="not framed"):
        Unframer().feed(data)


def test_messages_before_something_unframed_do_not_hide_it():
    with pytest.raises(BadAnswerError, match="not framed"):
        Unframer().feed(frame(b"fine") + b"not framed")


def test_the_longest_message_is_the_limit(monkeypatch):
    monkeypatch.setattr(content, "MESSAGE_BYTES_MAX", 10)
    framed = frame(b"x" * 10)
    assert Unframer().feed(framed) == [b"x" * 10]
    with pytest.raises(InvalidRequestError, match="at most 10 bytes"):
        frame(b"x" * 11)
    # Refused by its length alone, before any of it is held.
    with pytest.raises(BadAnswerError, match="11 bytes"):
        Unframer().feed(struct.pack(">I", 11))
