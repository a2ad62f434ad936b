"""Rows become the same requests, however and in whatever company they come."""

from itertools import chain, pairwise

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidJsonError, SettingsError
from holdfast.protocol.content import Unframer
from holdfast.protocol.headers import LENGTHS_BYTES_MAX
from holdfast.spark.connection import SparkConnection
from holdfast.spark.writing.options import WriteColumns, WriteOptions
from holdfast.spark.writing.requests import (
    ALONE,
    MESSAGES_MAX,
    Placement,
    RequestBuilder,
    partition_of,
)
from holdfast.spark.writing.rows import RowEncoder

JSON = "application/json"
BYTES = "application/octet-stream"
names = st.sampled_from(["demo/a", "demo/b", "demo/c", "else/a"])
rows = st.lists(st.tuples(names, st.integers(0, 10**9)), max_size=60)


COLUMNS = WriteColumns("payload", has_stream=True, has_bucket=True)


def options(content_type=JSON, **given):
    return WriteOptions(SparkConnection(), "demo", content_type=content_type, **given)


def runs(told, rows):
    names = [name.partition("/") for name, _ in rows]
    columns = {
        "bucket": pa.array([bucket for bucket, _, _ in names], pa.string()),
        "stream_id": pa.array([stream for _, _, stream in names], pa.string()),
        "payload": pa.array([row for _, row in rows], pa.binary()),
    }
    return RowEncoder(told, COLUMNS).runs(pa.record_batch(columns))


def cut(told, pieces, placement=ALONE):
    """The requests for rows that come in pieces."""
    builder = RequestBuilder(told, placement)
    made = []
    for piece in pieces:
        made += builder.take(runs(told, piece))
    return made + builder.finish()


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
    given_rows = sorted(encoded(numbers), key=lambda row: row[0])
    told = options(request_bytes=request_bytes)
    assert cut(told, [given_rows]) == cut(told, split(given_rows, cuts))


@given(rows, st.integers(1, 60), st.integers(1, 4))
def test_requests_do_not_depend_on_rows_of_other_streams(numbers, request_bytes, partitions):
    """Together, alone, or laid out in any number of partitions."""
    given_rows = sorted(encoded(numbers), key=lambda row: row[0])
    told = options(request_bytes=request_bytes)
    together = by_stream(cut(told, [given_rows]))
    for name in together:
        alone = [row for row in given_rows if row[0] == name]
        assert by_stream(cut(told, [alone]))[name] == together[name]
    laid_out = []
    for own in range(partitions):
        there = [row for row in given_rows if partition_of(row[0], partitions) == own]
        laid_out += cut(told, [there], Placement(partitions, own))
    assert by_stream(laid_out) == together


@given(rows, st.integers(1, 60))
def test_every_row_is_in_one_request_in_order(numbers, request_bytes):
    numbers.sort(key=lambda row: row[0])
    made = by_stream(cut(options(request_bytes=request_bytes), [encoded(numbers)]))
    for name, requests in made.items():
        assert [each.seq for each in requests] == list(range(len(requests)))
        assert [each.last for each in requests] == [False] * (len(requests) - 1) + [True]
        bodies = [msgspec.json.decode(each.body) for each in requests]
        assert [len(body) for body in bodies] == [each.rows for each in requests]
        assert list(chain.from_iterable(bodies)) == [number for at, number in numbers if at == name]
        assert all(len(each.body) <= request_bytes + 1 or each.rows == 1 for each in requests)
        for each, following in pairwise(requests):
            first = len(msgspec.json.encode(msgspec.json.decode(following.body)[0]))
            assert len(each.body) + first > request_bytes, "a request is as full as it can be"
    assert {name for name, _ in numbers} == made.keys()


@given(rows, st.integers(1, 6))
def test_rows_in_any_order_are_gathered_by_stream(numbers, tasks):
    encoder = RowEncoder(options(), COLUMNS)
    parts = [encoded(numbers[at::tasks]) for at in range(tasks)]
    digests = []
    for part in parts:
        names = [name.split("/") for name, _ in part]
        batch = pa.record_batch(
            [
                pa.array([bucket for bucket, _ in names], pa.string()),
                pa.array([stream for _, stream in names], pa.string()),
                pa.array([row for _, row in part], pa.binary()),
            ],
            names=["bucket", "stream_id", "payload"],
        )
        found = list(encoder.by_stream(batch))
        assert sorted(run.name for run in found) == sorted({name for name, _ in part})
        for run in found:
            own = b",".join([row for name, row in part if name == run.name])
            assert run.cut(0, len(run)) == own
        digests.append(sum(run.digest() for run in found))
    # However they are divided, it is the same batch.
    whole = runs(options(), encoded(numbers))
    assert sum(digests) == sum(run.digest() for run in whole)


def test_a_row_is_a_request_on_a_byte_stream_and_many_are_where_they_are_framed():
    given_rows = [("demo/a", b"one"), ("demo/a", b"two"), ("demo/a", b"three")]
    assert [each.body for each in cut(options(BYTES), [given_rows])] == [
        b"one",
        b"two",
        b"three",
    ]
    (framed,) = cut(options(BYTES, framing="length-prefixed"), [given_rows])
    assert Unframer().feed(framed.body) == [b"one", b"two", b"three"]


@given(st.lists(st.integers(1, 2000), max_size=800), st.lists(st.integers(0, 800), max_size=3))
def test_requests_that_list_the_lengths_of_their_messages(sizes, cuts):
    given_rows = [("demo/a", b"x" * size) for size in sizes]
    told = options(BYTES, list_lengths=True, request_bytes=100_000)
    made = cut(told, [given_rows])
    assert made == cut(told, split(given_rows, cuts))
    assert [length for each in made for length in each.lengths] == sizes
    for each in made:
        assert sum(each.lengths) == len(each.body)
        assert len(",".join(map(str, each.lengths))) <= LENGTHS_BYTES_MAX
        assert len(each.body) + each.rows <= 100_000
    for each, following in pairwise(made):
        listed = ",".join(map(str, [*each.lengths, following.lengths[0]]))
        is_full = len(each.body) + each.rows + following.lengths[0] + 1 > 100_000
        assert is_full or len(listed) > LENGTHS_BYTES_MAX


def test_a_request_has_no_more_messages_than_the_server_takes():
    made = cut(options(), [[("demo/a", b"1")] * (MESSAGES_MAX + 1)])
    assert [each.rows for each in made] == [MESSAGES_MAX, 1]


def test_an_array_stays_one_message():
    (made,) = cut(options(), [[("demo/a", b" [1, 2] "), ("demo/a", b"3")]])
    assert made.body == b"[[1, 2],3]"


@pytest.mark.parametrize("text", [b"", b"1,2", b"{", b"\xff", b"nul"])
def test_what_is_not_json_is_refused_with_its_beginning(text):
    with pytest.raises(InvalidJsonError, match="stream 'demo/a' is not JSON: it begins with"):
        cut(options(), [[("demo/a", text)]])


def test_an_empty_message_is_refused_unless_it_is_framed():
    with pytest.raises(SettingsError, match="'demo/a' is empty"):
        cut(options(BYTES), [[("demo/a", b"")]])
    (made,) = cut(options(BYTES, framing="length-prefixed"), [[("demo/a", b"")]])
    assert made.body == bytes(4)


@pytest.mark.parametrize("rows", [(b'"a', b'b",1'), (b"1,2",), (b"[1", b"2]"), (b"1],[2",)])
def test_rows_that_are_json_only_together_are_refused(rows):
    with pytest.raises(InvalidJsonError, match="stream 'demo/a' is not JSON: it begins with"):
        cut(options(), [[("demo/a", row) for row in rows]])


def test_a_row_that_is_out_of_place_is_refused():
    own = partition_of("demo/a", 7)
    with pytest.raises(SettingsError, match="'demo/a' came to the task"):
        cut(options(), [[("demo/a", b"1")]], Placement(7, (own + 1) % 7))
    mixed = [("demo/a", b"1"), ("demo/b", b"2"), ("demo/a", b"3")]
    with pytest.raises(SettingsError, match="'demo/a' came to the task 0 out of order"):
        cut(options(), [mixed])
