"""The job `load`: rows of tables as messages, each of them once."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from holdfast.client import SyncClient
from holdfast.errors import HoldfastError, SettingsError
from holdfast.settings.options import build
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import run_job
from holdfast.spark.jobs.load import Load
from tests.server_process import ServerProcess
from tests.spark.reading_back import messages, new_bucket
from tests.tcp_proxy import TcpProxy

ROWS = [
    {
        "user": number % 5,
        "seq": number // 5,
        "text": f"text {number}",
        "raw": b"\x00%d" % number,
        "maybe": None if number % 2 else number,
        "at": datetime(2026, 1, 1, 0, 0, number, tzinfo=UTC),
    }
    for number in range(40)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("load")) as running:
        yield running


@pytest.fixture
def bucket():
    return new_bucket()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Forty rows of five users in two files, the later ones first."""
    place = tmp_path_factory.mktemp("table")
    rows = pa.Table.from_pylist(ROWS)
    pq.write_table(rows.slice(20), place / "a.parquet")
    pq.write_table(rows.slice(0, 20), place / "b.parquet")
    return str(place)


@pytest.fixture
def load(spark, server, bucket, table):
    def run(**options):
        given = {
            "bucket": bucket,
            "source": table,
            "stream_id": "user-{user}",
            "order_by": ["seq"],
            "server": SparkConnection(server.url, retries=2),
        }
        return run_job(spark, build(Load, given | options))

    return run


def expected(value):
    return {
        f"user-{user}": [value(row) for row in ROWS if row["user"] == user] for user in range(5)
    }


def test_rows_become_messages_in_order_and_once(server, bucket, load):
    done = load(columns=["user", "seq", "maybe"])
    assert (done.rows, done.streams, done.stored_before) == (40, 5, 0)
    found = messages(server.url, bucket)
    assert {name: [json.loads(each) for each in those] for name, those in found.items()} == (
        expected(lambda row: {name: row[name] for name in ("user", "seq", "maybe")})
    )
    again = load(columns=["user", "seq", "maybe"])
    assert again.stored_before == again.requests == done.requests
    assert again.producer_id == done.producer_id
    assert messages(server.url, bucket) == found
    # Another load is another producer.
    assert load(columns=["user"]).stored_before == 0


def test_the_whole_row_is_the_message_unless_said_otherwise(server, bucket, load):
    load(where="user = 3 and seq = 0")
    ((row,),) = messages(server.url, bucket).values()
    assert json.loads(row) == {
        "user": 3,
        "seq": 0,
        "text": "text 3",
        "raw": "ADM=",
        "maybe": None,
        "at": "2026-01-01T00:00:03.000Z",
    }


def test_a_column_can_be_the_message(server, bucket, load):
    load(value="text", content_type="text/plain", close_streams=True, ttl=3600)
    assert messages(server.url, bucket) == expected(lambda row: row["text"])
    with SyncClient(server.url) as client:
        head = client.stream(f"{bucket}/user-1").head()
        assert (head.content_type, head.closed, head.ttl_s) == ("text/plain", True, 3600)
    other = new_bucket()
    load(payload="raw", bucket=other, stream_id="user")
    with SyncClient(server.url) as client:
        stream = client.stream(f"{other}/2")
        found = [each.payload for each in stream.read()]
        assert stream.head().content_type == "application/octet-stream"
    assert found == [row["raw"] for row in ROWS if row["user"] == 2]


@pytest.mark.slow
def test_tables_of_other_formats(spark, server, load, tmp_path, table):
    wanted = expected(lambda row: row["text"])
    rows = pa.Table.from_pylist(ROWS)
    write_deltalake(str(tmp_path / "delta"), rows.slice(20), partition_by=["user"])
    write_deltalake(str(tmp_path / "delta"), rows.slice(0, 20), mode="append")
    spark.read.parquet(table).createOrReplaceTempView("load_rows")
    frame = spark.table("load_rows").select("user", "seq", "text")
    frame.write.option("header", True).csv(str(tmp_path / "csv"))
    sources = [
        {"source": str(tmp_path / "delta"), "format": "delta"},
        {"source": "", "table": "load_rows"},
        {
            "source": str(tmp_path / "csv"),
            "format": "csv",
            "source_options": {"header": "true", "inferSchema": "true"},
        },
    ]
    for source in sources:
        bucket = new_bucket()
        load(**source, bucket=bucket, value="text", content_type="text/plain")
        assert messages(server.url, bucket) == wanted, source


def test_an_iceberg_table(spark, server, bucket, load, tmp_path):
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("n")
    rows = pa.Table.from_pylist(ROWS)
    made = catalog.create_table("n.t", rows.schema)
    made.append(rows)
    place = made.location().removeprefix("file://")
    catalog.close()
    load(source=place, format="iceberg", value="text", content_type="text/plain")
    assert messages(server.url, bucket) == expected(lambda row: row["text"])


@pytest.mark.slow
def test_a_load_that_is_cut_off_and_run_again(server, bucket, load):
    sent = []

    def cut(piece):
        sent.append(piece)
        if sum(each.startswith(b"POST") for each in sent) > 12:
            raise OSError

    options = {"value": "text", "content_type": "text/plain", "close_streams": True}
    with TcpProxy(server.port, cut) as proxy:
        there = SparkConnection(f"http://127.0.0.1:{proxy.port}", retries=0)
        with pytest.raises(HoldfastError):
            load(server=there, concurrency=2, **options)
    wanted = expected(lambda row: row["text"])
    cut_off = messages(server.url, bucket)
    assert 0 < sum(map(len, cut_off.values())) < 40
    done = load(**options)
    assert done.stored_before > 0
    assert messages(server.url, bucket) == wanted
    again = load(**options)
    assert again.stored_before == again.requests
    assert messages(server.url, bucket) == wanted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": ""}, "either 'source' or 'table'"),
        ({"table": "t"}, "either 'source' or 'table'"),
        ({"order_by": []}, "'order_by' is needed"),
        ({"stream_id": " "}, "'stream_id' is needed"),
        ({"value": "a", "payload": "b"}, "at most one of"),
        ({"concurrency": 0}, "'concurrency' is at least 1"),
        ({"ttl": 0}, "'ttl' is at least 1"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, said):
    given = {"bucket": "b", "source": "s", "stream_id": "a", "order_by": ["b"]}
    with pytest.raises(SettingsError, match=said):
        build(Load, given | options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream_id": "nobody"}, "no column 'nobody', which 'stream_id' names"),
        ({"stream_id": "user-{nobody}"}, "no column 'nobody', which 'stream_id' names"),
        ({"stream_id": "user-{user!r}"}, "nothing else in braces"),
        ({"stream_id": "user-{user"}, "not a valid template"),
        ({"order_by": ["nothing"]}, "no column 'nothing', which 'order_by' names"),
        ({"columns": ["nothing"]}, "no column 'nothing', which 'columns' names"),
        ({"value": "raw"}, "holds bytes: name it with 'payload'"),
        ({"where": "nothing > 5"}, "The table cannot be read: .*nothing"),
        ({"source": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"source": "/nowhere/at/all", "format": "delta"}, "no Delta table at /nowhere"),
        ({"format": "spreadsheet"}, "spreadsheet"),
    ],
)
def test_what_the_table_does_not_have_is_said(load, options, said):
    with pytest.raises(HoldfastError, match=said) as caught:
        load(**options)
    assert "\n" not in caught.value.message


def test_a_server_that_is_away_is_said(load):
    with pytest.raises(HoldfastError, match=r"127\.0\.0\.1:1"):
        load(server=SparkConnection("http://127.0.0.1:1", retries=0))
