"""Writing from Spark: every row once and in order, whatever fails in between; or a refusal."""

import itertools
import os
import shutil

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sql

from holdfast.client import SyncClient
from holdfast.errors import BatchConflictError, InvalidJsonError, StreamClosedError
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


def test_a_batch_write_is_stored_once_however_its_rows_are_divided(spark, server, bucket):
    told = {"url": server.url, "bucket": bucket, "producerId": "load", "requestBytes": "200"}
    # Each stream has rows in every task.
    for partitions in (3, 1, 2):
        rows = numbered(spark, 200, partitions=partitions).drop("at")
        rows.write.format("holdfast").options(**told).mode("append").save()
        assert messages(server.url, bucket) == expected(200)
    more = numbered(spark, 100, start=200).drop("at").write.format("holdfast").mode("append")
    assert isinstance(refusal(more.options(**told).save), BatchConflictError)
    more.options(**told, producerEpoch=1).save()
    assert messages(server.url, bucket) == expected(300)


@pytest.mark.slow
def test_a_write_without_a_name_is_stored_each_time(spark, server, bucket):
    rows = numbered(spark, 100).drop("at")
    writer = rows.write.format("holdfast").options(url=server.url, bucket=bucket)
    for _ in range(2):
        writer.mode("append").save()
    assert {name: len(rows) for name, rows in messages(server.url, bucket).items()} == {
        name: 2 * len(rows) for name, rows in expected(100).items()
    }
    assert "mode('append')" in refusal(writer.mode("overwrite").save).message


@pytest.mark.slow
def test_a_write_with_a_row_that_is_refused_stores_nothing(spark, server, bucket):
    rows = numbered(spark, 100).drop("at")
    broken = rows.withColumn("value", sql.when(sql.col("value") == "99", "{").otherwise("1"))
    writer = broken.write.format("holdfast").options(url=server.url, bucket=bucket)
    assert isinstance(refusal(writer.mode("append").save), InvalidJsonError)
    closed = f"{bucket}/s3"
    with SyncClient(server.url) as client:
        client.stream(closed).create("application/json", closed=True)
    writer = rows.write.format("holdfast").options(url=server.url, bucket=bucket)
    error = refusal(writer.mode("append").save)
    assert isinstance(error, StreamClosedError)
    assert f"Nothing of the batch is stored. The stream '{closed}'" in error.message
    assert messages(server.url, bucket) == {"s3": []}


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
    told = {"url": server.url, "bucket": bucket, "requestBytes": "100"}
    for count in (3, 2):
        lines.add(200)
        # What is repeated has other tasks, and its rows another order.
        for partitions in (count, 1):
            spread = lines.frame().repartition(partitions, sql.rand())
            lines.run(spread.writeStream.format("holdfast").options(**told))
            lines.forget_last_commit()
    found = messages(server.url, bucket)
    assert {name: sorted(map(int, rows)) for name, rows in found.items()} == {
        name: list(map(int, rows)) for name, rows in expected(400).items()
    }


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
