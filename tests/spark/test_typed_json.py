"""Fields of JSON messages as columns of a read."""

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BooleanType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.errors import BadAnswerError, SettingsError
from holdfast.spark.archiving.layout import inferred_columns
from holdfast.spark.reading.json_fields import KIND_TYPES, JsonFields
from holdfast.spark.reading.readers import batch_reader, read_schema
from holdfast.spark.reading.typed_json import sampled_ddl
from tests.server_process import ServerProcess
from tests.spark.filled import JSON, Filled, batches

FIELDS = StructType(
    [
        StructField("n", IntegerType()),
        StructField("name", StringType()),
        StructField("at", TimestampType()),
        StructField("_corrupt_record", StringType()),
    ]
)
MESSAGES: list[Any] = [
    {"n": 1, "name": "é", "at": "2031-05-17T12:00:00.25+02:00", "other": [1]},
    {"name": {"first": "a"}},
    {"n": "two", "name": "b", "at": "2031-05-17T12:00:00Z"},
    [1, 2],
    {"n": 2**31, "at": "soon"},
]
WRONG = [2, 3, 4]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with ServerProcess(tmp_path_factory.mktemp("typed") / "data", flush_age=3600) as server:
        found = Filled(server.url)
        found.append("json", *MESSAGES[:3], content_type=JSON)
        found.flush()
        found.append("json", *MESSAGES[3:], content_type=JSON)
        found.append("raw", b"not JSON")
        yield found


def read(options: dict[str, str], fields: StructType = FIELDS, own: str = "stream_id") -> list[Any]:
    schema = StructType([StructField(own, StringType()), *fields.fields])
    parts = batch_reader(options | {"columns": own}, schema).partitions()
    return [row for part in parts for batch in batches(part) for row in batch.to_pylist()]


def test_what_does_not_fit_costs_no_other_field(bucket: Filled) -> None:
    rows = read(bucket.options(jsonSchema="…", streams="json"))
    morning = dt.datetime(2031, 5, 17, 10, 0, 0, 250_000, dt.UTC)
    noon = dt.datetime(2031, 5, 17, 12, tzinfo=dt.UTC)
    assert [(row["n"], row["name"], row["at"]) for row in rows] == [
        (1, "é", morning),
        (None, '{"first":"a"}', None),
        (None, "b", noon),
        (None, None, None),
        (None, None, None),
    ]
    texts = [json.dumps(each, separators=(",", ":")) for each in MESSAGES]
    assert [row["_corrupt_record"] for row in rows] == [
        text if at in WRONG else None for at, text in enumerate(texts)
    ]
    # Messages of other streams are rows without fields.
    (row,) = read(bucket.options(jsonSchema="…", streams="raw"))
    assert row == dict.fromkeys(row) | {"stream_id": "raw"}


def test_messages_that_cannot_be_decoded_stop_no_read() -> None:
    """A server takes them: its stack is less deep, and it keeps numbers as text."""
    deep = b'{"n":1,"x":%b%b}' % (b"[" * 3000, b"]" * 3000)
    huge = b'{"n":2,"x":1e999}'
    parsed = JsonFields({"n": KIND_TYPES["long"]}, keeps_others=True).parse([deep, huge, None])
    assert [each.to_pylist() for each in parsed.columns] == [[None, 2, None]]
    assert parsed.malformed == {0: deep}
    assert list(parsed.others) == [1]
    shown = b'{"y":"z"}'
    assert inferred_columns([deep, huge, shown]) == {"y": "string"}
    assert sampled_ddl([deep, huge, shown]) == "`y` string"


def test_modes(bucket: Filled) -> None:
    fields = StructType(FIELDS.fields[:3])
    rows = read(bucket.options(jsonSchema="…", mode="DROPMALFORMED"), fields)
    assert [row["name"] for row in rows] == ["é", '{"first":"a"}', None]
    with pytest.raises(BadAnswerError) as caught:
        read(bucket.options(jsonSchema="…", mode="FAILFAST"), fields)
    assert caught.value.message.startswith("The message of 'json' at offset ")
    assert " does not fit the schema in 'n'; the mode PERMISSIVE " in caught.value.message


def test_schemas_as_spark_gets_them(bucket: Filled) -> None:
    own = "`stream_id` string, `position` bigint"
    given = bucket.options(columns="stream_id,position", jsonSchema="n INT, s STRUCT<a: INT>")
    assert read_schema(given) == f"{own}, n INT, s STRUCT<a: INT>, _corrupt_record string"
    for text in ("n INT, `_corrupt_record` STRING", "_corrupt_record STRING, n INT"):
        assert read_schema(given | {"jsonSchema": text}) == f"{own}, {text}"
    assert read_schema(given | {"mode": "FAILFAST"}) == f"{own}, n INT, s STRUCT<a: INT>"
    sample = bucket.options(columns="stream_id", mode="FAILFAST")
    shown = '{"a": 1, "b c": 1.5, "d": true, "e": null, "f": {"g": 1}, "h": "x"}'
    assert read_schema(sample | {"jsonSample": shown}) == (
        "`stream_id` string, `a` bigint, `b c` double, `d` boolean, `e` string, `f` string, "
        "`h` string"
    )
    # Of the first two messages, and of all.
    found = read_schema(sample | {"jsonSample": "2"})
    assert found == "`stream_id` string, `n` bigint, `name` string, `at` string, `other` string"
    assert "`n` string" in str(read_schema(sample | {"jsonSample": "100"}))


@pytest.mark.parametrize(
    ("options", "fields", "words"),
    [
        ({"jsonSchema": "…"}, [StructField("d", DecimalType())], "type of 'd' cannot be decimal"),
        ({"jsonSchema": "…"}, [StructField("b", BooleanType(), False)], "leave out NOT NULL"),
        ({"jsonSchema": "…"}, [StructField("stream_id", LongType())], "two columns 'stream_id'"),
        ({"jsonSchema": "…", "mode": "LOOSE"}, [], "The option 'mode' is one of 'PERMISSIVE'"),
        ({"mode": "FAILFAST"}, [], "The option 'mode' is for reads with 'jsonSchema'"),
        ({"jsonSchema": "…", "jsonSample": "1"}, [], "either 'jsonSchema' or 'jsonSample'"),
    ],
)
def test_sentences(
    bucket: Filled, options: dict[str, str], fields: list[StructField], words: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(bucket.options(**options), StructType(fields))
    assert words in caught.value.message
    with pytest.raises(SettingsError, match="'jsonSample' is a JSON object with fields, or"):
        read_schema(bucket.options(jsonSample="one"))


def test_nested_types_in_spark(spark: SparkSession, bucket: Filled) -> None:
    bucket.append(
        "nested",
        {
            "who": {"name": "a", "tags": ["x", None]},
            "counts": {"b": 1, "c": None},
            "days": ["2031-05-17"],
            "price": 1.5,
        },
        {"who": {"name": 7}, "counts": {}, "price": "free"},
        content_type=JSON,
    )
    reading = spark.read.format("holdfast").options(**bucket.options(streams="nested"))
    schema = (
        "who STRUCT<name: STRING, tags: ARRAY<STRING>>, counts MAP<STRING, INT>, "
        "days ARRAY<DATE>, price DOUBLE"
    )
    frame = reading.option("jsonSchema", schema).option("columns", "offset").load()
    first, second = frame.orderBy("offset").collect()
    assert first.who.asDict() == {"name": "a", "tags": ["x", None]}
    assert (first.counts, first.days) == ({"b": 1, "c": None}, [dt.date(2031, 5, 17)])
    assert first._corrupt_record is None
    assert (second.who, second.counts, second.price) == (None, {}, None)
    assert json.loads(second._corrupt_record)["price"] == "free"
