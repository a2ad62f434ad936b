"""What the options of a read say, and which sentence refuses a wrong one."""

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.errors import SettingsError
from holdfast.spark.connection import Options, parse_size
from holdfast.spark.reading.arrow import COLUMN_NAMES, DEFAULT_COLUMNS, columns_of, spark_schema
from holdfast.spark.reading.readers import batch_reader, stream_reader
from holdfast.spark.reading.selection import (
    EARLIEST,
    BatchBounds,
    ReadBound,
    Selection,
    parse_bound,
)
from holdfast.spark.reading.source import READ_OPTIONS, ReadSource


def options(**given: str) -> Options:
    return Options({"bucket": "events", **given}, READ_OPTIONS)


def test_the_usual_ones() -> None:
    source = ReadSource.from_options(options())
    assert source.bucket == "events"
    assert source.columns == DEFAULT_COLUMNS
    assert source.via == "auto"
    assert source.fail_on_data_loss
    assert not source.framed
    assert source.selection.includes("any/stream")
    extent = BatchBounds.from_options(options())
    assert (extent.starting.cursor, extent.ending.cursor) == ("earliest", "latest")


def test_names_in_any_case() -> None:
    given = {"STREAMS": " a , b ,", "failondataloss": "FALSE", "partitionBytes": "8m"}
    source = ReadSource.from_options(options(**given))
    assert source.selection.streams == {"a", "b"}
    assert not source.fail_on_data_loss
    assert BatchBounds.from_options(options(**given)).partition_bytes == 8 << 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"colums": "x"}, "There is no option 'colums'; did you mean 'columns'?"),
        ({"bucket": " "}, "The option 'bucket' is required: .option('bucket', …)."),
        ({"columns": "stream_id,size"}, "There is no column 'size'; there are bucket, "),
        ({"columns": "offset,offset"}, "The option 'columns' names a column twice."),
        ({"framing": "lines"}, "'framing' is one of 'none', 'length-prefixed', not 'lines'."),
        ({"via": "ftp"}, "'via' is one of 'auto', 'store', 'server', 'http', not 'ftp'."),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss' is true or false, not 'maybe'."),
        ({"streams": "a", "streamPattern": "b"}, "Give either 'streams' or 'streamPattern'"),
        ({"streamPattern": "a("}, "The option 'streamPattern' is no regular expression: "),
        ({"minPartitions": "0"}, "'minPartitions' is a number of at least 1, not '0'."),
        ({"minPartitions": "-3"}, "'minPartitions' is a number of at least 1, not '-3'."),
        ({"partitionBytes": "many"}, "'partitionBytes' is a number of bytes such as 64m"),
        ({"endingOffsets": "earliest"}, "'endingOffsets' cannot be 'earliest'."),
        ({"startingOffsets": "-12"}, "'startingOffsets' is 'earliest', 'latest', a cursor, or"),
        ({"startingOffsets": "9" * 20}, "'startingOffsets' is 'earliest', 'latest', a cursor, or"),
        ({"startingOffsets": "\u0661" * 20}, "'startingOffsets' is 'earliest', 'latest', a cursor"),
        ({"startingOffsets": '{"a": 5}'}, "'startingOffsets' is 'earliest', 'latest', a cursor"),
        ({"startingOffsets": '["a"]'}, "'startingOffsets' is 'earliest', 'latest', a cursor"),
        ({"startingOffsets": '{"a": "12x"}'}, "'startingOffsets' is 'earliest', 'latest', a"),
        ({"startingOffsets": '{"a": "9999999999999999999"}'}, "'startingOffsets' is 'earliest'"),
        ({"token": "t", "username": "me"}, "Give either 'token' or 'username' and 'password'"),
        ({"maxRowsPerTrigger": "5"}, "The option 'maxRowsPerTrigger' is for readStream."),
    ],
)
def test_wrong_ones_in_a_batch_read(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        batch_reader({"bucket": "events", **given}, spark_schema(DEFAULT_COLUMNS))
    assert said in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"endingOffsets": "latest"}, "A stream has no end: 'endingOffsets' is for batch reads."),
        ({"maxRowsPerTrigger": "0"}, "'maxRowsPerTrigger' is a number of at least 1, not '0'."),
    ],
)
def test_wrong_ones_in_a_stream_read(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        stream_reader({"bucket": "events", **given}, spark_schema(DEFAULT_COLUMNS))
    assert said in caught.value.message


def test_secrets_are_not_shown() -> None:
    given = {"token": "hidden1", "storeAccessKeyId": "id", "storeSecretAccessKey": "hidden2"}
    assert "hidden" not in repr(ReadSource.from_options(options(**given)))
    given = {"username": "me", "password": "hidden3"}
    assert "hidden" not in repr(ReadSource.from_options(options(**given)))


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("64m", 64 << 20), ("1 KiB", None), ("2GB", 2 << 30), ("3MiB", 3 << 20)],
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(SettingsError):
            parse_size(text, "It")
    else:
        assert parse_size(text, "It") == size


def test_bounds() -> None:
    def bound(text: str) -> ReadBound:
        return parse_bound(options(startingOffsets=text), "startingOffsets", EARLIEST)

    assert bound("earliest").cursor == "earliest"
    assert bound(" latest ").cursor == "latest"
    assert bound(f"{42:020d}").cursor == f"{42:020d}"
    assert bound("42").cursor == f"{42:020d}"
    assert bound('{"a/b": "-1", "c": "00000000000000000042", "d": "earliest"}').offsets == {
        "a/b": 0,
        "c": 42,
        "d": 0,
    }


def test_an_offset_that_cannot_be_one() -> None:
    given = options(startingOffsets='{"a": "99999999999999999999"}')
    with pytest.raises(SettingsError, match="'startingOffsets' is"):
        parse_bound(given, "startingOffsets", "earliest")


def test_columns() -> None:
    assert columns_of(spark_schema(COLUMN_NAMES)) == COLUMN_NAMES
    with pytest.raises(SettingsError, match="'offset' is of type string, not bigint"):
        columns_of(StructType([StructField("offset", LongType())]))
    mine = StructType(
        [
            StructField("value", StringType(), False),
            StructField("timestamp", TimestampType()),
            StructField("payload", BinaryType()),
        ]
    )
    assert columns_of(mine) == ("value", "timestamp", "payload")


IDS = st.text(alphabet="abc01-_/.", min_size=1, max_size=6)


@given(st.frozensets(IDS, min_size=1, max_size=8), IDS)
def test_a_list_of_streams(streams: frozenset[str], other: str) -> None:
    selection = Selection(streams)
    assert all(selection.includes(each) and each.startswith(selection.prefix) for each in streams)
    assert selection.includes(other) == (other in streams)


# Parts of patterns; what is put together may be no pattern at all.
PIECES = st.sampled_from(
    ["a", "b", "c", "0", "-", "_", "/", ".", r"\.", "?", "*", "+", "{2}", "{0,1}", "|", "(", ")",
     "(?:", "(?i)", "(?=", "[ab]", "^", "$", r"\d", r"\Z", r"\b", "ab", "#", " "]
)  # fmt: skip


@given(st.lists(PIECES, max_size=7).map("".join), st.lists(IDS, min_size=1, max_size=20))
def test_the_prefix_of_a_pattern_leaves_nothing_out(pattern: str, ids: list[str]) -> None:
    try:
        compiled = re.compile(pattern)
    except re.error:
        return
    selection = Selection(pattern=pattern)
    for each in [*ids, *(each.upper() for each in ids), "", "a", "ab", "aab", "abc", "cab"]:
        matched = not pattern or compiled.fullmatch(each) is not None
        assert selection.includes(each) == matched
        if matched:
            assert each.startswith(selection.prefix)


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("", ""),
        ("users/42", "users/42"),
        ("users/.*", "users/"),
        ("users/(a|b)", ""),
        ("ab?", "a"),
        ("ab*c", "a"),
        ("a{2}", ""),
        ("s00.*", "s00"),
        ("ab+", "ab"),
        (r"a\.b", "a"),
        ("^abc", ""),
        ("(?i)abc", ""),
    ],
)
def test_prefixes_of_patterns(pattern: str, prefix: str) -> None:
    assert Selection(pattern=pattern).prefix == prefix


def test_windows() -> None:
    selection = Selection(starts={"a": 10}, ends={"a": 20})
    assert selection.window("a", 0) == (10, 20)
    assert selection.window("a", 15)[0] == 15
    start, end = selection.window("b", 3)
    assert start == 3
    assert end > 1 << 60


def test_what_is_selected_travels() -> None:
    selection = Selection(pattern="ab.*", starts={"abc": 5})
    assert selection.includes("abc")
    assert selection.prefix == "ab"
    again = pickle.loads(pickle.dumps(selection))
    assert again == selection
    assert again.includes("abc")
    assert not again.includes("b")
