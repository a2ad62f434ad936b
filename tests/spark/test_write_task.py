"""What one task does, against a real server and without Spark: stored once, or refused."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pytest
from pyspark import TaskContext

from holdfast.client import SyncClient
from holdfast.errors import (
    ConflictError,
    ContentTypeMismatchError,
    OutboundError,
    PayloadTooLargeError,
    ProducerDigestError,
    ProducerFencedError,
    SettingsError,
    StreamClosedError,
    StreamNotFoundError,
)
from holdfast.spark.writing.options import WriteColumns, WriteOptions
from holdfast.spark.writing.sender import BatchProducer
from holdfast.spark.writing.task import BATCH_PROPERTY, QUERY_PROPERTY, WriteTask
from tests.client.restarting import RestartingServer
from tests.server_process import ServerProcess
from tests.spark.reading_back import messages, new_bucket

TEXT = WriteColumns("value", has_stream=True, has_bucket=False)
BYTES = WriteColumns("payload", has_stream=True, has_bucket=False)
PRODUCER = BatchProducer("writer", 3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("server"), body_bytes_max=100_000) as process:
        yield process


@pytest.fixture
def bucket():
    return new_bucket()


def task(url, bucket, columns=TEXT, **options):
    given = {"url": url, "bucket": bucket, "requestBytes": "100", **options}
    return WriteTask(WriteOptions.of(given, columns), columns)


def rows(numbers, streams=5):
    """Rows as `write_to_streams` lays them out: sorted by stream."""
    found = [(f"s{number % streams}", str(number)) for number in numbers]
    return sorted(found, key=lambda row: row[0])


def batches(given, size=7, content="value"):
    for at in range(0, len(given), size):
        part = given[at : at + size]
        yield pa.record_batch(
            [pa.array([name for name, _ in part]), pa.array([row for _, row in part])],
            names=["stream_id", content],
        )


def expected(given):
    found = {}
    for name, row in given:
        found.setdefault(name, []).append(row)
    return found


def test_rows_are_stored_and_counted(server, bucket):
    given = rows(range(1000))
    report = task(server.url, bucket).write(batches(given), PRODUCER)
    assert messages(server.url, bucket) == expected(given)
    assert (report.rows, report.streams, report.duplicates) == (1000, 5, 0)
    assert report.requests > 5


def test_nothing_to_write_asks_nobody(bucket):
    assert task("http://127.0.0.1:1", bucket).write([], PRODUCER).requests == 0


def test_written_again_in_other_batches_nothing_is_stored_twice(server, bucket):
    given = rows(range(500))
    first = task(server.url, bucket).write(batches(given), PRODUCER)
    again = task(server.url, bucket).write(batches(given, 41), PRODUCER)
    assert messages(server.url, bucket) == expected(given)
    assert again.duplicates == again.requests == first.requests


def test_the_next_batch_follows(server, bucket):
    task(server.url, bucket).write(batches(rows(range(100))), PRODUCER)
    task(server.url, bucket).write(batches(rows(range(100, 200))), BatchProducer("writer", 4))
    assert messages(server.url, bucket) == expected(rows(range(200)))


def failing_after(given, url, bucket):
    """Rows that end in an error as soon as some of them are stored."""
    yield from batches(given)
    for _ in range(2000):
        with SyncClient(url) as client:
            if any(True for _ in client.bucket(bucket).streams()):
                break
    raise RuntimeError("the executor is gone")


def test_a_task_that_fails_in_the_middle_is_done_again(server, bucket):
    given = rows(range(2000))
    with pytest.raises(RuntimeError, match="the executor is gone"):
        task(server.url, bucket).write(failing_after(given, server.url, bucket), PRODUCER)
    stored = sum(map(len, messages(server.url, bucket).values()))
    assert 0 < stored < 2000
    # Another attempt may have fewer or more streams for company.
    for name in expected(given):
        alone = [row for row in given if row[0] == name]
        task(server.url, bucket).write(batches(alone, 100), PRODUCER)
    assert messages(server.url, bucket) == expected(given)


def test_the_same_task_twice_at_the_same_time(server, bucket):
    given = rows(range(2000))
    together = Barrier(3)

    def attempt(size):
        together.wait()
        return task(server.url, bucket).write(batches(given, size), PRODUCER)

    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(attempt, [5, 100, 2000]))
    assert messages(server.url, bucket) == expected(given)
    assert sum(each.requests - each.duplicates for each in reports) == reports[0].requests


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle(tmp_path, bucket):
    given = rows(range(3000))

    def dying():
        for at, batch in enumerate(batches(given, 100)):
            if at in {10, 20}:
                server.kill()
                server.start()
            yield batch

    with RestartingServer(tmp_path) as server:
        task(server.url, bucket).write(dying(), PRODUCER)
        assert messages(server.url, bucket) == expected(given)


def test_one_row_is_one_message_of_a_byte_stream(server, bucket):
    given = [(name, f"row {row}".encode()) for name, row in rows(range(50))]
    told = task(server.url, bucket, BYTES, contentType="text/plain")
    told.write(batches(given, content="payload"), PRODUCER)
    assert messages(server.url, bucket) == expected(rows_as_text(given))


def test_rows_share_requests_that_list_their_lengths(server, bucket):
    given = [(name, f"row {row}".encode()) for name, row in rows(range(50))]
    told = task(server.url, bucket, BYTES, contentType="text/plain", listLengths="true")
    for duplicates in (False, True):
        report = told.write(batches(given, content="payload"), PRODUCER)
        assert (report.requests < 50, bool(report.duplicates)) == (True, duplicates)
    assert messages(server.url, bucket) == expected(rows_as_text(given))


def test_framed_rows_share_requests(server, bucket):
    given = [(name, f"row {row}".encode()) for name, row in rows(range(50))]
    told = task(server.url, bucket, BYTES, framing="length-prefixed")
    report = told.write(batches(given, content="payload"), PRODUCER)
    assert report.requests < 50
    assert messages(server.url, bucket, "length-prefixed") == expected(rows_as_text(given))


def rows_as_text(given):
    return [(name, row.decode()) for name, row in given]


def test_streams_are_closed_behind_their_last_row_however_often(server, bucket):
    given = rows(range(300))
    told = task(server.url, bucket, closeStreams="true")
    for size in (7, 50):
        told.write(batches(given, size), PRODUCER)
    assert messages(server.url, bucket) == expected(given)
    with SyncClient(server.url) as client:
        assert all(info.status == "closed" for info in client.bucket(bucket).streams())
    with pytest.raises(StreamClosedError, match=f"'{bucket}/s.' is closed: .* cannot be appended"):
        told.write(batches(given), BatchProducer("writer", 4))


def test_an_old_epoch_is_explained(server, bucket):
    given = rows(range(10))
    task(server.url, bucket).write(batches(given), PRODUCER)
    with pytest.raises(ProducerFencedError, match="epoch 3, and this is 2: another query"):
        task(server.url, bucket).write(batches(given), BatchProducer("writer", 2))


def test_fewer_rows_under_the_same_number_are_refused(server, bucket):
    task(server.url, bucket).write(batches(rows(range(500))), PRODUCER)
    with pytest.raises(ConflictError, match="not the rows that were written under it"):
        task(server.url, bucket).write(batches(rows(range(500, 600))), PRODUCER)


@pytest.mark.parametrize("count", [500, 600], ids=["as many requests", "more"])
@pytest.mark.parametrize("closes", ["false", "true"])
def test_other_rows_under_the_same_number_are_refused(server, bucket, count, closes):
    told = task(server.url, bucket, closeStreams=closes)
    told.write(batches(rows(range(500))), PRODUCER)
    with pytest.raises((ProducerDigestError, StreamClosedError)) as caught:
        told.write(batches(rows(range(500, 500 + count))), PRODUCER)
    assert "has written other rows" in str(caught.value) or closes == "true"
    assert messages(server.url, bucket) == expected(rows(range(500)))


def test_missing_streams_are_refused_if_they_are_not_to_be_created(server, bucket):
    with pytest.raises(StreamNotFoundError, match=f"There is no stream '{bucket}/s0'"):
        task(server.url, bucket, createStreams="false").write(batches(rows([0])), PRODUCER)
    with SyncClient(server.url) as client:
        client.stream(f"{bucket}/s0").create("application/json", ttl_s=1000)
    task(server.url, bucket, createStreams="false").write(batches(rows([0])), PRODUCER)
    assert messages(server.url, bucket) == {"s0": ["0"]}


def test_new_and_old_streams_together(server, bucket):
    with SyncClient(server.url) as client:
        for at in (1, 4):
            client.stream(f"{bucket}/s{at}").create("application/json", ttl_s=1000)
    given = rows(range(60), 6)
    task(server.url, bucket, ttl="77", concurrency="1").write(batches(given), PRODUCER)
    assert messages(server.url, bucket) == expected(given)
    with SyncClient(server.url) as client:
        found = [client.stream(f"{bucket}/s{at}").head().ttl_s for at in range(6)]
    assert found == [77, 1000, 77, 77, 1000, 77]


def test_another_content_type(server, bucket):
    with SyncClient(server.url) as client:
        client.stream(f"{bucket}/s0").create("text/plain")
    with pytest.raises(ContentTypeMismatchError, match="s0' does not hold application/json: give"):
        task(server.url, bucket).write(batches(rows([0])), PRODUCER)


def test_a_row_that_is_too_large(server, bucket):
    given = [("s0", "1"), ("s0", '"' + "x" * 100_000 + '"')]
    with pytest.raises(PayloadTooLargeError, match=r"A row of the stream .*/s0', 100004 bytes"):
        task(server.url, bucket).write(batches(given), PRODUCER)


def test_a_server_that_is_not_there(bucket):
    with pytest.raises(OutboundError, match=f"Writing to the stream '{bucket}/s0'"):
        task("http://127.0.0.1:1", bucket, retries="1").write(batches(rows([0])), PRODUCER)


def test_a_task_that_spark_does_not_tell_its_batch(bucket):
    with pytest.raises(SettingsError, match="does not tell a task its query and batch"):
        task("http://127.0.0.1:1", bucket).producer_of_stream()


def test_the_batch_of_a_query_is_the_epoch(monkeypatch, bucket):
    # Making one is what sets it: by now there must be what it goes back to.
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext()
    context._localProperties = {QUERY_PROPERTY: "query", BATCH_PROPERTY: "7"}
    monkeypatch.setattr(TaskContext, "_taskContext", context)

    def told(**options):
        return task("http://127.0.0.1:1", bucket, **options)

    assert told().producer_of_stream() == BatchProducer("query", 7)
    assert told(producerId="own").producer_of_stream() == BatchProducer("own", 7)
    assert told(producerId="own").producer_of_batch() == BatchProducer("own", 7)
    assert told().producer_of_batch("default") == BatchProducer("query", 7)
    assert told(producerEpoch="1007").producer_of_batch().epoch == 1007
    with pytest.raises(SettingsError, match="is 0, but this is the batch 7 of a streaming query"):
        told(producerEpoch="0").producer_of_batch()
