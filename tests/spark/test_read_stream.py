"""Stream reads: micro-batches, checkpoints, replays, and what is gone."""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import DataLossError, HoldfastError
from holdfast.spark.reading.arrow import DEFAULT_COLUMNS, spark_schema
from holdfast.spark.reading.readers import StreamReader, stream_reader
from holdfast.spark.session import as_holdfast_error
from holdfast.spark.stream_progress import StreamLag, lag_of, print_progress
from tests.client.node_process import node_server
from tests.server_process import ServerProcess
from tests.spark.filled import JSON, Filled, Row, ordered, rows_of
from tests.thorough import some_of

DEADLINE_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("stream") / "data", flush_age=3600) as process:
        yield process


@pytest.fixture
def bucket(server: ServerProcess) -> Filled:
    return Filled(server.url, f"bucket-{uuid4().hex[:8]}")


@dataclass
class Query:
    """A query that can be run again and again on one checkpoint; what each batch held."""

    spark: SparkSession
    checkpoint: Path
    options: dict[str, str]
    batches: list[tuple[int, list[Row]]] = field(default_factory=list)
    # In the progress of each batch of the last run.
    lags: list[StreamLag | None] = field(default_factory=list)

    def run(self, **options: Any) -> list[Row]:
        """Read what is there now; the rows of this run."""
        before = len(self.batches)
        options = self.options | {name: str(value) for name, value in options.items()}
        frame = self.spark.readStream.format("holdfast").options(**options).load()
        query = (
            frame.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(DEADLINE_S)
        self.lags = [lag_of(each) for each in query.recentProgress]
        return ordered(row for _, rows in self.batches[before:] for row in rows)

    def fails(self, **options: Any) -> HoldfastError:
        """Run it, and take the sentence that it ends with."""
        with pytest.raises(StreamingQueryException) as caught:
            self.run(**options)
        assert "Traceback" not in str(caught.value)
        found = as_holdfast_error(caught.value)
        assert "\n" not in found.message
        return found

    def forget_last_commit(self) -> None:
        """As if the driver had been killed before it could write that the batch is done."""
        commits = [each for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit()]
        last = max(commits, key=lambda each: int(each.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)

    def _take(self, frame: DataFrame, batch: int) -> None:
        rows = frame.select(*Row._fields).collect()
        self.batches.append((batch, [Row(*row[:-1], bytes(row[-1])) for row in rows]))


class ByHand:
    """Asks a reader for what Spark asks it for, in that order, and keeps the place by itself."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.place: dict[str, Any] | None = None
        self.batches: list[tuple[int, list[Row]]] = []

    def run(self, **options: Any) -> list[Row]:
        """Read what is there now; the rows of this run."""
        given = self.options | {name: str(value) for name, value in options.items()}
        reader = stream_reader(given, spark_schema(DEFAULT_COLUMNS))
        reader.prepareForTriggerAvailableNow()
        self.place = place = reader.initialOffset() if self.place is None else self.place
        found: list[Row] = []
        while True:
            reader = pickle.loads(pickle.dumps(reader))
            end = json.loads(json.dumps(reader.latestOffset(place, reader.getDefaultReadLimit())))
            if end == place:
                break
            rows = rows_of(reader.partitions(place, end))
            reader.commit(end)
            self.batches.append((len(self.batches), rows))
            found += rows
            self.place = place = end
        return ordered(found)

    def fails(self, **options: Any) -> HoldfastError:
        """Run it, and take the sentence that it ends with."""
        with pytest.raises(HoldfastError) as caught:
            self.run(**options)
        assert "\n" not in caught.value.message
        return caught.value


@pytest.fixture
def by_hand(bucket: Filled) -> ByHand:
    return ByHand(bucket.options())


@pytest.fixture
def query(spark: SparkSession, bucket: Filled, tmp_path: Path) -> Query:
    return Query(spark, tmp_path / "checkpoint", bucket.options())


def test_each_row_once_over_restarts(query: Query, bucket: Filled) -> None:
    bucket.append("json", *({"n": n} for n in range(5)), content_type=JSON)
    bucket.append("raw", b"a", b"b")
    bucket.flush()
    bucket.append("raw", b"c")
    assert query.run() == bucket.everything()
    assert query.lags[0] == StreamLag()
    assert query.run() == []
    # New streams are picked up, and new messages of those that are known.
    bucket.append("another", b"1")
    bucket.append("raw", b"d")
    bucket.flush()
    bucket.append("json", {"n": 5}, content_type=JSON)
    found = query.run()
    assert found == ordered(bucket.rows[8:])
    assert ordered(row for _, rows in query.batches for row in rows) == bucket.everything()
    # A batch that was not committed comes again, the same rows, whatever came since.
    query.forget_last_commit()
    number, rows = query.batches[-1]
    bucket.append("raw", b"e")
    bucket.flush()
    query.run()
    assert query.batches[-2][0] == number
    assert ordered(query.batches[-2][1]) == ordered(rows)
    assert [row.payload for row in query.batches[-1][1]] == [b"e"]


@pytest.mark.slow
def test_limits_in_spark(query: Query, bucket: Filled) -> None:
    for n in range(30):
        bucket.append(f"s{n % 3}", bytes([n]) * 100)
    output = StringIO()
    printer = print_progress(query.spark, output)
    assert query.run(maxRowsPerTrigger=10) == bucket.everything()
    assert [len(rows) for _, rows in query.batches] == [10, 10, 10]
    assert [lag.messages for lag in query.lags[:3] if lag] == [20, 10, 0]
    deadline = monotonic() + DEADLINE_S
    while "up to date" not in output.getvalue() and monotonic() < deadline:
        sleep(0.05)
    query.spark.streams.removeListener(printer)
    first, *_, last = output.getvalue().splitlines()
    assert "batch 0, 10 rows; behind by 20 messages (0.0 MB) and " in first
    assert last.endswith(": batch 2, 10 rows; up to date")
    offsets = (query.checkpoint / "offsets" / "2").read_text().splitlines()
    assert list(json.loads(offsets[-1])) == ["cursor", "store", "began"]


@pytest.mark.parametrize("flushed", [True, False])
def test_limits(by_hand: ByHand, bucket: Filled, flushed: bool) -> None:
    query = by_hand
    for n in range(30):
        bucket.append(f"s{n % 3}", bytes([n]) * 100)
    if flushed:
        bucket.flush()
    assert query.run(maxRowsPerTrigger=8) == bucket.everything()
    sizes = [len(rows) for _, rows in query.batches]
    assert len(sizes) >= 4
    assert max(sizes) <= 10
    query.batches.clear()
    for n in range(30):
        bucket.append(f"s{n % 3}", bytes([n]) * 100)
    if flushed:
        bucket.flush()
    assert query.run(maxBytesPerTrigger="1k") == ordered(bucket.rows[30:])
    assert len(query.batches) >= 3
    assert max(len(rows) for _, rows in query.batches) <= 13


def test_the_smaller_limit_counts(by_hand: ByHand, bucket: Filled) -> None:
    for n in range(6):
        bucket.append("a", bytes([n]) * (10 if n < 3 else 1000))
    by_hand.run(maxRowsPerTrigger=2, maxBytesPerTrigger="1500")
    assert [len(rows) for _, rows in by_hand.batches] == [2, 2, 1, 1]


@pytest.mark.parametrize("flushed", [True, False])
def test_a_limit_by_time_and_a_start(by_hand: ByHand, bucket: Filled, flushed: bool) -> None:
    times = []
    for step in range(3):
        for n in range(3):
            bucket.append(f"s{n}", bytes([step]))
        times.append(datetime.now(UTC))
        if flushed:
            bucket.flush()
        sleep(0.2)
    following = reader(bucket, maxTimePerTrigger="150ms")
    start = following.initialOffset()
    following.latestOffset(start, following.getDefaultReadLimit())
    # After the first step, the oldest message that is left is of the second.
    assert following.reportLatestOffset()["lag"]["messages"] == 6
    assert 150 < following.reportLatestOffset()["lag"]["ms"] < 60_000
    assert by_hand.run(maxTimePerTrigger="150ms") == bucket.everything()
    assert [len(rows) for _, rows in by_hand.batches] == [3, 3, 3]
    late = ByHand(bucket.options(startingTimestamp=times[1].isoformat(), maxRowsPerTrigger=2))
    assert [row.payload for row in late.run()] == [b"\2"] * 3
    # What is known to be older is skipped at once.
    assert len(late.batches) <= 3


def test_several_buckets(server: ServerProcess) -> None:
    name = f"many-{uuid4().hex[:6]}"
    first, second = Filled(server.url, f"{name}-1"), Filled(server.url, f"{name}-2")
    first.append("a", b"0", b"1")
    second.append("a", *(bytes([n]) for n in range(6)))
    first.flush()
    second.append("b", b"x")
    options = first.options()
    listed = ByHand(options | {"bucket": f"{name}-1,{name}-2"})
    assert listed.run(maxRowsPerTrigger=4) == ordered(first.rows + second.rows)
    # Each bucket has its share of the limit.
    assert max(len(rows) for _, rows in listed.batches) <= 4
    del options["bucket"]
    matching = ByHand(options | {"bucketPattern": f"{name}-.*"})
    assert matching.run() == ordered(first.rows + second.rows)
    third = Filled(server.url, f"{name}-3")
    third.append("new", b"1")
    first.append("a", b"2")
    assert matching.run() == ordered([first.rows[-1], *third.rows])
    assert listed.run() == [first.rows[-1]]
    plain = listed.fails(via="http")
    assert "only one bucket can be followed" in plain.message


def test_checkpoints_of_the_version_before(by_hand: ByHand, bucket: Filled) -> None:
    bucket.append("a", b"0", b"1")
    cursor = bucket.cursor()
    store = bucket.client.storage.store().store_id
    bucket.append("a", b"2")
    bucket.append("b", b"3")
    bucket.flush()
    # As they are in its file "offsets".
    by_hand.place = json.loads(f'{{"cursor": "{cursor}", "store": "{store}"}}')
    assert by_hand.run() == ordered(bucket.rows[2:])
    assert sorted(by_hand.place) == ["cursor", "store"]
    by_hand.place = json.loads(f'{{"streams": {{"a": "{2:020d}"}}}}')
    assert by_hand.run(via="http") == ordered(bucket.rows[2:])
    bucket.append("a", b"4")
    by_hand.place = json.loads(f'{{"cursor": "{bucket.cursor()}", "store": "{store}"}}')
    bucket.append("a", b"5")
    assert by_hand.run(maxRowsPerTrigger=5) == bucket.rows[-1:]


def test_starting_places(bucket: Filled) -> None:
    bucket.append("a", b"0", b"1")
    cursor = bucket.cursor()
    bucket.append("a", b"2")
    bucket.append("b", b"0")

    def query(**options: str) -> ByHand:
        return ByHand(bucket.options(**options))

    assert query(startingOffsets=cursor).run() == ordered(bucket.rows[2:])
    offsets = query(startingOffsets=f'{{"a": "{1:020d}"}}')
    assert offsets.run() == ordered(bucket.rows[1:])
    pattern = query(streamPattern="b.*", startingOffsets="latest")
    assert pattern.run() == []
    bucket.append("a", b"3")
    bucket.append("bb", b"0")
    assert [row.stream_id for row in pattern.run()] == ["bb"]
    # The beginning was read, and so a snapshot may take its place.
    assert offsets.run() == ordered(bucket.rows[4:])
    snapshot(bucket, "a", 3)
    bucket.append("a", b"4")
    bucket.flush()
    assert [row.payload for row in offsets.run()] == [b"4"]


def snapshot(bucket: Filled, stream_id: str, offset: int) -> None:
    bucket.client.stream(f"{bucket.bucket}/{stream_id}").snapshots.publish(f"{offset:020d}", b"x")


def test_what_is_gone(by_hand: ByHand, bucket: Filled) -> None:
    query = by_hand
    bucket.append("a", b"0", b"1")
    bucket.append("b", b"0")
    bucket.append("c", b"0")
    query.run()
    bucket.append("a", b"2", b"3")
    bucket.append("b", b"1")
    bucket.append("c", b"1")
    bucket.client.stream(f"{bucket.bucket}/b").delete()
    found = query.fails()
    assert isinstance(found, DataLossError)
    assert "Messages of 'b' in the bucket" in found.message
    assert "set 'failOnDataLoss' to false" in found.message
    rest = query.run(failOnDataLoss="false")
    assert [row.payload for row in rest if row.stream_id != "b"] == [b"2", b"3", b"1"]
    bucket.append("a", b"4", b"5")
    bucket.flush()
    snapshot(bucket, "a", 5)
    bucket.flush()
    assert "'a'" in query.fails().message
    assert [row.payload for row in query.run(failOnDataLoss="false")] == [b"5"]
    bucket.append("a", b"6")
    assert [row.payload for row in query.run()] == [b"6"]


@pytest.mark.parametrize("limits", some_of([{}, {"maxRowsPerTrigger": 5}], 1))
@pytest.mark.parametrize("appends", [1, 90])
def test_a_checkpoint_of_another_server(
    by_hand: ByHand, bucket: Filled, tmp_path: Path, limits: dict[str, int], appends: int
) -> None:
    query = by_hand
    bucket.append("a", *(bytes([n]) for n in range(50)))
    query.run()
    with ServerProcess(tmp_path / "other") as other:
        there = Filled(other.url, bucket.bucket)
        there.append("a", *(bytes([n]) for n in range(appends)))
        found = query.fails(url=other.url, **limits)
    assert "does not know the cursor in the checkpoint" in found.message
    assert "is it another server" in found.message


@pytest.mark.slow
def test_loss_in_spark(query: Query, bucket: Filled) -> None:
    bucket.append("a", b"0")
    bucket.append("b", b"0")
    query.run()
    bucket.append("a", b"1")
    bucket.append("b", b"1")
    bucket.client.stream(f"{bucket.bucket}/b").delete()
    found = query.fails()
    assert isinstance(found, DataLossError)
    assert "Messages of 'b' in the bucket" in found.message
    assert [row.payload for row in query.run(failOnDataLoss="false")] == [b"1"]


@pytest.mark.parametrize("via", ["auto", "http"])
def test_a_server_of_another_make(via: str) -> None:
    with node_server() as url:
        bucket = Filled(url)
        stream = bucket.client.stream("events/text")
        stream.create("text/plain")
        stream.append("one")
        query = ByHand({"url": url, "bucket": "events", "streams": "text", "via": via})
        assert [row.payload for row in query.run()] == [b"one"]
        assert query.run() == []
        stream.append("two")
        assert [row.payload for row in query.run()] == [b"two"]
        cursor = ByHand(query.options | {"startingOffsets": f"{1:020d}"})
        assert "cannot tell what came after a cursor" in cursor.fails().message


def reader(bucket: Filled, **options: Any) -> StreamReader:
    return stream_reader(bucket.options(**options), spark_schema(DEFAULT_COLUMNS))


def test_parts_by_hand(bucket: Filled) -> None:
    """What Spark asks for, one after the other: also a batch in which nothing changed."""
    bucket.append("a", b"0")
    following = reader(bucket)
    start = following.initialOffset()
    assert following.partitions(start, start) == []
    end = following.latestOffset(start, following.getDefaultReadLimit())
    shown = following.reportLatestOffset()
    assert shown.pop("lag") == {"bytes": 0, "messages": 0, "ms": 0}
    assert shown.items() <= end.items()
    assert rows_of(following.partitions(start, end)) == bucket.everything()
    assert following.partitions(end, end) == []
    assert following.latestOffset(end, following.getDefaultReadLimit()) == end
    bucket.append("a", b"1")
    # What Spark shows besides has what is left after the present batch.
    assert following.reportLatestOffset()["lag"]["messages"] == 1
    later = following.latestOffset(end, following.getDefaultReadLimit())
    assert later["cursor"] > end["cursor"]
    assert [row.payload for row in rows_of(following.partitions(end, later))] == [b"1"]


def test_lag_is_what_is_left(bucket: Filled) -> None:
    """Also while more is appended; the backlog itself is counted once."""
    following = reader(bucket, maxRowsPerTrigger=4)
    for n in range(12):
        bucket.append(f"s{n}", bytes([n]) * 100)
    bucket.flush()
    place, taken = following.initialOffset(), 0
    while taken < 20:
        end = following.latestOffset(place, following.getDefaultReadLimit())
        taken += len(rows_of(following.partitions(place, end)))
        lag = following.reportLatestOffset()["lag"]
        assert (lag["messages"], lag["bytes"]) == (
            len(bucket.rows) - taken,
            100 * (len(bucket.rows) - taken),
        )
        assert (lag["ms"] > 0) == (taken < len(bucket.rows))
        place = end
        if len(bucket.rows) < 20:
            bucket.append(f"s{len(bucket.rows)}", b"x" * 100, b"y" * 100)


def test_a_given_number_of_partitions(bucket: Filled) -> None:
    for n in range(8):
        bucket.append(f"s{n}", bytes([n]) * 300_000)
    following = reader(bucket, minPartitions=4)
    start = following.initialOffset()
    end = following.latestOffset(start, following.getDefaultReadLimit())
    for _ in range(2):
        parts = following.partitions(start, end)
        assert len(parts) >= 2
        assert ordered(rows_of(parts)) == bucket.everything()
        bucket.flush()


@pytest.mark.slow
def test_many_streams_few_of_which_changed(bucket: Filled) -> None:
    for n in range(300):
        bucket.append(f"s{n:03d}", b"x")
    bucket.flush()
    following = reader(bucket)
    limit = following.getDefaultReadLimit()
    end = following.latestOffset(following.initialOffset(), limit)
    for n in range(0, 300, 100):
        bucket.append(f"s{n:03d}", b"y")
    later = following.latestOffset(end, limit)
    found: Callable[[], list[Row]] = lambda: ordered(rows_of(following.partitions(end, later)))  # noqa: E731
    assert [row.stream_id for row in found()] == ["s000", "s100", "s200"]
    bucket.flush()
    assert [row.stream_id for row in found()] == ["s000", "s100", "s200"]
