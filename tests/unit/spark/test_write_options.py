"""What a write can be told, and the columns it takes."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from holdfast.errors import SettingsError
from holdfast.spark.writing.options import WriteColumns, WriteOptions
from holdfast.spark.writing.requests import read_rows
from holdfast.spark.writing.task import TaskReport, check_streams_apart, packed, total
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
    with pytest.raises(SettingsError, match="'producerId' is required: a name"):
        batch_writer(given, columns, overwrite=False)
    with pytest.raises(SettingsError, match=r"mode\('append'\)"):
        batch_writer({**given, "producerId": "a"}, columns, overwrite=True)
    with pytest.raises(SettingsError, match="'producerEpoch' is for batch writes"):
        stream_writer({**given, "producerEpoch": "1"}, columns, overwrite=False)
    writer = batch_writer({**given, "producerId": "a"}, columns, overwrite=False)
    assert type(pickle.loads(pickle.dumps(writer))) is type(writer)


def read(columns, bucket="demo", stream="", **values):
    batch = pa.record_batch(list(values.values()), names=list(values))
    return read_rows(batch, WriteColumns.of(schema(*columns)), bucket, stream)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_rows_of_text(kind):
    value = pa.array(['"é"', "2"], kind)
    names, rows = read(["stream_id", "value"], stream_id=pa.array(["a", "b/c"], kind), value=value)
    assert (names, rows) == (["demo/a", "demo/b/c"], ['"é"'.encode(), b"2"])


def test_a_bucket_in_a_row_goes_before_the_option():
    batch = pa.record_batch(
        [pa.array(["else", None]), pa.array(["a", "b"]), pa.array([b"1", b"2"])],
        names=["bucket", "stream_id", "payload"],
    )
    names, _ = read_rows(batch, WriteColumns.of(schema(*batch.schema.names)), "demo")
    assert names == ["else/a", "demo/b"]


def test_rows_for_one_stream():
    assert read(["value"], stream="a", value=pa.array(["1", "2"]))[0] == ["demo/a", "demo/a"]


def test_rows_that_lack_something():
    with pytest.raises(SettingsError, match="no stream_id"):
        read(["stream_id", "value"], stream_id=pa.array(["a", None]), value=pa.array(["1", "2"]))
    with pytest.raises(SettingsError, match="'demo/b' has null as its value"):
        read(["stream_id", "value"], stream_id=pa.array(["a", "b"]), value=pa.array(["1", None]))
    with pytest.raises(SettingsError, match="'demo/a' has null as its value"):
        read(["value"], stream="a", value=pa.array([None], pa.string()))


def report(partition, *names):
    return TaskReport(1, 2, 3, 0, len(names), partition, packed(names))


def test_a_stream_in_two_tasks_is_refused():
    apart = [report(0, "demo/a", "demo/b"), None, report(1, "demo/c"), report(2)]
    assert total(check_streams_apart(apart)).streams == 3
    with pytest.raises(SettingsError, match="'demo/b' were in the tasks 0 and 4, so that not all"):
        check_streams_apart([*apart, report(4, "demo/b")])
