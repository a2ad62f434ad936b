"""Parts of packs, read by hand: plan by packs, let something happen, read. No Spark."""

import pickle
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.client import SyncClient
from holdfast.errors import DataLossError, PackCorruptError
from holdfast.spark.connection import Options, SparkClient
from holdfast.spark.reading.planning import pack_parts
from holdfast.spark.reading.source import READ_OPTIONS, ReadPartition, ReadSource
from tests.server_process import ServerProcess
from tests.spark.filled import JSON, Filled, Row, batches, ordered, rows_in, rows_of
from tests.spark.test_losses_while_reading import delete, trim
from tests.spark.test_read_parts import MERGING, MIB, merge_away

SOME = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("parts") / "data", **MERGING) as process:
        yield process


@pytest.fixture
def bucket(server: ServerProcess) -> Filled:
    return Filled(server.url, f"bucket-{uuid4().hex[:8]}")


def by_packs(
    bucket: Filled, after: str = "", parts: int = 1, **options: object
) -> list[ReadPartition]:
    """What is in packs, divided as a large bucket is."""
    source = ReadSource.from_options(Options(bucket.options(**options), READ_OPTIONS))
    with SparkClient(source.connection) as client:
        scan = client.bucket(bucket.bucket).scan(after=after, by="packs", partitions=parts)
        source = source.with_store(scan.store, scan.store_id)
    found = [ReadPartition(source, each) for each in pack_parts(scan)]
    return [pickle.loads(pickle.dumps(each)) for each in found]


def fill(bucket: Filled, first: int, last: int, streams: int = SOME) -> None:
    """Messages of some streams, and of a bucket whose streams lie between them."""
    other = SyncClient(bucket.url)
    for number in range(streams):
        kind = JSON if number % 3 == 0 else "text/plain"
        name = f"other-{bucket.bucket}/s{number}"
        stream = other.stream(name)
        stream.create("text/plain")
        stream.append(f"not of {name}")
        for n in range(first, last):
            message = {"n": n, "é": "ü" * n} if kind == JSON else f"{number}, {n}"
            bucket.append(f"s{number:02d}", message, content_type=kind)


def assert_in_order(rows: list[Row]) -> None:
    """The messages of a stream come in the order of their offsets."""
    by_stream = sorted(rows, key=lambda row: row.stream_id)
    for _, of_stream in groupby(by_stream, key=lambda row: row.stream_id):
        offsets = [each.offset for each in of_stream]
        assert offsets == sorted(offsets)


def test_all_messages_whatever_the_packs_look_like(bucket: Filled) -> None:
    """Streams of both buckets alternate, a stream is in several packs, and one has its own."""
    fill(bucket, 0, 2)
    bucket.append("large", *(bytes([n]) * MIB for n in range(10)))
    bucket.flush()
    begun, before = bucket.cursor(), len(bucket.rows)
    fill(bucket, 2, 3)
    bucket.append("large", b"more")
    bucket.flush()
    for count in 1, 7:
        parts = by_packs(bucket, parts=count)
        assert len(parts) >= min(count, 3)
        for part in parts:
            assert_in_order(rows_of([part]))
        assert ordered(rows_of(parts)) == bucket.everything()
        later = by_packs(bucket, begun, parts=count)
        assert ordered(rows_of(later)) == ordered(bucket.rows[before:])
    chosen = by_packs(bucket, streamPattern="s0[13]|large", via="server")
    assert ordered(rows_of(chosen)) == bucket.of("s01", "s03", "large")
    offsets = '{"s01": "00000000000000000004"}'
    source = by_packs(bucket, streams="s01", startingOffsets=offsets)
    assert [each.payload for each in rows_of(source)][-1] == b"1, 2"
    bare = by_packs(bucket, columns="stream_id,next_offset")
    found = [each for part in bare for batch in batches(part) for each in batch.to_pylist()]
    expected = [{"stream_id": s, "next_offset": n} for s, _, n, *_ in bucket.everything()]
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_what_is_gone_is_not_read(bucket: Filled) -> None:
    fill(bucket, 0, 3)
    bucket.flush()
    begun = bucket.cursor()
    fill(bucket, 3, 5)
    bucket.flush()
    parts, later = by_packs(bucket), by_packs(bucket, begun)
    loose = by_packs(bucket, begun, failOnDataLoss="false")
    delete(bucket, "s01")
    end = bucket.of("s02")[3].next_offset
    trim(bucket, "s02", int(end))
    left = [
        each
        for each in bucket.everything()
        if each.stream_id != "s01" and (each.stream_id != "s02" or each.offset >= end)
    ]
    for _ in range(2):
        assert ordered(rows_of(parts)) == left
        # Two messages of each of the others.
        assert len(rows_of(loose)) == 2 * (SOME - 2) + 1
        with pytest.raises(DataLossError, match=r"Messages of 's0[12]'"):
            rows_of(later)
        with pytest.raises(DataLossError, match="Messages of 's02'"):
            rows_of(by_packs(bucket, startingOffsetsByPattern=f'{{"s.*": "{4:020d}"}}'))
        bucket.flush()


def test_packs_that_are_merged_away(bucket: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they are read, and while they are: nothing is missing or comes twice."""
    monkeypatch.setattr("holdfast.spark.reading.pack_parts.BATCH_BYTES", 4096)
    fill(bucket, 0, 20)
    bucket.flush()
    expected = bucket.everything()
    parts = by_packs(bucket, parts=2)
    of_parts = [batches(part) for part in parts]
    # A part may have only streams of the other bucket.
    firsts = [next(each, None) for each in of_parts]
    found = [row for each in firsts if each is not None for row in rows_in(each)]
    assert 0 < len(found) < len(expected)
    merge_away(bucket, {each.name for part in parts for each in part.part.packs})
    found += [row for each in of_parts for batch in each for row in rows_in(batch)]
    assert ordered(found) == expected
    assert ordered(rows_of(parts)) == expected


def test_a_wrong_byte(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", flush_age=3600) as server:
        bucket = Filled(server.url)
        fill(bucket, 0, 2, streams=3)
        bucket.flush()
        parts = by_packs(bucket)
        (pack,) = parts[0].part.packs
        path = tmp_path / "data" / "objects" / pack.name
        data = path.read_bytes()
        index_at, index_bytes = pack.data_bytes + 16, 20 * pack.messages
        # In the data, the lengths, the directory and the delta.
        places = data.index(b"1, 1"), index_at + 8, index_at + index_bytes + 16, len(data) - 200
        for at in places:
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(PackCorruptError, match=f"The pack {pack.name} is damaged"):
                rows_of(parts)
        path.write_bytes(data)
        assert ordered(rows_of(parts)) == bucket.everything()
