"""Writing from Spark: every row once and in order, whatever fails in between; or a refusal."""

import itertools
import os
import shutil

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sql

from holdfast.errors import InvalidJsonError, SettingsError
from holdfast.spark.session import as_holdfast_error
from holdfast.spark.source import HoldfastDataSource
from holdfast.spark.writing.writers import write_to_streams
from tests.client.restarting import RestartingServer
from tests.server_process import ServerProcess
from tests.spark.reading_back import messages, new_bucket
from tests.tcp_proxy import TcpProxy

STREAMS = 7


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    spark.dataSource.register(HoldfastDataSource)


@pytest.fixture
def bucket():
    return new_bucket()


def numbered(spark, count, start=0, partitions=3):
    """Rows of which each stream has some in every partition, the last ones first."""
    frame = spark.range(start, start + count, 1, partitions)
    return frame.select(
        sql.concat(sql.lit("s"), sql.col("id") % STREAMS).alias("stream_id"),
        sql.col("id").cast("string").alias("value"),
        (-sql.col("id")).alias("at"),
    )


def expected(count, start=0, *, backwards=False):
    found = {}
    for number in range(start, start + count):
        found.setdefault(f"s{number % STREAMS}", []).append(str(number))
    return {name: rows[::-1] if backwards else rows for name, rows in found.items()}


def refusal(call, *arguments, **named):
    with pytest.raises(Exception) as caught:
        call(*arguments, **named)
    return as_holdfast_error(caught.value)


def test_a_batch_write_can_be_run_again(spark, server, bucket):
    rows = numbered(spark, 500, partitions=1).drop("at")
    for size in ("10000", "13"):
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", size)
        writer = rows.write.format("holdfast").option("url", server.url).mode("append")
        writer.options(bucket=bucket, producerId="load", requestBytes="200").save()
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert messages(server.url, bucket) == expected(500)
    writer.options(bucket=bucket, producerId="load", producerEpoch=1).save()
    assert {name: len(rows) for name, rows in messages(server.url, bucket).items()} == {
        name: 2 * len(rows) for name, rows in expected(500).items()
    }


@pytest.mark.slow
def test_rows_of_one_stream_in_several_tasks_are_refused(spark, server, bucket):
    rows = numbered(spark, 100).drop("at")
    writer = rows.write.format("holdfast").option("url", server.url).mode("append")
    error = refusal(writer.options(bucket=bucket, producerId="load").save)
    assert isinstance(error, SettingsError)
    assert "write_to_streams" in error.message


@pytest.mark.slow
def test_a_batch_write_needs_a_name_and_appends(spark, server, bucket):
    rows = numbered(spark, 10).drop("at")
    writer = rows.write.format("holdfast").options(url=server.url, bucket=bucket)
    assert "'producerId' is required" in refusal(writer.mode("append").save).message
    named = writer.option("producerId", "load")
    assert "mode('append')" in refusal(named.mode("overwrite").save).message


def test_rows_are_laid_out_and_sorted(spark, server, bucket):
    told = {"url": server.url, "bucket": bucket, "requestBytes": 200}
    for partitions in (None, 1, 5):
        report = write_to_streams(
            numbered(spark, 500),
            producer_id="load",
            batch_id=0,
            order_by="at",
            partitions=partitions,
            **told,
        )
    assert messages(server.url, bucket) == expected(500, backwards=True)
    assert (report.rows, report.streams) == (500, STREAMS)
    assert report.duplicates == report.requests > STREAMS
    next_rows = numbered(spark, 100, start=500)
    write_to_streams(next_rows, producer_id="load", batch_id=1, order_by=["at"], **told)
    assert [int(row) for row in messages(server.url, bucket)["s0"]] == [
        *range(497, -1, -7),
        *range(595, 500, -7),
    ]


@pytest.mark.slow
def test_buckets_in_rows_and_ties(spark, server, bucket):
    rows = spark.createDataFrame(
        [(bucket, "a/b", 1, b"2"), (None, "é", 1, b"1"), (bucket, "a/b", 1, b"1")],
        "bucket string, stream_id string, at int, payload binary",
    )
    told = {"url": server.url, "bucket": f"{bucket}2", "contentType": "text/plain"}
    write_to_streams(rows, producer_id="load", batch_id=0, order_by="at", **told)
    assert messages(server.url, bucket) == {"a/b": ["1", "2"]}
    assert messages(server.url, f"{bucket}2") == {"é": ["1"]}


@pytest.mark.slow
def test_wrong_rows_are_refused_before_or_in_a_sentence(spark, server, bucket):
    def refused(frame, **given):
        told = {"url": server.url, "bucket": bucket, "producer_id": "load", "order_by": "at"}
        return refusal(write_to_streams, frame, batch_id=0, **{**told, **given})

    rows = numbered(spark, 20)
    assert "'extra' cannot be written" in refused(rows.withColumn("extra", sql.lit(1))).message
    assert "no column 'when' to order by" in refused(rows, order_by="when").message
    assert "producer_id must not be empty" in refused(rows, producer_id="").message
    assert "did you mean 'closeStreams'" in refused(rows, closeStream=True).message
    broken = refused(rows.withColumn("value", sql.lit("{broken")))
    assert isinstance(broken, InvalidJsonError)
    assert "begins with '{broken'" in broken.message


@pytest.mark.slow
def test_tasks_that_fail_in_the_middle(spark, server, bucket):
    """The connection is cut again and again, and the client does not try by itself."""
    pieces = itertools.count(1)

    def cut(_piece):
        if next(pieces) in {3, 12, 30}:
            raise OSError

    with TcpProxy(server.port, cut) as proxy:
        told = {"url": f"http://127.0.0.1:{proxy.port}", "bucket": bucket, "retries": 0}
        report = write_to_streams(
            numbered(spark, 500),
            producer_id="load",
            batch_id=0,
            order_by="at",
            requestBytes=100,
            concurrency=1,
            **told,
        )
    assert next(pieces) > 30
    assert messages(server.url, bucket) == expected(500, backwards=True)
    assert report.duplicates > 0


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle(spark, tmp_path, bucket):
    pieces = itertools.count(1)

    def crash(_piece):
        if next(pieces) in {10, 30}:
            server.kill()
            server.start()

    with RestartingServer(tmp_path / "data") as server, TcpProxy(server.port, crash) as proxy:
        told = {"url": f"http://127.0.0.1:{proxy.port}", "bucket": bucket, "requestBytes": 100}
        write_to_streams(
            numbered(spark, 500), producer_id="load", batch_id=0, order_by="at", **told
        )
        assert next(pieces) > 30
        assert messages(server.url, bucket) == expected(500, backwards=True)


class Lines:
    """Files of which each is a batch of a streaming query."""

    def __init__(self, spark, path):
        self.spark = spark
        self.source = path / "source"
        self.source.mkdir()
        self.checkpoint = path / "checkpoint"
        self.written = 0

    def add(self, count):
        text = "".join(
            f"s{number % STREAMS} {number}\n"
            for number in range(self.written, self.written + count)
        )
        file = self.source / f"{self.written:06d}.txt"
        file.write_text(text)
        # Files are taken in the order of their times.
        os.utime(file, (self.written + 1, self.written + 1))
        self.written += count

    def frame(self):
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.source))
        words = sql.split("value", " ")
        return lines.select(words[0].alias("stream_id"), words[1].alias("value"))

    def run(self, writer):
        """Do what is new, as one run of the query."""
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        started = query.start()
        started.awaitTermination()

    def forget_last_commit(self):
        """As if the driver had been killed between the write and its commit."""
        commits = sorted(
            (each for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit()),
            key=lambda each: int(each.name),
        )
        commits[-1].unlink()
        (self.checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
        return int(commits[-1].name)


@pytest.mark.slow
def test_a_query_whose_commit_is_lost(spark, server, bucket, tmp_path):
    lines = Lines(spark, tmp_path)
    told = {"url": server.url, "bucket": bucket, "requestBytes": "100"}
    for _ in range(3):
        lines.add(200)
    lines.run(lines.frame().writeStream.format("holdfast").options(**told))
    assert lines.forget_last_commit() == 2
    lines.add(100)
    lines.run(lines.frame().writeStream.format("holdfast").options(**told))
    assert messages(server.url, bucket) == expected(700)
    # Another query under the same name would write under numbers that are taken.
    shutil.rmtree(lines.checkpoint)
    named = lines.frame().writeStream.format("holdfast").options(**told, producerId="named")
    lines.run(named)
    shutil.rmtree(lines.checkpoint)
    error = refusal(lines.run, named)
    assert "choose another producerId" in error.message


@pytest.mark.slow
def test_a_query_with_rows_of_one_stream_in_several_tasks(spark, server, bucket, tmp_path):
    lines = Lines(spark, tmp_path)
    lines.add(100)
    spread = lines.frame().repartition(3)
    writer = spread.writeStream.format("holdfast").options(url=server.url, bucket=bucket)
    with pytest.raises(StreamingQueryException) as caught:
        lines.run(writer)
    assert "write_to_streams" in as_holdfast_error(caught.value).message
    assert not list((lines.checkpoint / "commits").glob("[0-9]*"))


@pytest.mark.slow
def test_batches_that_fail_and_are_done_again_in_other_partitions(spark, server, bucket, tmp_path):
    lines = Lines(spark, tmp_path)
    lines.add(200)
    lines.add(200)
    runs = []

    def write(batch, batch_id):
        runs.append(batch_id)
        write_to_streams(
            batch.withColumn("at", sql.col("value").cast("long")),
            producer_id="lines",
            batch_id=batch_id,
            order_by="at",
            partitions=len(runs),
            url=server.url,
            bucket=bucket,
            requestBytes=100,
        )
        if len(runs) in {1, 3}:
            raise RuntimeError("the driver is gone")

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="the driver is gone"):
            lines.run(lines.frame().writeStream.foreachBatch(write))
    lines.run(lines.frame().writeStream.foreachBatch(write))
    assert runs == [0, 0, 1, 1]
    assert messages(server.url, bucket) == expected(400)
