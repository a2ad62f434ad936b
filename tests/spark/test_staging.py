"""The sink's batches without Spark: exactly the rows, or none, whatever is repeated or refused."""

import httpx
import pyarrow as pa
import pytest

from holdfast.client import SyncClient
from holdfast.errors import (
    BatchConflictError,
    ConflictError,
    ContentTypeMismatchError,
    HoldfastError,
    InvalidJsonError,
    ProducerFencedError,
    SettingsError,
    StreamClosedError,
    StreamNotFoundError,
)
from holdfast.spark.writing.options import WriteColumns, WriteOptions
from holdfast.spark.writing.sender import BatchProducer
from holdfast.spark.writing.staging import drop, publish, stage
from tests.server_process import ServerProcess
from tests.spark.reading_back import messages, new_bucket

TEXT = WriteColumns("value", has_stream=True, has_bucket=False)
BYTES = WriteColumns("payload", has_stream=True, has_bucket=False)
STREAMS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("server"), body_bytes_max=100_000) as process:
        yield process


@pytest.fixture
def bucket():
    return new_bucket()


def rows(numbers):
    return [(f"s{number % STREAMS}", str(number)) for number in numbers]


def expected(given):
    found = {}
    for name, row in given:
        found.setdefault(name, []).append(row)
    return found


class Sink:
    """A write whose tasks run here."""

    def __init__(self, url, bucket, columns=TEXT, **options):
        given = {"url": url, "bucket": bucket, "requestBytes": "200", **options}
        self.options = WriteOptions.of(given, columns)
        self.columns = columns

    def stage(self, tasks, epoch=0, *, has_digest=True):
        """Rows for each task, in order."""
        producer = BatchProducer("sink", epoch)
        return [
            stage(
                *(self.options, self.columns, self._batches(task), producer, partition),
                has_digest=has_digest,
            )
            for partition, task in enumerate(tasks)
        ]

    def _batches(self, given):
        for at in range(0, len(given), 7):
            part = given[at : at + 7]
            columns = [pa.array([name for name, _ in part]), pa.array([row for _, row in part])]
            yield pa.record_batch(columns, names=["stream_id", self.columns.content])

    def write(self, tasks, epoch=0, *, has_digest=True):
        staged = self.stage(tasks, epoch, has_digest=has_digest)
        try:
            publish(self.options, staged[::-1])
        except HoldfastError:
            drop(self.options, staged)
            raise


def test_rows_of_one_stream_in_any_tasks_are_stored_once(server, bucket):
    given = rows(range(200))
    sink = Sink(server.url, bucket)
    sink.write([given[:120], [], given[120:]])
    assert messages(server.url, bucket) == expected(given)
    # Again with other tasks, in another order.
    sink.write([given[150:], given[:150]])
    sink.write([given], has_digest=False)
    assert messages(server.url, bucket) == expected(given)
    with pytest.raises(BatchConflictError, match="has published other data under the epoch 0"):
        sink.write([given[:199]])
    # A query's batch may have other rows when it is repeated: the first ones are the batch.
    sink.write([given[:10]], has_digest=False)
    sink.write([rows(range(200, 300))], 1)
    assert messages(server.url, bucket) == expected(rows(range(300)))
    with pytest.raises(ProducerFencedError, match="epoch 1, and this is 0: another query"):
        sink.write([given])


def test_nothing_is_seen_before_it_is_published_or_after_it_is_dropped(server, bucket):
    sink = Sink(server.url, bucket)
    staged = sink.stage([rows(range(10)), rows(range(10))])
    for path in (f"/{bucket}/streams", "/__parts/streams", f"/v1/stream/__parts/{staged[0].part}"):
        assert httpx.get(server.url + path).status_code == 404
    drop(sink.options, staged)
    with pytest.raises(BatchConflictError, match="missing or incomplete"):
        publish(sink.options, staged)
    sink.write([rows(range(10))])
    assert messages(server.url, bucket) == expected(rows(range(10)))


@pytest.mark.parametrize("reason", ["closed", "type", "missing", "other"])
def test_a_batch_that_one_stream_refuses_stores_nothing(server, bucket, reason):
    given = rows(range(40))
    refused = f"{bucket}/s3"
    options, error = {}, BatchConflictError
    with SyncClient(server.url) as client:
        for at in range(3):
            client.stream(f"{bucket}/s{at}").create("application/json")
        if reason == "closed":
            client.stream(refused).create("application/json", closed=True)
            error = StreamClosedError
        elif reason == "type":
            client.stream(refused).create("text/plain")
            error = ContentTypeMismatchError
        elif reason == "missing":
            options, error = {"createStreams": "false"}, StreamNotFoundError
        else:
            client.stream(refused).create("application/json")
            headers = {"Producer-Id": "sink", "Producer-Epoch": "0", "Producer-Seq": "0"}
            headers["Content-Type"] = "application/json"
            url = f"{server.streams_url}/{refused}"
            assert httpx.post(url, headers=headers, content="1").status_code == 200
            error = ConflictError
    before = messages(server.url, bucket)
    with pytest.raises(error, match=f"Nothing of the batch is stored. The stream '{refused}'"):
        Sink(server.url, bucket, **options).write([given[:20], given[20:]])
    assert messages(server.url, bucket) == before


def test_rows_that_no_stream_takes_are_refused_by_their_task(server, bucket):
    sink = Sink(server.url, bucket)
    with pytest.raises(InvalidJsonError, match="s1' is not JSON: it begins with"):
        sink.stage([[("s0", "1"), ("s1", "{broken")]])
    with pytest.raises(HoldfastError, match="raise the server's setting body_bytes_max"):
        sink.stage([[("s0", '"' + "x" * 100_000 + '"')]])
    with pytest.raises(HoldfastError, match="reserved"):
        Sink(server.url, "__parts").stage([[("s0", "1")]])


def test_another_server_is_told_apart(bucket, server):
    # A server without this route, as older ones are.
    with pytest.raises(SettingsError, match="cannot publish batches"):
        Sink(f"{server.url}/v1", bucket).stage([[("s0", "1")]])


def test_bytes_and_frames_and_ends(server, bucket):
    given = [(name, f"row {row}".encode()) for name, row in rows(range(50))]
    told = {"contentType": "text/plain", "closeStreams": "true", "ttl": "500"}
    for _ in range(2):
        Sink(server.url, bucket, BYTES, **told).write([given[:20], given[20:]])
    as_text = expected([(name, row.decode()) for name, row in given])
    assert messages(server.url, bucket) == as_text
    with SyncClient(server.url) as client:
        heads = [client.stream(f"{bucket}/{name}").head() for name in as_text]
    assert {(head.closed, head.ttl_s) for head in heads} == {(True, 500)}
    framed = f"{bucket}-framed"
    Sink(server.url, framed, BYTES, framing="length-prefixed").write([given[:20], given[20:]])
    assert messages(server.url, framed, "length-prefixed") == as_text
