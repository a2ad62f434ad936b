"""Forks: rows of what they inherit, as many as over HTTP, and each of them once."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from holdfast.client import SyncClient
from holdfast.errors import SettingsError
from holdfast.spark.reading.arrow import DEFAULT_COLUMNS, spark_schema
from holdfast.spark.reading.readers import stream_reader
from tests.server_process import ServerProcess
from tests.spark.archiving import rows, table_at
from tests.spark.archiving import run as archive
from tests.spark.filled import BYTES, JSON, Filled, Row, ordered, read, rows_of
from tests.thorough import some_of

KINDS = (BYTES, JSON)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("forks") / "data", flush_age=3600) as process:
        yield process


@pytest.fixture
def bucket(server: ServerProcess) -> Filled:
    return Filled(server.url, f"bucket-{uuid4().hex[:8]}")


def over_http(client: SyncClient, bucket: str) -> list[Row]:
    """What readers of the plain protocol get."""
    rows = []
    for info in client.bucket(bucket).streams():
        stream = client.stream(f"{bucket}/{info.stream_id}")
        head = stream.head()
        at = int(head.earliest_offset or 0)
        for message in stream.read(offset=f"{at:020d}"):
            payload, end = bytes(message.payload), int(message.next_offset)
            rows.append(
                Row(info.stream_id, f"{at:020d}", f"{end:020d}", head.content_type, payload)
            )
            at = end
    return ordered(rows)


class Tree:
    """Streams of two buckets, forks of them, and forks of forks; made at random."""

    def __init__(self, client: SyncClient, buckets: tuple[str, str], seed: int) -> None:
        self.chance = Random(seed)
        self.client = client
        self.buckets = buckets
        # The offsets between messages, by name.
        self.ends: dict[str, list[int]] = {}
        self.kinds: dict[str, str] = {}
        for bucket in buckets:
            client.bucket(bucket).create()
        for number, name in enumerate(f"{buckets[number % 2]}/s{number}" for number in range(4)):
            self.kinds[name] = KINDS[number // 2]
            client.stream(name).create(self.kinds[name])
            self.ends[name] = [0]

    def step(self) -> None:
        actions = [self.append, self.append, self.fork, self.fork, self.trim, self.delete]
        self.chance.choices([*actions, self.client.storage.flush], [4, 4, 3, 3, 1, 1, 2])[0]()

    def append(self) -> None:
        name = self._any()
        for _ in range(self.chance.randrange(1, 4)):
            text = "m" * self.chance.randrange(1, 9)
            answer = self.client.stream(name).append(
                {"text": text} if self.kinds[name] == JSON else text.encode()
            )
            self.ends[name].append(int(answer.next_offset))

    def fork(self) -> None:
        source, number = self._any(), len(self.kinds)
        name = f"{self.chance.choice(self.buckets)}/f{number}"
        at = self.chance.choice(self.ends[source])
        if self.kinds[source] == BYTES and at < self.ends[source][-1]:
            # Inside a message, perhaps.
            at += self.chance.randrange(2)
        self.client.stream(name).fork(self.client.stream(source), offset=f"{at:020d}")
        self.kinds[name] = self.kinds[source]
        self.ends[name] = sorted({each for each in self.ends[source] if each <= at} | {at})
        if self.chance.random() < 0.5:
            self.append()

    def trim(self) -> None:
        name = self._any()
        at = self.chance.choice(self.ends[name])
        self.client.stream(name).snapshots.publish(f"{at:020d}", b"state")
        self.ends[name] = [each for each in self.ends[name] if each >= at]

    def delete(self) -> None:
        name = self._any()
        self.client.stream(name).delete()
        del self.ends[name]

    def _any(self) -> str:
        return self.chance.choice(sorted(self.ends))


@pytest.mark.parametrize("seed", some_of(range(12), 1))
def test_the_same_rows_as_over_http(server: ServerProcess, seed: int) -> None:
    buckets = (f"one-{uuid4().hex[:8]}", f"two-{uuid4().hex[:8]}")
    with SyncClient(server.url) as client:
        tree = Tree(client, buckets, seed)
        for _ in range(12):
            for _ in range(8):
                tree.step()
            for bucket in buckets:
                options = {"url": server.url, "bucket": bucket}
                assert read(options) == over_http(client, bucket)
        client.storage.flush()
        for bucket in buckets:
            assert read({"url": server.url, "bucket": bucket}) == over_http(client, bucket)


def test_a_deleted_source_and_forks_without_messages_of_their_own(bucket: Filled) -> None:
    bucket.client.bucket(bucket.bucket).create()
    bucket.append("source", b"ab", b"cd")
    bucket.flush()
    stream = bucket.client.stream(f"{bucket.bucket}/fork")
    stream.fork(bucket.client.stream(f"{bucket.bucket}/source"), offset=f"{3:020d}")
    inherited = [
        Row("fork", f"{0:020d}", f"{2:020d}", BYTES, b"ab"),
        Row("fork", f"{2:020d}", f"{3:020d}", BYTES, b"c"),
    ]
    assert read(bucket.options()) == [*inherited, *bucket.everything()]
    assert read(bucket.options(forks="own")) == bucket.everything()
    bucket.client.stream(f"{bucket.bucket}/source").delete()
    for _ in range(2):
        assert read(bucket.options()) == inherited
        assert read(bucket.options(streams="fork")) == inherited
        assert read(bucket.options(streams="a,fork,z")) == inherited
        assert read(bucket.options(streams="another")) == []
        assert read(bucket.options(startingTimestamp="2000-01-01")) == inherited
        assert read(bucket.options(endingTimestamp="2000-01-01")) == []
        assert read(bucket.options(forks="own")) == []
        starting = json.dumps({"fork": f"{2:020d}"})
        assert read(bucket.options(startingOffsets=starting)) == inherited[1:]
        bucket.flush()
    stream.delete()
    assert read(bucket.options()) == []


def test_a_stream_read_has_it_once_when_the_fork_is_created(bucket: Filled) -> None:
    bucket.append("source", b"ab", b"cd")
    reader = stream_reader(bucket.options(), spark_schema(DEFAULT_COLUMNS))
    place = reader.initialOffset()
    batches = []
    for name in ("", "fork", "another"):
        if name:
            stream = bucket.client.stream(f"{bucket.bucket}/{name}")
            stream.fork(bucket.client.stream(f"{bucket.bucket}/source"))
        for _ in range(2):
            end = reader.latestOffset(place, reader.getDefaultReadLimit())
            batches.append([row.stream_id for row in rows_of(reader.partitions(place, end))])
            place = end
        bucket.append("source", b"later")
        bucket.flush()
    assert batches == [
        ["source", "source"],
        [],
        ["source", *["fork"] * 3],
        [],
        ["source", *["another"] * 4],
        [],
    ]


@pytest.mark.parametrize("flushed", [False, True])
def test_it_counts_as_appended_when_the_fork_was_created(bucket: Filled, flushed: bool) -> None:
    bucket.append("source", b"a" * 50, b"b" * 50)
    if flushed:
        bucket.flush()
    before = bucket.cursor()
    source = bucket.client.stream(f"{bucket.bucket}/source")
    bucket.client.stream(f"{bucket.bucket}/fork").fork(source)
    created = bucket.cursor()
    bucket.append("source", b"c" * 10)
    if flushed:
        bucket.flush()
    there = bucket.client.bucket(bucket.bucket)
    assert [each.bytes for each in there.forks()] == [100]
    assert there.forks(until=before) == there.forks(after=created) == []
    found = list(there.inherited(after=before, until=created))
    assert [each.payload for each in found] == [b"a" * 50, b"b" * 50]
    assert {each.position for each in found} == {int(created)}
    assert len({each.timestamp_ms for each in found}) == 1
    # A batch of limited size counts it.
    assert there.until(before).bytes == 110
    assert there.until(before, bytes=60).until == created
    assert there.until(before, bytes=60).bytes == 100


def test_archives_have_it_once(bucket: Filled, tmp_path: Path) -> None:
    bucket.append("source", b"ab", b"cd")
    archive(bucket, tmp_path / "table")
    source = bucket.client.stream(f"{bucket.bucket}/source")
    for number in range(2):
        bucket.client.stream(f"{bucket.bucket}/fork-{number}").fork(source)
        if number:
            source.delete()
        for _ in range(2):
            archive(bucket, tmp_path / "table", fail_on_data_loss=False)
        bucket.flush()
    found = rows(table_at("parquet", tmp_path / "table"))
    assert [(row.stream_id, row.payload) for row in found] == [
        (name, payload) for name in ("fork-0", "fork-1", "source") for payload in (b"ab", b"cd")
    ]


def test_a_plain_read_cannot_leave_it_out(bucket: Filled) -> None:
    bucket.append("source", b"ab")
    with pytest.raises(SettingsError, match="does not tell what a fork inherits"):
        read(bucket.options(via="http", forks="own"))


def test_long_messages(bucket: Filled) -> None:
    """Longer than what the server reads at a time."""
    for kind in KINDS:
        bucket.append(f"source-{kind[-4:]}", *_long(kind), content_type=kind)
    bucket.flush()
    for kind in KINDS:
        bucket.append(f"source-{kind[-4:]}", *_long(kind), content_type=kind)
        name = f"source-{kind[-4:]}"
        fork = bucket.client.stream(f"{bucket.bucket}/fork-{kind[-4:]}")
        fork.fork(bucket.client.stream(f"{bucket.bucket}/{name}"))
    expected = [
        row._replace(stream_id=row.stream_id.replace("source", "fork")) for row in bucket.rows
    ]
    assert [row for row in read(bucket.options()) if row.stream_id.startswith("fork")] == (
        ordered(expected)
    )


def _long(kind: str) -> list[object]:
    sizes = (10, 400_001, 3, 262_144)
    return [{"t": "x" * size} if kind == JSON else b"y" * size for size in sizes]
