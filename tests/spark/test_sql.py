"""Tables, views and functions of Spark SQL."""

import pytest

from holdfast.client import SyncClient
from holdfast.errors import SettingsError
from holdfast.spark import register_functions
from holdfast.spark.session import as_holdfast_error
from holdfast.spark.source import HoldfastDataSource
from tests.server_process import ServerProcess
from tests.spark.reading_back import messages, new_bucket


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def bucket(spark):
    spark.dataSource.register(HoldfastDataSource)
    yield new_bucket()
    for table in spark.catalog.listTables():
        kind = "VIEW" if table.tableType == "VIEW" or table.isTemporary else "TABLE"
        spark.sql(f"DROP {kind} {table.name}")


def options(server, bucket, more=""):
    return f"OPTIONS (url '{server.url}', bucket '{bucket}'{more})"


def rows(spark, statement):
    return sorted(tuple(row) for row in spark.sql(statement).collect())


def refusal(spark, statement):
    with pytest.raises(Exception) as caught:
        spark.sql(statement).collect()
    return as_holdfast_error(caught.value)


def test_a_table_is_written_and_read(spark, server, bucket):
    more = ", columns 'stream_id,value', ttl '900'"
    spark.sql(f"CREATE TABLE clicks USING holdfast {options(server, bucket, more)} COMMENT 'c'")
    spark.sql("INSERT INTO clicks VALUES ('a', '1'), ('b', '2'), ('a', '3')")
    assert messages(server.url, bucket) == {"a": ["1", "3"], "b": ["2"]}
    assert rows(spark, "SELECT * FROM clicks WHERE stream_id = 'b'") == [("b", "2")]
    with SyncClient(server.url) as client:
        assert client.stream(f"{bucket}/a").head().ttl_s == 900


@pytest.mark.slow
def test_changes_between_cursors(spark, server, bucket):
    with SyncClient(server.url) as client:
        stream = client.stream(f"{bucket}/a")
        stream.create("text/plain")
        stream.append("1")
        *_, page = client.bucket(bucket).changes()
        stream.append("2")
    register_functions(spark, url=server.url, retries="0")

    def changed(arguments=""):
        function = f"holdfast_changes('{bucket}'{arguments})"
        return rows(spark, f"SELECT stream_id, CAST(payload AS STRING) FROM {function}")

    assert changed() == [("a", "1"), ("a", "2")]
    assert changed(f", NULL, '{page.next_cursor}'") == [("a", "1")]
    assert changed(f", '{page.next_cursor}'") == [("a", "2")]
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        changed(", url => 'http://127.0.0.1:1'")
    spark.conf.set("spark.holdfast.url", "http://127.0.0.1:1")
    spark.conf.set("spark.holdfast.retries", "0")
    register_functions(spark)
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        changed()
    spark.conf.unset("spark.holdfast.url")
    spark.conf.unset("spark.holdfast.retries")


@pytest.mark.slow
def test_tables_with_all_columns_and_views(spark, server, bucket):
    more = ", contentType 'text/plain'"
    spark.sql(f"CREATE TABLE notes USING holdfast {options(server, bucket, more)}")
    spark.sql("INSERT INTO notes (stream_id, payload) VALUES ('a', X'31')")
    spark.sql("CREATE VIEW texts AS SELECT stream_id, CAST(payload AS STRING) AS text FROM notes")
    assert rows(spark, "SELECT * FROM texts") == [("a", "1")]
    spark.sql(f"CREATE TEMPORARY VIEW short USING holdfast {options(server, bucket)}")
    assert rows(spark, "SELECT count(*) FROM short") == [(1,)]
    assert rows(spark, "SELECT count(*) FROM notes WITH (streams = 'b')") == [(0,)]
    error = refusal(
        spark, "INSERT INTO notes (stream_id, payload, offset) VALUES ('a', X'32', '1')"
    )
    assert error.message.startswith("The column 'offset' cannot be written")
    assert "mode('append')" in refusal(spark, "INSERT OVERWRITE notes SELECT * FROM notes").message
    # What was read from a table goes where the write says, not into the table.
    other = new_bucket()
    frame = spark.table("notes").select("stream_id", "payload")
    frame.write.format("holdfast").options(url=server.url, bucket=other).mode("append").save()
    assert messages(server.url, other) == {"a": ["1"]}
    assert messages(server.url, bucket) == {"a": ["1"]}


@pytest.mark.slow
def test_typed_tables(spark, server, bucket):
    more = """, jsonSchema 'name STRING COMMENT "it\\'s", n INT'"""
    spark.sql(f"CREATE TABLE typed USING holdfast {options(server, bucket, more)}")
    with SyncClient(server.url) as client:
        stream = client.stream(f"{bucket}/a")
        stream.create("application/json")
        stream.append({"name": "x", "n": 1})
    assert rows(spark, "SELECT stream_id, name, n FROM typed") == [("a", "x", 1)]


@pytest.mark.slow
def test_what_a_table_cannot_be(spark, server, bucket):
    wrong = refusal(spark, f"CREATE TABLE t USING holdfast OPTIONS (bukket '{bucket}')")
    assert "did you mean 'bucket'" in wrong.message
    spark.sql(f"CREATE TABLE t (stream_id STRING) USING holdfast {options(server, bucket)}")
    for statement in ("SELECT * FROM t", "INSERT INTO t VALUES ('a')"):
        error = refusal(spark, statement)
        assert isinstance(error, SettingsError)
        assert "give the option 'columns' instead" in error.message
