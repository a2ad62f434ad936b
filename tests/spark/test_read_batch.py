"""Batch reads in Spark: what users see."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import (
    BucketNotFoundError,
    HoldfastError,
    OutboundError,
    PackCorruptError,
    SettingsError,
)
from holdfast.protocol.content import frame
from holdfast.spark.session import as_holdfast_error
from tests.server_process import ServerProcess
from tests.spark.filled import JSON, TEXT, Filled, Row, ordered

Load = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("batch") / "data", flush_age=3600) as process:
        yield process


@pytest.fixture(scope="module")
def bucket(server: ServerProcess) -> Filled:
    """Streams of every kind, in packs and not, and some in both."""
    found = Filled(server.url)
    for number in range(4):
        found.append(f"json-{number}", *({"n": n, "who": "é"} for n in range(5)), content_type=JSON)
        found.append(f"raw-{number}", *(bytes([255, n]) for n in range(5)))
        found.append(f"text-{number}", "one", "zwölf", content_type=TEXT)
    found.append("framed", frame(b"a") + frame(b"bc"), frame(b""))
    found.flush()
    for number in range(2):
        found.append(f"json-{number}", {"n": 5, "who": None}, content_type=JSON)
        found.append(f"raw-{number}", b"\xff\x05")
    found.append("json-new", {"n": 0}, content_type=JSON)
    found.append("framed", frame(b"hot"))
    return found


@pytest.fixture
def load(spark: SparkSession, bucket: Filled) -> Load:
    return lambda **options: (
        spark.read.format("holdfast").options(**bucket.options() | options).load()
    )


def rows(frame: DataFrame) -> list[Row]:
    wanted = frame.select(*Row._fields)
    return ordered(Row(*row[:-1], bytes(row[-1])) for row in wanted.collect())


def said(action: Callable[[], Any]) -> HoldfastError:
    """The error that it ends with, which is one of ours and one sentence or two."""
    with pytest.raises(Exception) as caught:
        action()
    assert "Traceback" not in str(caught.value)
    found = as_holdfast_error(caught.value)
    assert "\n" not in found.message
    return found


def test_it_is_there_without_being_registered(spark: SparkSession, load: Load) -> None:
    # The session knows the format by the module pyspark_holdfast alone.
    assert load().schema.simpleString() == (
        "struct<bucket:string,stream_id:string,offset:string,next_offset:string,"
        "timestamp:timestamp,content_type:string,payload:binary>"
    )


def test_every_message_is_a_row(load: Load, bucket: Filled) -> None:
    assert rows(load()) == bucket.everything()
    first = load().where("bucket != 'events' or timestamp is null or length(offset) != 20")
    assert first.count() == 0


def test_columns_and_values(load: Load, bucket: Filled) -> None:
    found = load(columns="value,stream_id", streams="json-0,raw-0").collect()
    assert found[0].__fields__ == ["value", "stream_id"]
    assert sorted(row.value for row in found if row.stream_id == "json-0") == sorted(
        each.payload.decode() for each in bucket.of("json-0")
    )
    assert [row.value for row in found if row.stream_id == "raw-0"] == [None] * 6
    parsed = load(columns="value", streamPattern="json-.*").selectExpr(
        "sum(cast(get_json_object(value, '$.n') as int)) as n"
    )
    assert parsed.collect()[0].n == 4 * 10 + 2 * 5


def test_a_schema_of_ones_own(spark: SparkSession, load: Load, bucket: Filled) -> None:
    reading = spark.read.format("holdfast").options(**bucket.options(streams="raw-1"))
    found = reading.schema("payload binary, offset string").load()
    assert found.columns == ["payload", "offset"]
    assert [bytes(row.payload) for row in found.collect()] == [
        r.payload for r in bucket.of("raw-1")
    ]
    wrong = said(lambda: reading.schema("offset bigint").load().collect())
    assert isinstance(wrong, SettingsError)
    assert wrong.message == "The column 'offset' is of type string, not bigint."
    unknown = said(lambda: reading.schema("id string").load().collect())
    assert unknown.message.startswith("There is no column 'id'; there are bucket, stream_id, ")


@pytest.mark.slow
def test_records_behind_their_lengths(load: Load) -> None:
    found = load(streams="framed", framing="length-prefixed").orderBy("offset").collect()
    assert [bytes(row.payload) for row in found] == [b"a", b"bc", b"", b"hot"]
    assert [int(row.offset) for row in found] == [0, 5, 11, 15]
    assert [int(row.next_offset) for row in found] == [5, 11, 15, 22]
    wrong = said(lambda: load(streams="raw-1", framing="length-prefixed").collect())
    assert "'raw-1' at offset 0 does not hold whole length-prefixed records" in wrong.message


def test_bounds(load: Load, bucket: Filled) -> None:
    options = {
        "streams": "json-0",
        "startingOffsets": f'{{"json-0": "{bucket.of("json-0")[2].offset}"}}',
        "endingOffsets": f'{{"json-0": "{bucket.of("json-0")[5].offset}"}}',
    }
    assert rows(load(**options)) == bucket.of("json-0")[2:5]
    assert load(startingOffsets="latest").count() == 0


def test_partitions(load: Load, bucket: Filled) -> None:
    assert load().rdd.getNumPartitions() == 2
    assert load(via="http", streamPattern="json-[01]").rdd.getNumPartitions() == 2
    assert rows(load(via="http", streamPattern="json-[01]")) == bucket.of("json-0", "json-1")
    assert rows(load(via="server")) == bucket.everything()


def test_a_read_is_planned_when_it_runs(load: Load, server: ServerProcess) -> None:
    other = Filled(server.url, "other")
    other.append("a", b"1")
    frame = load(bucket="other")
    assert frame.count() == 1
    other.append("a", b"2")
    assert load(bucket="other").count() == 2


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"colums": "x"}, SettingsError, "There is no option 'colums'; did you mean 'columns'?"),
        ({"bucket": "nothing"}, BucketNotFoundError, "There is no bucket 'nothing'."),
        ({"url": "http://127.0.0.1:9", "retries": "0"}, OutboundError, "127.0.0.1:9"),
        ({"streamPattern": "("}, SettingsError, "'streamPattern' is no regular expression"),
        ({"bucket": ""}, SettingsError, "The option 'bucket' is required"),
    ],
)
def test_sentences(
    load: Load, options: dict[str, str], kind: type[HoldfastError], sentence: str
) -> None:
    found = said(lambda: load(**options).collect())
    assert isinstance(found, kind)
    assert sentence in found.message


@pytest.mark.slow
def test_a_damaged_pack(load: Load, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", flush_age=3600) as server:
        other = Filled(server.url)
        other.append("a", b"looked for in the pack")
        other.flush()
        (pack,) = (tmp_path / "data" / "objects" / "packs").glob("*.pack")
        pack.write_bytes(pack.read_bytes().replace(b"looked for", b"looked Eor"))
        found = said(lambda: load(url=server.url).collect())
    assert isinstance(found, PackCorruptError)
    assert f"The pack packs/{pack.name} is damaged" in found.message
