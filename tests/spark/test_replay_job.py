"""The job `replay`: copies that are the same, and stay so, whatever happens in between."""

from contextlib import contextmanager

import pytest
from py4j.protocol import Py4JJavaError

from holdfast import failpoints
from holdfast.client import SyncClient
from holdfast.errors import BucketNotFoundError, OutboundError, SettingsError
from holdfast.settings.options import build
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import run_job, tasks
from holdfast.spark.jobs.replay import Replay
from holdfast.spark.replaying import slice_replay
from holdfast.spark.replaying.comparing import compare_streams
from tests.server_process import ServerProcess
from tests.spark.in_process import killed_at, run_here
from tests.spark.reading_back import new_bucket
from tests.thorough import some_rows_of

JSON = "application/json"
BYTES = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with (
        ServerProcess(tmp_path_factory.mktemp("source"), flush_age=3600) as source,
        ServerProcess(tmp_path_factory.mktemp("target"), flush_age=3600) as target,
    ):
        yield source, target


@pytest.fixture
def source(servers):
    with SyncClient(servers[0].url) as found:
        yield found


@pytest.fixture
def target(servers):
    with SyncClient(servers[1].url) as found:
        yield found


@pytest.fixture
def bucket(source):
    found = new_bucket()
    source.bucket(found).create()
    return found


@pytest.fixture
def replay(spark, servers, bucket):
    def run(**options):
        places = {
            "server": SparkConnection(servers[0].url, retries=2),
            "target": SparkConnection(servers[1].url, retries=2),
        }
        return run_job(spark, build(Replay, {"bucket": bucket} | places | options))

    return run


@pytest.fixture
def armed(spark, monkeypatch):
    @contextmanager
    def arm(text):
        with monkeypatch.context() as patch:
            patch.setitem(spark.sparkContext.environment, failpoints.VARIABLE, text)
            yield

    return arm


def fill(client, bucket, stream_id, *messages, content_type=JSON, **options):
    stream = client.stream(f"{bucket}/{stream_id}")
    stream.create(content_type, **options)
    for message in messages:
        stream.append(message)
    return stream


def contents(client, bucket):
    """Every stream: its type, its messages, each by itself, whether it is closed."""
    found = {}
    for info in client.bucket(bucket).streams():
        stream = client.stream(f"{bucket}/{info.stream_id}")
        head = stream.head()
        messages = [each.payload for each in stream.read(head.earliest_offset or "-1")]
        found[info.stream_id] = (head.content_type, messages, head.closed, head.ttl_s)
    return found


def some(source, bucket):
    """Streams of all kinds, some of them in packs."""
    fill(source, bucket, "json", {"a": 1}, [[1, 2]], "text", 1e2)
    fill(source, bucket, "bytes", b"one", b"two", b"\x00\xff", content_type=BYTES)
    fill(source, bucket, "text", "a\n", "b\r\n", content_type=TEXT, ttl_s=86400)
    source.storage.flush()
    fill(source, bucket, "json", {"late": True})
    fill(source, bucket, "empty", content_type=TEXT)
    fill(source, bucket, "over", b"x", content_type=BYTES).close()
    fork = source.stream(f"{bucket}/fork")
    fork.fork(source.stream(f"{bucket}/json"))
    fill(source, bucket, "a/b/c", {"slashes": 1})


def test_copies_are_the_same_and_are_made_once(source, target, bucket, replay):
    some(source, bucket)
    done = replay()
    assert (done.streams, done.created, done.copied, done.closed) == (7, 7, 6, 1)
    assert done.ok
    assert done.messages == 5 + 3 + 2 + 1 + 5 + 1
    assert contents(target, bucket) == contents(source, bucket)
    again = replay()
    assert (again.copied, again.created, again.messages, again.closed, again.ok) == (
        0,
        0,
        0,
        0,
        True,
    )
    # What the listings say is enough where snapshots do not matter.
    assert (listed := replay(snapshots=False)).unchanged == 7
    assert listed.streams == 0


def test_streams_are_listed_and_compared_by_the_tasks_some_at_a_time(
    source, target, bucket, replay, monkeypatch
):
    some(source, bucket)
    fill(target, bucket, "bytes2", b"theirs", content_type=BYTES)
    compared = []

    def compare(work, stream_ids):
        compared.append(stream_ids)
        return compare_streams(work, stream_ids)

    monkeypatch.setattr(tasks, "run_tasks", run_here)
    monkeypatch.setattr(slice_replay, "TOGETHER", 3)
    monkeypatch.setattr(slice_replay, "compare_streams", compare)
    done = replay(snapshots=False)
    assert (done.streams, done.created, done.messages) == (7, 7, 17)
    assert max(map(len, compared)) <= 3
    expected = contents(source, bucket)
    assert [stream_id for each in compared for stream_id in each] == sorted(expected)
    found = contents(target, bucket)
    assert {name: found[name] for name in expected} == expected
    fill(source, bucket, "bytes", b"three", content_type=BYTES)
    compared.clear()
    assert replay(snapshots=False).unchanged == 6
    assert compared == [["bytes"]]
    assert replay(streams=["bytes", "none"]).streams == 1
    assert sorted(stream_id for each in compared[1:] for stream_id in each) == ["bytes", "none"]


@pytest.mark.slow
def test_what_came_since_is_copied(source, target, bucket, replay):
    some(source, bucket)
    replay(snapshots=False)
    fill(source, bucket, "bytes", b"three", content_type=BYTES)
    source.stream(f"{bucket}/fork").append({"own": 1})
    source.stream(f"{bucket}/text").close()
    fill(source, bucket, "new", {"x": 1})
    done = replay(snapshots=False)
    assert (done.streams, done.copied, done.messages, done.closed) == (4, 3, 3, 1)
    assert contents(target, bucket) == contents(source, bucket)


def test_into_another_bucket_and_only_some(source, target, bucket, replay):
    some(source, bucket)
    other = new_bucket()
    done = replay(target_bucket=other, stream_pattern="[bt].*")
    assert done.created == 2
    assert set(contents(target, other)) == {"bytes", "text"}


@pytest.mark.slow
def test_a_trimmed_stream_comes_with_its_snapshot(source, target, bucket, replay):
    stream = fill(source, bucket, "s", {"n": 1}, {"n": 2})
    at = stream.head().next_offset
    stream.append({"n": 3})
    stream.snapshots.publish(at, b'{"state":2}', content_type=JSON)
    source.storage.flush()
    done = replay()
    assert (done.snapshots, done.trimmed, done.messages, done.renumbered) == (1, 1, 1, 1)
    assert done.warnings[0].startswith("The offsets of 1 streams are smaller on the target")
    copy = target.stream(f"{bucket}/s")
    # Its offsets start anew: the snapshot is at its beginning.
    found = copy.snapshots.get()
    assert (found.payload, found.content_type, int(found.offset)) == (b'{"state":2}', JSON, 0)
    assert [each.json for each in copy.read()] == [{"n": 3}]
    # Later ones go where they belong, and offsets still differ.
    stream.append({"n": 4})
    end = stream.head().next_offset
    stream.append({"n": 5})
    stream.snapshots.publish(end, b'{"state":4}', content_type=JSON)
    done = replay()
    assert (done.snapshots, done.left_alone) == (1, 0)
    head = copy.head()
    # What was not copied before it was forgotten is in the snapshot.
    assert copy.snapshots.get().payload == b'{"state":4}'
    assert [each.json for each in copy.read(head.earliest_offset)] == [{"n": 5}]
    again = replay()
    assert (again.snapshots, again.messages, again.trimmed, again.ok) == (0, 0, 0, True)
    assert again.renumbered == 1
    stream.append({"n": 6})
    assert replay().messages == 1
    assert [each.json for each in copy.read(head.earliest_offset)] == [{"n": 5}, {"n": 6}]


@pytest.mark.slow
def test_a_snapshot_of_what_was_copied_is_published_where_it_was(source, target, bucket, replay):
    stream = fill(source, bucket, "s", {"n": 1}, {"n": 2})
    replay()
    end = stream.head().next_offset
    stream.append({"n": 3})
    stream.snapshots.publish(end, b"state", content_type="text/plain")
    done = replay()
    assert (done.snapshots, done.messages, done.trimmed) == (1, 1, 0)
    assert target.stream(f"{bucket}/s").snapshots.get().offset == end
    assert replay().snapshots == 0


@pytest.mark.slow
def test_messages_that_are_gone_too_early_are_told_of(source, target, bucket, replay):
    stream = fill(source, bucket, "s", {"n": 1})
    replay(snapshots=False)
    stream.append({"n": 2})
    stream.snapshots.publish(stream.head().next_offset, b"state")
    stream.append({"n": 3})
    done = replay(snapshots=False)
    assert not done.ok
    assert "replaced by a snapshot before they were copied" in done.left[0]["why"]
    done = replay(snapshots=False, fail_on_data_loss=False)
    assert (done.ok, done.trimmed, done.messages) == (True, 1, 1)
    copy = target.stream(f"{bucket}/s")
    assert [each.json for each in copy.read()] == [{"n": 1}, {"n": 3}]
    assert replay(snapshots=False).messages == 0


def test_other_streams_of_the_same_name_are_left_alone(source, target, bucket, replay):
    fill(target, bucket, "foreign", {"theirs": 1})
    fill(source, bucket, "foreign", {"ours": 1})
    fill(target, bucket, "typed", content_type=TEXT)
    fill(source, bucket, "typed", {"ours": 1})
    again = fill(source, bucket, "again", {"n": 1})
    fill(source, bucket, "good", {"n": 1})
    done = replay()
    assert (done.left_alone, done.copied, done.ok) == (2, 2, False)
    again.delete()
    fill(source, bucket, "again", {"n": 9})
    fill(target, bucket, "good", {"somebody": "else"})
    done = replay()
    why = {each["stream_id"]: each["why"] for each in done.left}
    assert "no copy of this one" in why["foreign"]
    assert "does not hold application/json" in why["typed"]
    assert "no copy of this one" in why["again"]
    assert "more of it than the source" in why["good"]
    assert [each.json for each in target.stream(f"{bucket}/foreign").read()] == [{"theirs": 1}]
    assert [each.json for each in target.stream(f"{bucket}/again").read()] == [{"n": 1}]


@pytest.mark.parametrize(
    ("name", "visit"),
    some_rows_of(
        [
            ("replay.planned", 1),
            ("replay.created", 3),
            ("replay.appending", 4),
            ("replay.appended", 4),
            ("replay.closed", 2),
        ],
        1,
    ),
)
def test_killed_half_way_and_run_again_it_ends_the_same(
    source, target, bucket, replay, name, visit
):
    for number in range(3):
        fill(source, bucket, f"b-{number}", *(b"%d;" % n for n in range(5)), content_type=BYTES)
        fill(source, bucket, f"j-{number}", *({"n": n} for n in range(5))).close()
    source.storage.flush()
    for number in range(3):
        fill(source, bucket, f"b-{number}", b"rest", content_type=BYTES)
    with killed_at(name, visit):
        replay(concurrency=1)
    assert contents(target, bucket) != contents(source, bucket)
    assert replay().ok
    assert contents(target, bucket) == contents(source, bucket)
    assert replay().messages == 0


@pytest.mark.slow
def test_an_executor_that_is_killed_half_way(source, target, bucket, replay, armed):
    for number in range(8):
        fill(source, bucket, f"b-{number}", *(b"%d;" % n for n in range(5)), content_type=BYTES)
    with armed("replay.appended=kill@7"), pytest.raises(Py4JJavaError):
        replay(concurrency=1)
    assert contents(target, bucket) != contents(source, bucket)
    assert replay().ok
    assert contents(target, bucket) == contents(source, bucket)


@pytest.mark.slow
def test_large_streams_and_messages(source, target, bucket, replay):
    large = {"x": "y" * 3_000_000}
    stream = fill(source, bucket, "s", large, {"n": 1}, large, *({"n": n} for n in range(10)))
    source.storage.flush()
    stream.append_many([{"n": n} for n in range(30_000)])
    done = replay()
    assert done.messages == 30_013
    assert contents(target, bucket) == contents(source, bucket)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "'concurrency' is from 1 to 512"),
        ({"streams": ["a"], "stream_pattern": "a"}, "not both"),
        ({"target_bucket": ""}, "The target is the source itself"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, said):
    with pytest.raises(SettingsError, match=said):
        build(Replay, {"bucket": "b", "target_bucket": "c"} | options)


def test_what_is_not_there_is_said(replay, servers):
    with pytest.raises(BucketNotFoundError):
        replay(bucket="nowhere-at-all")
    away = SparkConnection("http://127.0.0.1:1", retries=0)
    with pytest.raises(OutboundError, match=r"127\.0\.0\.1:1"):
        replay(target=away)
