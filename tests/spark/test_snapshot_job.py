"""The job `snapshot`: what is folded and published, once or again, disturbed or not."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from py4j.protocol import Py4JJavaError

from holdfast import failpoints
from holdfast.client import SyncClient
from holdfast.errors import BucketNotFoundError, OutboundError, SettingsError, SnapshotNotFoundError
from holdfast.settings.options import build
from holdfast.spark.connection import SparkConnection
from holdfast.spark.folding import publishing, slice_fold
from holdfast.spark.jobs import run_job, tasks
from holdfast.spark.jobs.recording import recorded
from holdfast.spark.jobs.snapshot import Snapshot
from holdfast.spark.reading import slice_reader
from tests.server_process import ServerProcess
from tests.spark.in_process import killed_at, run_here
from tests.spark.reading_back import new_bucket
from tests.thorough import some_rows_of

JSON = "application/json"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("snapshot"), flush_age=3600) as running:
        yield running


@pytest.fixture
def client(server):
    with SyncClient(server.url) as found:
        yield found


@pytest.fixture
def bucket(client):
    found = new_bucket()
    client.bucket(found).create()
    return found


@pytest.fixture
def fold(spark, server, bucket):
    """Run the job over the bucket."""

    def run(how="merge-patch", **options):
        options = {
            "bucket": bucket,
            "fold": how,
            "server": SparkConnection(server.url, retries=2),
        } | (options)
        # A function itself can be given in Python only.
        return run_job(spark, Snapshot(**options) if callable(how) else build(Snapshot, options))

    return run


@pytest.fixture
def armed(spark, monkeypatch):
    """Failpoints in the executors: the workers of what runs inside are new ones."""

    @contextmanager
    def arm(text):
        with monkeypatch.context() as patch:
            patch.setitem(spark.sparkContext.environment, failpoints.VARIABLE, text)
            yield

    return arm


def fill(client, bucket, messages, content_type=JSON):
    """Append to streams, which are created if they are missing."""
    for stream_id, those in messages.items():
        stream = client.stream(f"{bucket}/{stream_id}")
        stream.create(content_type)
        if content_type == JSON:
            stream.append_many(those)
        else:
            for each in those:
                stream.append(each)


def snapshot_of(client, bucket, stream_id):
    return client.stream(f"{bucket}/{stream_id}").snapshots.get()


def snapshots(client, bucket):
    """The snapshot of every stream that has one, at which offset, and what is behind it."""
    found = {}
    for info in client.bucket(bucket).streams():
        stream = client.stream(f"{bucket}/{info.stream_id}")
        try:
            snapshot = stream.snapshots.get()
        except SnapshotNotFoundError:
            continue
        behind = [each.payload for each in stream.read(snapshot.offset)]
        found[info.stream_id] = (snapshot.payload, snapshot.offset, behind)
    return found


def patches(count, streams=20):
    return {
        f"s-{number:03d}": [{f"f{at % 5}": at, "number": number} for at in range(count)]
        for number in range(streams)
    }


def test_new_messages_are_folded_into_the_snapshot_and_given_back(client, bucket, fold):
    fill(client, bucket, {"a": [{"x": 1}, {"y": {"z": 2}}], "b": [{"x": 5}, {"x": None}]})
    client.storage.flush()
    # These are not in packs yet.
    fill(client, bucket, {"a": [{"x": 3}], "c": [{"new": True}]})
    done = fold()
    assert (done.streams, done.published, done.messages) == (3, 3, 6)
    found = snapshots(client, bucket)
    assert {name: json.loads(each[0]) for name, each in found.items()} == {
        "a": {"x": 3, "y": {"z": 2}},
        "b": {},
        "c": {"new": True},
    }
    assert snapshot_of(client, bucket, "a").content_type == JSON
    for name, (_, offset, behind) in found.items():
        head = client.stream(f"{bucket}/{name}").head()
        assert offset == head.next_offset == head.earliest_offset
        assert behind == []


def test_again_there_is_nothing_to_do_and_later_only_what_came_since(client, bucket, fold):
    fill(client, bucket, patches(3))
    first = fold()
    assert (first.published, first.messages) == (20, 60)
    again = fold()
    assert (again.streams, again.published, again.messages) == (0, 0, 0)
    fill(client, bucket, {"s-003": [{"late": 1}], "new": [{"x": 1}]})
    later = fold()
    assert (later.streams, later.published, later.messages) == (2, 2, 2)
    found = json.loads(snapshot_of(client, bucket, "s-003").payload)
    assert found == {"f0": 0, "f1": 1, "f2": 2, "number": 3, "late": 1}


def test_only_streams_that_grew_enough(client, bucket, fold):
    fill(client, bucket, {"few": [{"a": 1}] * 3, "many": [{"b": 1}] * 8, "long": ["x" * 5000]})
    done = fold(min_messages=5)
    assert (done.published, done.below_threshold) == (1, 2)
    assert set(snapshots(client, bucket)) == {"many"}
    done = fold("concat", min_bytes="4k")
    assert (done.published, done.below_threshold) == (1, 1)
    assert set(snapshots(client, bucket)) == {"many", "long"}
    # What is left over counts towards the next time.
    fill(client, bucket, {"few": [{"a": 2}] * 2})
    assert fold(min_messages=5).published == 1
    assert json.loads(snapshot_of(client, bucket, "few").payload) == {"a": 2}


def test_what_does_not_fit_is_left_alone_and_named(client, bucket, fold):
    fill(client, bucket, {"good": [{"op": "add", "path": "/a", "value": 1}]})
    fill(client, bucket, {"bad": [{"op": "add", "path": "/a", "value": 1}, {"op": "spam"}]})
    fill(client, bucket, {"text": [b"{}", b"not json"]}, "text/plain")
    done = fold("json-patch")
    assert (done.published, done.left_alone, done.ok) == (1, 2, True)
    named = {each["stream_id"]: each for each in done.left}
    assert named["bad"]["why"] == "The patch cannot be applied: Unknown operation 'spam'"
    assert int(named["bad"]["offset"]) > 0
    assert "not JSON" in named["text"]["why"] or "cannot be applied" in named["text"]["why"]
    assert set(snapshots(client, bucket)) == {"good"}
    assert [each.text for each in client.stream(f"{bucket}/text").read()] == ["{}", "not json"]
    assert not fold("json-patch", strict=True).ok


def test_every_fold(client, bucket, fold):
    fill(client, bucket, {"k": [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": None}]})
    assert fold("last-by-key", key="id", value="v").published == 1
    assert json.loads(snapshot_of(client, bucket, "k").payload) == {"2": "b"}
    fill(client, bucket, {"j": [[1], {"a": 2}]})
    fill(client, bucket, {"t": [b"one,", b"two"]}, "text/plain; charset=utf-8")
    assert fold("concat", streams=["j", "t"]).published == 2
    assert snapshot_of(client, bucket, "j").payload == b'[[1],{"a":2}]'
    assert snapshot_of(client, bucket, "t").payload == b"one,two"
    assert snapshot_of(client, bucket, "t").content_type == "text/plain; charset=utf-8"
    fill(client, bucket, {"j": [3]})
    fill(client, bucket, {"t": [b", three"]}, "text/plain; charset=utf-8")
    assert fold("concat", stream_pattern="j|t").published == 2
    assert snapshot_of(client, bucket, "j").payload == b'[[1],{"a":2},3]'
    assert snapshot_of(client, bucket, "t").payload == b"one,two, three"


def test_functions_by_name_and_from_python(client, bucket, fold, tmp_path):
    place = tmp_path / "own_fold.py"
    place.write_text(
        "def total(state, message):\n"
        "    return (state or 0) + message['n']\n"
        "def text(state, message):\n"
        "    return (state or '') + message.decode()\n"
    )
    fill(client, bucket, {"n": [{"n": 1}, {"n": 2}]})
    fill(client, bucket, {"b": [b"x", b"y"]}, "application/octet-stream")
    done = fold("own_fold:total", py_files=[str(place)], streams=["n"])
    assert done.published == 1
    assert snapshot_of(client, bucket, "n").payload == b"3"
    done = fold("own_fold:text", py_files=[str(place)])
    assert done.published == 1
    found = snapshot_of(client, bucket, "b")
    assert (found.payload, found.content_type) == (b"xy", "text/plain; charset=utf-8")
    fill(client, bucket, {"n": [{"n": 5}, {"wrong": 1}]})
    done = fold(lambda state, message: state + message["n"])
    assert [each["why"] for each in done.left] == ["The function raised KeyError: 'n'"]


@pytest.mark.slow
def test_streams_and_states_that_are_large(client, bucket, fold):
    piece = b"0123456789abcdef" * 125_000
    fill(client, bucket, {"a": [piece] * 4, "c": [b"small"]}, "text/plain")
    fill(client, bucket, {"b": ["x" * 3_000_000, {"late": 1}, "y" * 3_000_000]})
    client.storage.flush()
    fill(client, bucket, {"a": [piece, b"end"]}, "text/plain")
    assert fold("concat").published == 3
    assert snapshot_of(client, bucket, "a").payload == piece * 5 + b"end"
    assert snapshot_of(client, bucket, "c").payload == b"small"
    found = json.loads(snapshot_of(client, bucket, "b").payload)
    assert found == ["x" * 3_000_000, {"late": 1}, "y" * 3_000_000]
    fill(client, bucket, {"a": [b"more"], "c": [b"er"]}, "text/plain")
    assert fold("concat").published == 2
    assert snapshot_of(client, bucket, "a").payload == piece * 5 + b"endmore"


def test_ids_that_cannot_have_snapshots_are_named(client, bucket, fold):
    fill(client, bucket, {"a/b": [{"x": 1}], "c": [{"x": 1}]})
    done = fold()
    assert (done.published, [each["stream_id"] for each in done.left]) == (1, ["a/b"])


@pytest.mark.parametrize("few", [32, 0], ids=["one by one", "together"])
def test_streams_below_the_threshold_are_not_read_again(
    client, bucket, fold, server, monkeypatch, few
):
    monkeypatch.setattr(slice_fold, "_FEW", few)
    monkeypatch.setattr(tasks, "run_tasks", run_here)
    monkeypatch.setattr(tasks, "core_count", lambda _spark: 2)
    read = []
    runs = slice_reader._runs

    def counted(chunk):
        for run in runs(chunk):
            read.extend([run.stream.stream_id] * len(run.offsets))
            yield run

    monkeypatch.setattr(slice_reader, "_runs", counted)

    def recorded_fold(**options):
        read.clear()
        job = Snapshot(
            bucket=bucket, fold="merge-patch", server=SparkConnection(server.url), **options
        )
        return recorded(job, lambda: run_job(None, job))

    fill(client, bucket, patches(3))
    first = recorded_fold(min_messages=5)
    assert (first.streams, first.published, first.below_threshold) == (20, 0, 20)
    assert len(read) == 60
    # Nothing has changed, so nothing is read, neither in packs nor before that.
    assert recorded_fold(min_messages=5).streams == 0
    assert read == []
    fill(client, bucket, {"s-003": [{"late": 1}] * 2, "s-007": [{"late": 1}], "new": [{"x": 1}]})
    later = recorded_fold(min_messages=5)
    assert (later.streams, later.published, later.below_threshold) == (3, 1, 2)
    assert len(read) == 5 + 4 + 1
    found = json.loads(snapshot_of(client, bucket, "s-003").payload)
    assert found == {"f0": 0, "f1": 1, "f2": 2, "number": 3, "late": 1}
    # Another threshold is another scope, for which nothing has been looked at.
    assert recorded_fold(min_messages=4).published == 1
    assert recorded_fold().published == 19
    assert recorded_fold(min_messages=5).streams == 0


def test_a_stream_created_anew_meanwhile_gets_no_snapshot(client, bucket, fold, monkeypatch):
    fill(client, bucket, {"a": [{"x": 1}], "b": [{"x": 2}]})
    read = slice_fold.stream_runs

    def replaced(*arguments):
        """The runs, after which one of the streams is not the one that was read."""
        runs = list(read(*arguments))
        client.stream(f"{bucket}/a").delete()
        fill(client, bucket, {"a": [{"y": 1}]})
        return iter(runs)

    monkeypatch.setattr(slice_fold, "stream_runs", replaced)
    monkeypatch.setattr(tasks, "run_tasks", run_here)
    done = fold()
    assert (done.published, done.skipped) == (1, 1)
    assert set(snapshots(client, bucket)) == {"b"}
    assert [each.json for each in client.stream(f"{bucket}/a").read()] == [{"y": 1}]


def test_forks_are_folded_from_their_beginning(client, bucket, fold):
    fill(client, bucket, {"source": [{"a": 1}, {"b": 2}]})
    fork = client.stream(f"{bucket}/fork")
    fork.fork(client.stream(f"{bucket}/source"))
    fork.append({"c": 3})
    done = fold()
    assert done.published == 2
    assert json.loads(snapshot_of(client, bucket, "fork").payload) == {"a": 1, "b": 2, "c": 3}


def test_a_snapshot_that_somebody_else_has_published_is_gone_on_from(client, bucket, fold):
    fill(client, bucket, {"a": [{"a": 1}, {"b": 2}]})
    stream = client.stream(f"{bucket}/a")
    stream.snapshots.publish(stream.head().next_offset, b'{"theirs":1}', content_type=JSON)
    fill(client, bucket, {"a": [{"c": 3}]})
    assert fold().published == 1
    assert json.loads(snapshot_of(client, bucket, "a").payload) == {"theirs": 1, "c": 3}


@pytest.mark.slow
def test_a_token_that_may_not_flush_is_enough(tmp_path, spark):
    with ServerProcess(tmp_path, flush_age=3600) as running, SyncClient(running.url) as client:
        bucket = new_bucket()
        client.bucket(bucket).create()
        fill(client, bucket, {"a": [{"a": 1}], "b": [{"b": 1}]})
        client.storage.flush()
        from holdfast.spark.jobs import snapshot as module

        job = Snapshot(bucket=bucket, fold="merge-patch", server=SparkConnection(running.url))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_flushed", lambda _server: False)
            assert run_job(spark, job).published == 2
            fill(client, bucket, {"a": [{"a": 2}]})
            # The packs do not know of the snapshots yet.
            again = run_job(spark, job)
        assert (again.published, again.messages) == (1, 1)
        assert json.loads(snapshot_of(client, bucket, "a").payload) == {"a": 2}


@pytest.fixture
def twice(client, bucket, fold):
    """The bucket and another one that is folded without a disturbance."""
    undisturbed = new_bucket()
    client.bucket(undisturbed).create()
    for where in (bucket, undisturbed):
        fill(client, where, patches(3))
    client.storage.flush()
    for where in (bucket, undisturbed):
        fill(client, where, patches(2))
    fold(bucket=undisturbed)
    return undisturbed


@pytest.mark.parametrize(
    ("name", "visit"),
    some_rows_of(
        [("snapshot_job.planned", 1), ("snapshot_job.folded", 3), ("snapshot_job.published", 3)], 1
    ),
)
def test_killed_half_way_and_run_again_it_ends_the_same(
    client, bucket, fold, twice, name, visit, monkeypatch
):
    monkeypatch.setattr(publishing, "_GROUP_SNAPSHOTS", 2)
    with killed_at(name, visit):
        fold(concurrency=1)
    assert snapshots(client, bucket) != snapshots(client, twice)
    fold()
    assert snapshots(client, bucket) == snapshots(client, twice)
    assert fold().streams == 0


@pytest.mark.slow
def test_executors_that_are_killed_half_way(client, bucket, fold, twice, armed):
    # So large that each is published by itself.
    large = {name: [{"large": "x" * 1_100_000}] for name in patches(1, streams=60)}
    for where in (bucket, twice):
        fill(client, where, large)
    fold(bucket=twice)
    with armed("snapshot_job.published=kill@2"), pytest.raises(Py4JJavaError):
        # Each attempt gets a few streams further.
        fold(concurrency=1)
    found = snapshots(client, bucket)
    assert 4 < len(found) < 60
    fold()
    assert snapshots(client, bucket) == snapshots(client, twice)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fold": "sum"}, "'fold' is one of merge-patch, .* MODULE:FUNCTION, not 'sum'"),
        ({"fold": "last-by-key"}, "'key' is needed"),
        ({"key": "a"}, "'key' is needed for the fold last-by-key, and for no other"),
        ({"value": "a"}, "'value' and 'tombstone' are for"),
        ({"fold": "last-by-key", "key": "a..b"}, "'key' is a path such as"),
        ({"min_messages": 0}, "'min_messages' is at least 1"),
        ({"min_bytes": "lots"}, "'min_bytes' is a number of bytes"),
        ({"concurrency": 0}, "'concurrency' is from 1 to 128"),
        ({"stream_pattern": "("}, "no regular expression"),
        ({"streams": ["a"], "stream_pattern": "a"}, "not both"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, said):
    with pytest.raises(SettingsError, match=said):
        build(Snapshot, {"bucket": "b", "fold": "merge-patch"} | options)


def test_what_is_not_there_is_said(spark, fold, bucket):
    with pytest.raises(BucketNotFoundError):
        fold(bucket="nowhere-at-all")
    with pytest.raises(SettingsError, match="no module 'no_such_fold'"):
        fold("no_such_fold:f")
    with pytest.raises(SettingsError, match="no file"):
        fold("own_fold:total", py_files=["/nowhere/own_fold.py"])
    away = replace(SparkConnection(retries=0), url="http://127.0.0.1:1")
    with pytest.raises(OutboundError, match=r"127\.0\.0\.1:1"):
        fold(server=away)
