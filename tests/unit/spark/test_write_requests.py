"""Rows become the same requests, however and in whatever company they come."""

from itertools import chain

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidJsonError, SettingsError
from holdfast.protocol.content import Unframer
from holdfast.spark.connection import SparkConnection
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.requests import MESSAGES_MAX, Placement, RequestBuilder, partition_of

JSON = "application/json"
BYTES = "application/octet-stream"
names = st.sampled_from(["demo/a", "demo/b", "demo/c", "else/a"])
rows = st.lists(st.tuples(names, st.integers(0, 10**9)), max_size=60)


def options(content_type=JSON, **given):
    return WriteOptions(SparkConnection(), "demo", content_type=content_type, **given)


def cut(cutter, pieces):
    made = []
    for piece in pieces:
        made += cutter.take([name for name, _ in piece], [row for _, row in piece])
    return made + cutter.finish()


def split(items, cuts):
    ends = [*sorted(min(each, len(items)) for each in cuts), len(items)]
    start = 0
    for end in ends:
        yield items[start:end]
        start = end


def by_stream(requests):
    found = {}
    for each in requests:
        found.setdefault(each.name, []).append(each)
    return found


def encoded(numbers):
    return [(name, str(number).encode()) for name, number in numbers]


@given(rows, st.lists(st.integers(0, 60), max_size=5), st.integers(1, 60))
def test_requests_do_not_depend_on_how_rows_are_handed_over(numbers, cuts, request_bytes):
    given_rows = encoded(numbers)
    told = options(request_bytes=request_bytes)
    assert cut(RequestBuilder(told), [given_rows]) == cut(
        RequestBuilder(told), split(given_rows, cuts)
    )


@given(rows, st.integers(1, 60), st.integers(1, 4))
def test_requests_do_not_depend_on_rows_of_other_streams(numbers, request_bytes, partitions):
    """Mixed, alone, or laid out in any number of partitions."""
    given_rows = encoded(numbers)
    told = options(request_bytes=request_bytes)
    mixed = by_stream(cut(RequestBuilder(told), [given_rows]))
    for name in mixed:
        alone = [row for row in given_rows if row[0] == name]
        assert by_stream(cut(RequestBuilder(told), [alone]))[name] == mixed[name]
    laid_out = []
    for own in range(partitions):
        there = [row for row in given_rows if partition_of(row[0], partitions) == own]
        there.sort(key=lambda row: row[0])
        laid_out += cut(RequestBuilder(told, Placement(partitions, own)), [there])
    assert by_stream(laid_out) == mixed


@given(rows, st.integers(1, 60))
def test_every_row_is_in_one_request_in_order(numbers, request_bytes):
    made = by_stream(cut(RequestBuilder(options(request_bytes=request_bytes)), [encoded(numbers)]))
    for name, requests in made.items():
        assert [each.seq for each in requests] == list(range(len(requests)))
        assert [each.last for each in requests] == [False] * (len(requests) - 1) + [True]
        bodies = [msgspec.json.decode(each.body) for each in requests]
        assert [len(body) for body in bodies] == [each.rows for each in requests]
        assert list(chain.from_iterable(bodies)) == [number for at, number in numbers if at == name]
        assert all(len(each.body) <= request_bytes + 1 or each.rows == 1 for each in requests)
    assert {name for name, _ in numbers} == made.keys()


def test_a_row_is_a_request_on_a_byte_stream_and_many_are_where_they_are_framed():
    given_rows = [("demo/a", b"one"), ("demo/a", b"two"), ("demo/a", b"three")]
    assert [each.body for each in cut(RequestBuilder(options(BYTES)), [given_rows])] == [
        b"one",
        b"two",
        b"three",
    ]
    (framed,) = cut(RequestBuilder(options(BYTES, framing="length-prefixed")), [given_rows])
    assert Unframer().feed(framed.body) == [b"one", b"two", b"three"]


def test_a_request_has_no_more_messages_than_the_server_takes():
    made = cut(RequestBuilder(options()), [[("demo/a", b"1")] * (MESSAGES_MAX + 1)])
    assert [each.rows for each in made] == [MESSAGES_MAX, 1]


def test_an_array_stays_one_message():
    (made,) = cut(RequestBuilder(options()), [[("demo/a", b" [1, 2] "), ("demo/a", b"3")]])
    assert made.body == b"[[1, 2],3]"


@pytest.mark.parametrize("text", [b"", b"1,2", b"{", b"\xff", b"nul"])
def test_what_is_not_json_is_refused_with_its_beginning(text):
    with pytest.raises(InvalidJsonError, match="stream 'demo/a' is not JSON: it begins with"):
        cut(RequestBuilder(options()), [[("demo/a", text)]])


def test_an_empty_message_is_refused_unless_it_is_framed():
    with pytest.raises(SettingsError, match="'demo/a' is empty"):
        cut(RequestBuilder(options(BYTES)), [[("demo/a", b"")]])
    (made,) = cut(RequestBuilder(options(BYTES, framing="length-prefixed")), [[("demo/a", b"")]])
    assert made.body == bytes(4)


def test_too_many_rows_that_come_in_turns_are_refused():
    given_rows = [(f"demo/{at}", b'"0123456789"') for at in range(100)]
    with pytest.raises(SettingsError, match=r"are mixed, .*\.write_to_streams"):
        cut(RequestBuilder(options(), held_bytes_max=5000), [given_rows])
    one = Placement(1, 0)
    assert (
        len(cut(RequestBuilder(options(), one, held_bytes_max=5000), [sorted(given_rows)])) == 100
    )
    assert len(cut(RequestBuilder(options(), held_bytes_max=60_000), [given_rows])) == 100


def test_a_row_that_is_out_of_place_is_refused():
    own = partition_of("demo/a", 7)
    cutter = RequestBuilder(options(), Placement(7, (own + 1) % 7))
    with pytest.raises(SettingsError, match="'demo/a' came to the task"):
        cutter.take(["demo/a"], [b"1"])
    cutter = RequestBuilder(options(), Placement(1, 0))
    with pytest.raises(SettingsError, match="'demo/a' came to the task 0 out of order"):
        cutter.take(["demo/a", "demo/b", "demo/a"], [b"1", b"2", b"3"])
