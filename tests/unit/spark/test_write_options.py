"""What a write can be told, and the columns it takes."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from holdfast.errors import SettingsError
from holdfast.spark.connection import SparkConnection
from holdfast.spark.writing.options import WriteColumns, WriteOptions
from holdfast.spark.writing.rows import RowEncoder
from holdfast.spark.writing.writers import batch_writer, stream_writer

TYPES = {"payload": BinaryType(), "offset": IntegerType()}


def schema(*names, **types):
    found = StructType()
    for name in names:
        found = found.add(name, types.get(name, TYPES.get(name, StringType())))
    return found


def told(*names, **options):
    return WriteOptions.of({"bucket": "demo", **options}, WriteColumns.of(schema(*names)))


def test_defaults():
    found = told("stream_id", "value")
    assert found.content_type == "application/json"
    assert found.request_bytes == 4 * 1024 * 1024
    assert (found.concurrency, found.framing, found.ttl_s) == (32, None, None)
    assert (found.create_streams, found.close_streams) == (True, False)
    assert told("stream_id", "payload").content_type == "application/octet-stream"
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (["value"], {}, "neither a column 'stream_id' nor the option 'stream'"),
        (
            ["stream_id", "value"],
            {"stream": "a"},
            "column 'stream_id' or the option 'stream', not both",
        ),
        (["stream_id", "value"], {"bucket": "a/b"}, "contains a slash"),
        (["stream_id", "value"], {"bucket": ""}, "'bucket' is required"),
        (["stream_id", "value"], {"producer": "a"}, "did you mean 'producerId'"),
        (["stream_id", "value"], {"framing": "length-prefixed"}, "JSON stream needs no framing"),
        (["stream_id", "value"], {"framing": "lines"}, "'framing' is one of"),
        (["stream_id", "value"], {"contentType": "json"}, "'contentType' is a type such as"),
        (["stream_id", "value"], {"ttl": "0"}, "'ttl' is a number of at least 1"),
        (["stream_id", "value"], {"producerId": "é"}, "'producerId' has at most 255"),
        (["stream_id", "value"], {"producerId": "x" * 256}, "'producerId' has at most 255"),
        (["stream_id", "value"], {"producerEpoch": str(2**53)}, "'producerEpoch' is at most"),
        (["stream_id", "value", "payload"], {}, "exactly one of them"),
        (["stream_id"], {}, "exactly one of them"),
        (["stream_id", "value", "offset"], {}, "'offset' cannot be written: drop it"),
    ],
)
def test_wrong_options_and_columns(names, options, said):
    with pytest.raises(SettingsError, match=said):
        told(*names, **options)


def test_a_column_of_another_type():
    with pytest.raises(SettingsError, match="'payload' is binary, not string"):
        WriteColumns.of(schema("stream_id", "payload", payload=StringType()))


def test_two_columns_of_one_name():
    with pytest.raises(SettingsError, match="two columns of the same name"):
        WriteColumns.of(schema("stream_id", "payload", "payload"))


def test_a_bucket_column_is_enough():
    columns = WriteColumns.of(schema("bucket", "stream_id", "value"))
    assert WriteOptions.of({}, columns).bucket == ""


def test_writers_refuse_what_cannot_be_exactly_once():
    given, columns = {"bucket": "demo"}, schema("stream_id", "value")
    with pytest.raises(SettingsError, match=r"mode\('append'\)"):
        batch_writer({**given, "producerId": "a"}, columns, overwrite=True)
    with pytest.raises(SettingsError, match="'producerEpoch' is for batch writes"):
        stream_writer({**given, "producerEpoch": "1"}, columns, overwrite=False)
    writer = batch_writer({**given, "producerId": "a"}, columns, overwrite=False)
    assert type(pickle.loads(pickle.dumps(writer))) is type(writer)


def read(stream="", **values):
    """The streams and messages of rows that follow each other."""
    batch = pa.record_batch(list(values.values()), names=list(values))
    options = WriteOptions(SparkConnection(), "demo", stream)
    encoder = RowEncoder(options, WriteColumns.of(schema(*values)))
    return [(run.name, run.cut(0, len(run))) for run in encoder.runs(batch)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_rows_of_text(kind):
    value = pa.array(['"é"', "2"], kind)
    found = read(stream_id=pa.array(["a", "b/c"], kind), value=value)
    assert found == [("demo/a", '"é"'.encode()), ("demo/b/c", b"2")]


def test_a_bucket_in_a_row_goes_before_the_option():
    found = read(
        bucket=pa.array(["else", None, ""]),
        stream_id=pa.array(["a", "b", "b"]),
        payload=pa.array([b"1", b"2", b"3"]),
    )
    assert found == [("else/a", b"1"), ("demo/b", b"2,3")]


def test_rows_for_one_stream():
    assert read(stream="a", value=pa.array(["1", "2"])) == [("demo/a", b"1,2")]


def test_rows_that_lack_something():
    with pytest.raises(SettingsError, match="no stream_id"):
        read(stream_id=pa.array(["a", None]), value=pa.array(["1", "2"]))
    with pytest.raises(SettingsError, match="'demo/b' has null as its value"):
        read(stream_id=pa.array(["a", "b"]), value=pa.array(["1", None]))
    with pytest.raises(SettingsError, match="'demo/a' has null as its value"):
        read(stream="a", value=pa.array([None], pa.string()))


def test_columns_of_a_table_that_are_not_written_are_null():
    columns = WriteColumns.of(schema("stream_id", "offset", "value"), empty=("offset", "value"))
    encoder = RowEncoder(WriteOptions(SparkConnection(), "demo"), columns)

    def runs(offset):
        values = [pa.array(["a"]), pa.array([offset], pa.int32()), pa.array(["1"])]
        batch = pa.record_batch(values, names=["stream_id", "offset", "value"])
        return [run.name for run in encoder.runs(batch)]

    assert runs(None) == ["demo/a"]
    with pytest.raises(SettingsError, match="'offset' cannot be written: leave it out"):
        runs(1)
