"""What is deleted, trimmed or merged away between the plan of a read and the read itself.

A real server, no Spark.
"""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast.errors import DataLossError, ObjectMissingError
from holdfast.spark.archiving.table_run import BucketFeed
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.reading import source as source_module
from holdfast.spark.reading.arrow import DEFAULT_COLUMNS, spark_schema
from holdfast.spark.reading.packs import ServerPacks
from holdfast.spark.reading.readers import stream_reader
from holdfast.spark.reading.selection import make_selection
from tests.client.node_process import node_server
from tests.server_process import ServerProcess
from tests.spark.filled import BYTES, JSON, TEXT, Filled, planned, read, rows_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("losses") / "data", flush_age=3600) as process:
        yield process


@pytest.fixture
def bucket(server: ServerProcess) -> Filled:
    found = Filled(server.url, f"bucket-{uuid4().hex[:8]}")
    found.append("kept", b"before")
    return found


def delete(bucket: Filled, stream_id: str) -> None:
    bucket.client.stream(f"{bucket.bucket}/{stream_id}").delete()


def trim(bucket: Filled, stream_id: str, offset: int) -> None:
    stream = bucket.client.stream(f"{bucket.bucket}/{stream_id}")
    stream.snapshots.publish(f"{offset:020d}", b"state", content_type=BYTES)


def test_a_loss_behind_those_of_many_other_streams(
    bucket: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server names the first hundred streams that have lost something."""
    monkeypatch.setattr(source_module, "LOST_STREAMS", 2)
    begun = bucket.cursor()
    for number in range(103):
        bucket.append(f"a{number:03d}", b"1")
        delete(bucket, f"a{number:03d}")
    bucket.append("wanted", b"1")
    bucket.append("zz", b"1", b"2")
    options = bucket.options(startingOffsets=begun, streamPattern=".*[dz]")
    plans = planned(options), planned(options | {"failOnDataLoss": "false"})
    delete(bucket, "wanted")
    trim(bucket, "zz", 1)
    for parts in plans[0], None:
        with pytest.raises(DataLossError, match="Messages of 'wanted', 'zz' in the bucket"):
            rows_of(planned(options) if parts is None else parts)
    assert [each.payload for each in rows_of(plans[1])] == [b"2"]
    source = replace(plans[0][0].source, selection=make_selection([], ""))
    with SparkClient(source.connection) as server:
        feed = BucketFeed(server, source)
        assert feed.trimmed(begun, bucket.cursor()) == ["zz"]


@pytest.mark.parametrize("what", ["deleted", "trimmed", "trimmed as a whole"])
@pytest.mark.parametrize("where", ["hot", "hot, then packed", "packed"])
def test_what_goes_after_the_plan_is_no_secret(bucket: Filled, what: str, where: str) -> None:
    """Who follows a bucket is told, however late something was lost."""
    begun = bucket.cursor()
    bucket.append("a", b"1", b"2", b"3")
    bucket.append("kept", b"after")
    if where == "packed":
        bucket.flush()
    strict = planned(bucket.options(startingOffsets=begun))
    loose = planned(bucket.options(startingOffsets=begun, failOnDataLoss="false"))
    others = planned(bucket.options(startingOffsets=begun, streams="kept"))
    if what == "deleted":
        delete(bucket, "a")
    else:
        trim(bucket, "a", 2 if what == "trimmed" else 3)
    if where != "hot":
        bucket.flush()
    with pytest.raises(DataLossError, match="Messages of 'a' in the bucket"):
        rows_of(strict)
    left = [each.payload for each in rows_of(loose)]
    assert left == ([b"3", b"after"] if what == "trimmed" else [b"after"])
    assert [each.payload for each in rows_of(others)] == [b"after"]


def test_bytes_that_were_dead_before_are_no_loss(tmp_path: Path) -> None:
    """A merge drops them, so there is less than was planned."""
    with ServerProcess(tmp_path / "data", flush_age=3600, merge_packs=2) as server:
        bucket = Filled(server.url)
        bucket.append("a", *(bytes([n]) * 1000 for n in range(10)))
        begun = bucket.cursor()
        bucket.append("a", b"new")
        bucket.flush()
        trim(bucket, "a", 9000)
        bucket.flush()
        parts = planned(bucket.options(startingOffsets=begun))
        before = bucket.packs()
        for number in range(8):
            bucket.append("other", bytes([number]))
            bucket.flush()
        assert before != bucket.packs()
        assert [each.payload for each in rows_of(parts)] == [b"new"]


def test_a_pack_that_the_server_does_not_have_any_more(server: ServerProcess) -> None:
    """The same error as of a store, after which the ranges are asked for again."""
    with SparkClient(SparkConnection(server.url)) as waiting, pytest.raises(ObjectMissingError):
        ServerPacks(waiting, "").read_ranges("packs/merged.pack", [(0, 10)])


def test_plain_reads_go_on_without_what_is_gone_if_that_is_fine(bucket: Filled) -> None:
    bucket.append("a", b"1", b"2", b"3")
    bucket.append("b", b"4")
    strict = planned(bucket.options(via="http"))
    loose = planned(bucket.options(via="http", failOnDataLoss="false"))
    trim(bucket, "a", 2)
    delete(bucket, "b")
    with pytest.raises(DataLossError, match="Messages of 'a' in the bucket"):
        rows_of(strict)
    assert [each.payload for each in rows_of(loose)] == [b"3", b"before"]
    named = bucket.options(via="http", streams="b,kept", failOnDataLoss="false")
    assert [each.payload for each in read(named)] == [b"before"]


class Following:
    """A stream read by hand, place by place."""

    def __init__(self, options: dict[str, str]) -> None:
        self._reader = stream_reader(options, spark_schema(DEFAULT_COLUMNS))
        self.place = self._reader.initialOffset()

    def next(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next two places."""
        start = self.place
        self.place = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        return start, self.place

    def payloads(self, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        """What is between two places."""
        parts = pickle.loads(pickle.dumps(self._reader.partitions(start, end)))
        return [each.payload for each in rows_of(parts)]

    def rest(self) -> list[bytes]:
        """Everything up to the end of the bucket, batch by batch."""
        found, places = [], self.next()
        while places[0] != places[1]:
            found += self.payloads(*places)
            places = self.next()
        return found


def test_a_stream_that_was_created_again_is_read_from_its_start(bucket: Filled) -> None:
    options = bucket.options(via="http", streams="kept")
    strict, loose = Following(options), Following(options | {"failOnDataLoss": "false"})
    for each in (strict, loose):
        assert each.payloads(*each.next()) == [b"before"]
    delete(bucket, "kept")
    again = bucket.client.stream(f"{bucket.bucket}/kept")
    again.create(BYTES)
    again.append(b"anew")
    with pytest.raises(DataLossError, match="'kept'"):
        strict.payloads(*strict.next())
    assert loose.payloads(*loose.next()) == [b"anew"]


@pytest.mark.parametrize("where", ["hot", "packed", "packed before"])
def test_what_was_gone_when_a_query_began_is_no_loss(bucket: Filled, where: str) -> None:
    """Whatever the size of its batches; what goes later is one."""
    for number in range(5):
        for stream_id in ("a", "b", "c"):
            bucket.append(stream_id, b"%d" % number)
            bucket.append("gone", b"%d" % number)
    if where == "packed before":
        bucket.flush()
    trim(bucket, "a", 3)
    delete(bucket, "gone")
    if where == "packed":
        bucket.flush()
    found = Following(bucket.options(maxRowsPerTrigger=4)).rest()
    assert sorted(found) == sorted([b"before", b"3", b"4", *[b"0", b"1", b"2", b"3", b"4"] * 2])
    late = Following(bucket.options(maxRowsPerTrigger=4))
    late.payloads(*late.next())
    trim(bucket, "b", 5)
    with pytest.raises(DataLossError, match="Messages of 'b' in the bucket"):
        late.rest()


@pytest.mark.slow
def test_a_server_without_boundaries_gives_each_byte_once() -> None:
    """An answer goes on with what came after the plan, which is for the next batch."""
    with node_server() as url:
        bucket = Filled(url)
        text = bucket.client.stream("events/text")
        text.create(TEXT)
        numbers = bucket.client.stream("events/numbers")
        numbers.create(JSON)
        following = Following(bucket.options(streams="numbers,text"))
        found = []
        for n in range(3):
            text.append(f"<{n}>")
            numbers.append_many([n, [n]])
            places = following.next()
            text.append(f"<later {n}>")
            numbers.append(f"later {n}")
            found.append(following.payloads(*places))
        found.append(following.payloads(*following.next()))
    assert found == [
        [b"[0,[0]]", b"<0>"],
        [b'["later 0",1,[1]]', b"<later 0><1>"],
        [b'["later 1",2,[2]]', b"<later 1><2>"],
        [b'["later 2"]', b"<later 2>"],
    ]


def test_a_token_for_a_prefix_is_enough_for_a_pattern(bucket: Filled) -> None:
    def prefix(pattern: str) -> str:
        (part,) = planned(bucket.options(streamPattern=pattern))
        return part.source.selection.prefix

    assert prefix("kept.*") == "kept"
    assert prefix("kept[0-9]*") == "kept"
    assert prefix("kep(t)") == "kep"
    assert prefix("kept+") == "kept"
    for optional in ("kept?", "kept*", "kept{0,2}"):
        assert prefix(optional) == "kep"
    assert prefix("kept|.*") == ""


@pytest.mark.parametrize("via", ["auto", "http"])
@pytest.mark.parametrize("where", ["hot", "packed"])
def test_a_start_that_a_snapshot_has_taken_the_place_of(
    bucket: Filled, where: str, via: str
) -> None:
    bucket.append("a", b"1", b"2", b"3")
    trim(bucket, "a", 2)
    if where == "packed":
        bucket.flush()

    def payloads(start: str, **more: str) -> list[bytes]:
        options = bucket.options(streams="a", startingOffsets=f'{{"a": "{start}"}}', via=via)
        return [each.payload for each in read(options | more)]

    with pytest.raises(DataLossError, match="Messages of 'a' in the bucket"):
        payloads(f"{1:020d}")
    assert payloads(f"{1:020d}", failOnDataLoss="false") == [b"3"]
    assert payloads(f"{2:020d}") == [b"3"]
    # From wherever it begins: nothing of that is missing.
    assert payloads("earliest") == payloads("-1") == [b"3"]
