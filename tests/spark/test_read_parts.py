"""Reads by hand: plan, let something happen, read. A real server, no Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from uuid import uuid4

import pytest

from holdfast.cli.main import main
from holdfast.errors import (
    BucketNotFoundError,
    DataLossError,
    HoldfastError,
    OutboundError,
    PackCorruptError,
    SettingsError,
    StoreError,
    UnauthorizedError,
)
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.reading.slice_reader import read_chunks
from holdfast.spark.reading.source import Slice, StreamSlice
from tests.client.node_process import node_server
from tests.moto_server import KEY_ID, SECRET, MotoServer
from tests.server_process import ServerProcess
from tests.spark.filled import (
    BYTES,
    JSON,
    TEXT,
    Filled,
    batches,
    ordered,
    planned,
    read,
    rows_in,
    rows_of,
)

# Packs are merged as soon as there are a few, and then are gone at once.
MERGING = {"merge_packs": 2, "garbage_grace": 0, "flush_age": 3600}
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("reading") / "data", **MERGING) as process:
        yield process


@pytest.fixture
def bucket(server: ServerProcess) -> Filled:
    return Filled(server.url, f"bucket-{uuid4().hex[:8]}")


def fill(bucket: Filled, first: int = 0, last: int = 5) -> None:
    for number in range(4):
        for n in range(first, last):
            bucket.append(f"json-{number}", {"n": n, "é": "ü" * n}, content_type=JSON)
            bucket.append(f"raw/{number}", bytes([n]) * (n + 1))
        bucket.append(f"text-{number}", *(f"{n}, ü" for n in range(first, last)), content_type=TEXT)


def slices(options: dict[str, str]) -> list[Slice | StreamSlice]:
    return [each.part for each in planned(options)]


def merge_away(bucket: Filled, packs: set[str], size: int = 1) -> None:
    """Flush messages until packs are merged, and gone."""
    for number in range(20):
        bucket.append("merging", bytes([number]) * size)
        bucket.flush()
        bucket.client.storage.collect_garbage()
        if not packs & bucket.packs():
            return
    pytest.fail("the packs are still there")


def test_a_row_for_each_message(bucket: Filled) -> None:
    begun = datetime.now(UTC) - timedelta(milliseconds=2)
    fill(bucket)
    assert read(bucket.options()) == bucket.everything()
    bucket.flush()
    assert read(bucket.options()) == bucket.everything()
    fill(bucket, 5, 8)
    bucket.append("json-new", [1, [2]], content_type=JSON)
    assert read(bucket.options()) == bucket.everything()
    times = [
        time
        for part in planned(bucket.options())
        for batch in batches(part)
        for time in batch.column("timestamp").to_pylist()
    ]
    assert all(begun <= time <= datetime.now(UTC) for time in times)


def test_without_payloads_only_indexes_are_read(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", flush_age=3600) as server:
        bucket = Filled(server.url)
        fill(bucket)
        bucket.append("raw/0", b"found in the pack")
        bucket.flush()
        fill(bucket, 5, 6)
        names = ("stream_id", "offset", "next_offset", "position")
        whole = bucket.options(columns=",".join((*names, "payload")))
        expected = [row_of(each, names) for each in rows_with(whole, (*names, "payload"))]
        assert [each[:3] for each in expected] == [each[:3] for each in bucket.everything()]
        by_position = sorted(expected, key=lambda each: (each[3], each[1]))
        assert [each[0] for each in by_position] == [each.stream_id for each in bucket.rows]
        # A wrong byte among the payloads is not noticed, since none of them is read.
        (pack,) = (tmp_path / "data" / "objects" / "packs").glob("*.pack")
        pack.write_bytes(pack.read_bytes().replace(b"found in", b"Found in"))
        found = rows_with(bucket.options(columns=",".join(names)), names)
        assert [row_of(each, names) for each in found] == expected
        with pytest.raises(PackCorruptError):
            rows_with(whole, (*names, "payload"))


def rows_with(options: dict[str, str], columns: tuple[str, ...]) -> list[dict[str, object]]:
    """The rows of a read with these columns, by stream and offset."""
    parts = planned(options, columns)
    rows = [row for part in parts for batch in batches(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["stream_id"], row["offset"]))


def row_of(row: dict[str, object], names: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(row[name] for name in names)


def test_streams_are_in_order_within_a_part(bucket: Filled) -> None:
    fill(bucket)
    bucket.flush()
    fill(bucket, 5, 6)
    for part in planned(bucket.options()):
        rows = rows_of([part])
        assert rows == ordered(rows)


def test_an_empty_bucket(bucket: Filled) -> None:
    bucket.append("a")
    assert read(bucket.options()) == []
    bucket.flush()
    assert read(bucket.options()) == []


@pytest.mark.parametrize("via", ["auto", "store", "server", "http"])
def test_whoever_hands_out_the_bytes(bucket: Filled, via: str) -> None:
    fill(bucket)
    bucket.flush()
    fill(bucket, 5, 7)
    assert read(bucket.options(via=via)) == bucket.everything()
    one = bucket.options(via=via, streams="json-1,raw/2")
    assert read(one) == bucket.of("json-1", "raw/2")
    inside = {
        "startingOffsets": f'{{"raw/2": "{3:020d}"}}',
        "endingOffsets": f'{{"raw/2": "{10:020d}"}}',
    }
    expected = [each for each in bucket.of("raw/2") if 3 <= int(each.offset) < 10]
    assert read(bucket.options(via=via, streams="raw/2", **inside)) == expected


@pytest.mark.parametrize("via", ["store", "http"])
def test_an_end_in_the_midst_of_a_message(bucket: Filled, via: str) -> None:
    """The message that starts before it is the last one, however it is read."""
    bucket.append("a", b"0123", b"4567", b"89")
    bucket.flush()
    options = bucket.options(via=via, endingOffsets=f'{{"a": "{5:020d}"}}')
    assert [each.payload for each in read(options)] == [b"0123", b"4567"]


def test_a_detour_is_said_once_with_its_reason(
    bucket: Filled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that cannot be reached costs time, and somebody could change that."""
    bucket.append("a", b"1")
    bucket.flush()
    for _ in range(2):
        options = bucket.options(store=str(tmp_path / "elsewhere"))
        assert [each.payload for each in read(options)] == [b"1"]
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith(f"The object store {tmp_path / 'elsewhere'} does not exist")
    assert "give the options 'store'" in said


def test_what_is_not_in_packs_is_not_held_at_once(bucket: Filled) -> None:
    for n in range(6):
        bucket.append(f"s{n % 2}", bytes([n]) * (4 * MIB))
    divided = planned(bucket.options(minPartitions=2))
    assert [(each.part.first, each.part.last) for each in divided] == [("s0", "s0"), ("s1", "s1")]
    (part,) = planned(bucket.options())
    found = []
    for chunk in read_chunks(part.source, part.part):
        assert sum(map(len, chunk.payloads.to_pylist())) < 10 * MIB
        found += [
            (int(offset), each[0])
            for offset, each in zip(chunk.offsets, chunk.payloads.to_pylist(), strict=True)
        ]
    assert sorted(found) == [(n // 2 * 4 * MIB, n) for n in range(6)]


def test_one_cut_while_a_writer_goes_on(bucket: Filled) -> None:
    fill(bucket)
    bucket.flush()
    fill(bucket, 5, 6)
    expected = bucket.everything()
    parts = planned(bucket.options())
    fill(bucket, 6, 9)
    bucket.append("later", b"not yet")
    assert ordered(rows_of(parts)) == expected
    bucket.flush()
    assert ordered(rows_of(parts)) == expected
    assert read(bucket.options()) == bucket.everything()


@pytest.mark.parametrize("more", [False, True])
def test_what_was_hot_is_in_packs_by_now(bucket: Filled, more: bool) -> None:
    fill(bucket, 0, 2)
    if more:
        bucket.flush()
        fill(bucket, 2, 3)
    expected = bucket.everything()
    parts = planned(bucket.options())
    hot = [each for each in parts if each.part.until > each.part.flushed]
    assert len(hot) == 1
    bucket.flush()
    fill(bucket, 3, 4)
    assert ordered(rows_of(parts)) == expected
    merge_away(bucket, bucket.packs())
    assert ordered(rows_of(parts)) == expected


def test_packs_merged_away_before_they_are_read(bucket: Filled) -> None:
    fill(bucket)
    bucket.flush()
    expected = bucket.everything()
    parts = planned(bucket.options(via="store"))
    merge_away(bucket, bucket.packs())
    assert ordered(rows_of(parts)) == expected
    parts = planned(bucket.options(via="server"))
    expected = bucket.everything()
    merge_away(bucket, bucket.packs())
    assert ordered(rows_of(parts)) == expected


@pytest.fixture(scope="module")
def large(server: ServerProcess) -> Filled:
    """A bucket with one large stream between small ones, all in packs."""
    found = Filled(server.url, "large")
    found.append("a", b"before")
    for number in range(64):
        found.append("large", number.to_bytes(4, "big") * (MIB // 4))
        if number % 20 == 19:
            found.flush()
    found.append("z", b"behind")
    found.flush()
    return found


@pytest.mark.slow
def test_a_large_stream_is_cut_by_positions(large: Filled) -> None:
    parts = planned(large.options(partitionBytes="8m"))
    # One that is smaller comes before it, and in the server's plan they are together.
    of_large = [each.part for each in parts if each.part.first == each.part.last == "large"]
    assert len(of_large) >= 5
    for one, next_one in pairwise(of_large):
        assert one.until == next_one.after
    assert all(rows_of([each]) for each in parts)
    assert rows_of(parts) == large.everything()
    assert len(slices(large.options(partitionBytes="1g"))) == 1


def test_a_given_number_of_partitions(large: Filled) -> None:
    usual = len(slices(large.options()))
    assert len(slices(large.options(minPartitions=6))) >= 6 > usual
    assert read(large.options(minPartitions=6)) == large.everything()
    # A partition of less than a megabyte is not worth a task.
    assert len(slices(large.options(minPartitions=1000))) <= 66


def test_packs_merged_away_while_they_are_read(bucket: Filled, monkeypatch) -> None:
    monkeypatch.setattr("holdfast.spark.reading.packs.BATCH_BYTES", 64 * 1024)
    for number in range(40):
        bucket.append(f"a{number // 10}", bytes([number]) * 100_000)
    bucket.flush()
    expected = bucket.everything()
    (part,) = planned(bucket.options(streamPattern="a.*"))
    found, of_part = [], batches(part)
    found += rows_in(next(of_part))
    merge_away(bucket, bucket.packs(), MIB)
    for batch in of_part:
        found += rows_in(batch)
    assert found == expected


def test_streams_by_pattern_and_list(bucket: Filled) -> None:
    fill(bucket)
    bucket.flush()
    fill(bucket, 5, 6)
    assert read(bucket.options(streamPattern="json-[12]")) == bucket.of("json-1", "json-2")
    assert read(bucket.options(streamPattern="raw/.*")) == bucket.of(
        *(f"raw/{n}" for n in range(4))
    )
    assert read(bucket.options(streamPattern="aw")) == []
    assert read(bucket.options(streams="json-1, text-3")) == bucket.of("json-1", "text-3")
    assert read(bucket.options(streams="json-1,absent")) == bucket.of("json-1")


def test_only_chosen_streams_are_asked_for(bucket: Filled) -> None:
    """Whatever lies between them, in packs or not."""
    for stream_id in "amz":
        bucket.append(stream_id, b"packed")
    bucket.flush()
    for stream_id in "amz":
        bucket.append(stream_id, b"hot")
    parts = planned(bucket.options(streams="a,z"))
    packed, *hot = (each.part for each in parts)
    with SparkClient(SparkConnection(bucket.url)) as client:
        ranges = parts[0].source.ranges(client, packed)
    assert [each.stream_id for each in ranges] == ["a", "z"]
    assert [(each.first, each.last) for each in hot] == [("a", "a"), ("z", "z")]
    assert ordered(rows_of(parts)) == bucket.of("a", "z")


def test_from_a_cursor_to_a_cursor(bucket: Filled) -> None:
    cursors = [bucket.client.bucket("other").create(exist_ok=True) and ""]
    counts = [0]
    for step in range(4):
        fill(bucket, 2 * step, 2 * step + 2)
        cursors.append(bucket.cursor())
        counts.append(len(bucket.rows))
        if step % 2:
            bucket.flush()
    for first in range(5):
        for last in range(first, 5):
            bounds = {}
            if first:
                bounds["startingOffsets"] = cursors[first]
            if last < 4:
                bounds["endingOffsets"] = cursors[last] if last else f"{0:020d}"
            expected = ordered(bucket.rows[counts[first] : counts[last]])
            assert read(bucket.options(**bounds)) == expected, (first, last)
    assert read(bucket.options(startingOffsets="latest")) == []
    assert read(bucket.options(startingOffsets="earliest", endingOffsets="latest")) == (
        bucket.everything()
    )


def snapshot(bucket: Filled, stream_id: str, offset: int) -> None:
    stream = bucket.client.stream(f"{bucket.bucket}/{stream_id}")
    stream.snapshots.publish(f"{offset:020d}", b"state", content_type=BYTES)


def test_what_a_snapshot_took_the_place_of(bucket: Filled) -> None:
    bucket.append("a", b"0", b"1", b"2", b"3")
    bucket.append("b", b"0")
    bucket.flush()
    begun = bucket.cursor()
    bucket.append("a", b"4", b"5")
    bucket.flush()
    snapshot(bucket, "a", 2)
    bucket.flush()
    assert read(bucket.options()) == bucket.everything()[2:]
    assert read(bucket.options(via="http")) == bucket.everything()[2:]
    # Nothing was lost since the cursor, until something was.
    assert [each.payload for each in read(bucket.options(startingOffsets=begun))] == [b"4", b"5"]
    starting = f'{{"a": "{2:020d}"}}'
    assert [
        each.payload for each in read(bucket.options(startingOffsets=starting, streams="a"))
    ] == [
        b"2",
        b"3",
        b"4",
        b"5",
    ]
    snapshot(bucket, "a", 5)
    bucket.flush()
    with pytest.raises(DataLossError, match=r"Messages of 'a' in the bucket .* 'failOnDataLoss'"):
        read(bucket.options(startingOffsets=begun))
    with pytest.raises(DataLossError, match="'a'"):
        read(bucket.options(startingOffsets=starting))
    loose = {"failOnDataLoss": "false"}
    assert [each.payload for each in read(bucket.options(startingOffsets=begun, **loose))] == [b"5"]
    found = read(bucket.options(startingOffsets=starting, streams="a", **loose))
    assert [each.payload for each in found] == [b"5"]


def test_offsets_that_are_gone_over_http(bucket: Filled) -> None:
    bucket.append("a", b"0", b"1", b"2", b"3")
    snapshot(bucket, "a", 2)
    options = bucket.options(startingOffsets=f'{{"a": "{1:020d}"}}', via="http")
    with pytest.raises(DataLossError, match="Messages of 'a' in the bucket"):
        read(options)
    assert [each.payload for each in read(options | {"failOnDataLoss": "false"})] == [b"2", b"3"]
    assert [each.payload for each in read(bucket.options(via="http"))] == [b"2", b"3"]


def test_a_deleted_stream(bucket: Filled) -> None:
    bucket.append("kept", b"1")
    begun = bucket.cursor()
    bucket.append("a", b"0")
    bucket.append("kept", b"2")
    bucket.client.stream(f"{bucket.bucket}/a").delete()
    with pytest.raises(DataLossError, match="'a'"):
        read(bucket.options(startingOffsets=begun))
    assert read(bucket.options(startingOffsets=begun, streams="kept")) == bucket.of("kept")[1:]
    loose = bucket.options(startingOffsets=begun, failOnDataLoss="false")
    assert read(loose) == bucket.of("kept")[1:]
    assert read(bucket.options()) == bucket.of("kept")
    # One that is deleted between the plan and the read may still come, or not.
    bucket.append("b", b"3")
    parts = planned(bucket.options())
    bucket.client.stream(f"{bucket.bucket}/b").delete()
    assert [each for each in rows_of(parts) if each.stream_id == "kept"] == bucket.of("kept")


def test_a_damaged_pack_is_named(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", flush_age=3600) as server:
        bucket = Filled(server.url)
        bucket.append("a", b"looked for in the pack")
        bucket.flush()
        (pack,) = (tmp_path / "data" / "objects" / "packs").glob("*.pack")
        sound = pack.read_bytes()
        assert sound.count(b"looked for") == 1
        pack.write_bytes(sound.replace(b"looked for", b"looked Eor"))
        for via in ("store", "server"):
            with pytest.raises(PackCorruptError) as caught:
                read(bucket.options(via=via))
            assert f"The pack packs/{pack.name} is damaged" in caught.value.message
            assert "'a' at offset 0" in caught.value.message
        pack.write_bytes(sound[:30])
        for via in ("store", "server"):
            with pytest.raises(HoldfastError, match=pack.name):
                read(bucket.options(via=via, retries=0))


def test_a_server_that_keeps_all_in_memory(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", durability="memory") as server:
        bucket = Filled(server.url)
        fill(bucket)
        assert read(bucket.options()) == bucket.everything()
        assert read(bucket.options(streams="json-1")) == bucket.of("json-1")


def test_access_control(tmp_path: Path, capsys) -> None:
    file = str(tmp_path / "tokens.toml")
    tokens = {}
    for name, scope in (("writer", "write:*"), ("reader", "read:events"), ("other", "read:other")):
        assert main(["token", "create", "--name", name, "--scope", scope, "--file", file]) == 0
        tokens[name] = capsys.readouterr().out.strip()
    with ServerProcess(tmp_path / "data", access_tokens_file=file, flush_age=3600) as server:
        bucket = Filled(server.url, token=tokens["writer"])
        fill(bucket)
        assert read(bucket.options(token=tokens["reader"])) == bucket.everything()
        with pytest.raises(UnauthorizedError):
            read(bucket.options())
        with pytest.raises(HoldfastError) as caught:
            read(bucket.options(token=tokens["other"]))
        assert caught.value.status == 403


def test_a_server_of_another_make() -> None:
    with node_server() as url:
        bucket = Filled(url)
        # There a stream's name has no bucket: ours is the first part of it.
        text = bucket.client.stream("events/text")
        text.create(TEXT)
        text.append("one")
        text.append("two")
        numbers = bucket.client.stream("events/numbers")
        numbers.create(JSON)
        numbers.append_many([1, 2])
        with pytest.raises(
            SettingsError, match="does not list its streams; name them with the opt"
        ):
            read(bucket.options())
        (part,) = planned(bucket.options(streams="text"))
        (batch,) = batches(part)
        (row,) = batch.to_pylist()
        assert row["payload"] == b"onetwo"
        assert row["timestamp"] is None
        assert row["content_type"].startswith(TEXT)
        (row,) = read(bucket.options(streams="numbers"))
        assert row.payload == b"[1,2]"
        both = read(bucket.options(streams="text,numbers", via="http"))
        assert [each.stream_id for each in both] == ["numbers", "text"]
        with pytest.raises(SettingsError, match="cannot tell what came after a cursor"):
            read(bucket.options(streams="text", startingOffsets=f"{1:020d}"))


def test_nobody_answers() -> None:
    options = {"url": "http://127.0.0.1:9", "bucket": "events", "retries": "0"}
    with pytest.raises(OutboundError, match=r"127\.0\.0\.1:9") as caught:
        planned(options)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("via", ["auto", "http"])
def test_no_such_bucket(server: ServerProcess, via: str) -> None:
    with pytest.raises(BucketNotFoundError, match="no bucket 'nothing'"):
        planned({"url": server.url, "bucket": "nothing", "via": via})


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoServer]:
    with MotoServer() as process:
        yield process


@contextmanager
def refusing() -> Iterator[str]:
    """A store for which our keys are the wrong ones; its address."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<Error><Code>InvalidAccessKeyId</Code><Message>unknown key</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.slow
def test_packs_in_a_bucket_of_s3(moto: MotoServer, tmp_path: Path) -> None:
    settings = moto.settings(moto.new_bucket())
    keys = {
        "storeEndpoint": moto.endpoint,
        "storeAccessKeyId": KEY_ID,
        "storeSecretAccessKey": SECRET,
        "storeRegion": "us-east-1",
    }
    with ServerProcess(tmp_path / "data", flush_age=3600, **settings) as server:
        bucket = Filled(server.url)
        fill(bucket)
        bucket.flush()
        fill(bucket, 5, 6)
        expected = bucket.everything()
        assert read(bucket.options(via="store", **keys)) == expected
        assert read(bucket.options(via="server")) == expected
        # Named by another address than the server's.
        assert read(bucket.options(via="store", store=settings["store"], **keys)) == expected
        wrong = keys | {"storeEndpoint": "http://127.0.0.1:9"}
        assert read(bucket.options(**wrong)) == expected
        with refusing() as endpoint:
            refused = keys | {"storeEndpoint": endpoint}
            assert read(bucket.options(**refused)) == expected
            with pytest.raises(StoreError, match="s3://") as caught:
                read(bucket.options(via="store", **refused))
            assert "\n" not in caught.value.message
        other = bucket.options(store=f"file://{tmp_path}/elsewhere")
        assert read(other) == expected
        with pytest.raises(StoreError, match="does not exist, or is not one of Holdfast's"):
            read(other | {"via": "store"})
        half = bucket.options(via="store", storeAccessKeyId="only")
        with pytest.raises(HoldfastError, match="needs its id and its secret"):
            read(half)
        # A store that comes back is used again.
        again = bucket.options(via="store", store=f"{settings['store']}/", **keys)
        with moto.outage(), pytest.raises(StoreError, match="s3://") as caught:
            read(again)
        assert "\n" not in caught.value.message
        assert read(again) == expected


@pytest.mark.slow
def test_a_snapshot_inside_a_large_stream_is_no_loss_to_who_reads_from_the_start(
    tmp_path: Path,
) -> None:
    """However the stream is cut, and whether it is in packs already."""
    with ServerProcess(tmp_path / "data", flush_age=3600) as server:
        check_reads_from_the_start(Filled(server.url))


def check_reads_from_the_start(bucket: Filled) -> None:
    for number in range(12):
        bucket.append("a", bytes([number]) * MIB)
        if number % 3 == 2:
            bucket.flush()
    hot = 12 * MIB
    bucket.append("a", b"hot", b"hotter")
    before = planned(bucket.options(partitionBytes="2m"))
    assert len(before) >= 4
    snapshot(bucket, "a", 7 * MIB)
    bucket.flush()
    for parts in (planned(bucket.options(partitionBytes="2m")), before):
        assert rows_of(parts)[-7:] == bucket.everything()[-7:]
    parts = planned(bucket.options(startingOffsets=f'{{"a": "{8 * MIB:020d}"}}'))
    assert rows_of(parts) == bucket.everything()[8:]
    # The same where the last of it moves to packs after the plan.
    bucket.append("a", b"last")
    parts = planned(bucket.options())
    snapshot(bucket, "a", hot + 3)
    bucket.flush()
    assert rows_of(parts)[-2:] == bucket.everything()[-2:]
