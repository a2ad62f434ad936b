"""Runs of jobs: one at a time, recorded on the server, as functions with a result."""

import json
from dataclasses import replace
from threading import Event, Thread

import pytest

from holdfast.cli.main import main
from holdfast.client import SyncClient
from holdfast.errors import (
    BucketNotFoundError,
    OutboundError,
    PipelineBusyError,
    StreamNotFoundError,
)
from holdfast.spark import pipeline
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import recording
from holdfast.spark.jobs.audit import Audit, Audited
from holdfast.spark.jobs.recording import pipeline_name, recorded
from holdfast.spark.jobs.replay import Replay
from holdfast.spark.jobs.snapshot import Snapshot
from tests.server_process import ServerProcess
from tests.spark.filled import Filled
from tests.spark.reading_back import new_bucket

DONE = Audited(1, 2, 3, 0, 4, 0, 0, 0, [str(number) for number in range(50)])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("server"), flush_age=3600) as server:
        yield server


@pytest.fixture
def job(server):
    return Audit(server=SparkConnection(server.url, retries=0), name=new_bucket())


def history(server, name):
    with SyncClient(server.url) as client:
        return list(client.stream(f"_jobs/{name}").read().read_json())


def test_a_run_is_recorded(server, job):
    result = recorded(job, lambda: DONE)
    assert result == DONE
    assert (result.job, result.name, result.warnings) == ("audit", job.name, [])
    started, finished = history(server, job.name)
    assert (started["event"], started["run"]) == ("started", result.run)
    assert started["options"] == {"server": server.url}
    assert {"holdfast", "python", "spark"} == started["versions"].keys()
    assert (finished["event"], finished["run"], finished["ok"]) == ("finished", result.run, True)
    assert finished["result"]["extents"] == 3
    # The findings of a large job would fill the history.
    assert len(finished["result"]["findings"]) == 20
    assert json.dumps(result.document())

    def failing():
        raise BucketNotFoundError("events")

    with pytest.raises(BucketNotFoundError):
        recorded(job, failing)
    with pytest.raises(KeyboardInterrupt):
        recorded(job, interrupted)
    errors = [each["error"]["code"] for each in history(server, job.name) if "error" in each]
    assert errors == ["bucket_not_found", "interrupted"]


def interrupted():
    raise KeyboardInterrupt


def test_a_second_run_says_who_is_first_and_can_wait(job, monkeypatch):
    monkeypatch.setattr(recording, "_WAIT_S", 0.1)
    begun, go_on = Event(), Event()

    def slow():
        begun.set()
        assert go_on.wait(20)
        return DONE

    results = []
    first = Thread(target=lambda: results.append(recorded(job, slow)))
    first.start()
    assert begun.wait(20)
    with pytest.raises(PipelineBusyError, match=r"run [0-9a-f]{16} on .+, process \d+, since 20"):
        recorded(job, lambda: DONE)
    # Another pipeline is not concerned.
    recorded(replace(job, name=new_bucket()), lambda: DONE)
    waiting = Thread(
        target=lambda: results.append(recorded(replace(job, wait_s=20.0), lambda: DONE))
    )
    waiting.start()
    go_on.set()
    first.join()
    waiting.join()
    assert [each.warnings for each in results] == [[], []]


def test_the_lock_of_a_killed_run_ends_and_that_of_a_living_one_does_not(job, monkeypatch):
    monkeypatch.setattr(recording, "LOCK_TTL_S", 1)
    monkeypatch.setattr(recording, "_RENEW_S", 0.1)
    monkeypatch.setattr(recording, "_WAIT_S", 0.1)
    waiting = replace(job, wait_s=20.0)

    def longer_than_the_ttl():
        with pytest.raises(PipelineBusyError):
            recorded(replace(job, wait_s=1.5), lambda: DONE)
        return DONE

    recorded(job, longer_than_the_ttl)
    # Killed: nothing renews it, and nothing gives it back.
    monkeypatch.setattr(recording._Lock, "_release", lambda _: None)
    recorded(job, lambda: DONE)
    with pytest.raises(PipelineBusyError):
        recorded(job, lambda: DONE)
    assert recorded(waiting, lambda: DONE).warnings == []


def test_without_the_right_to_write_there_is_a_warning(tmp_path, capsys):
    file = str(tmp_path / "tokens.toml")
    assert main(["token", "create", "--name", "r", "--scope", "read:*", "--file", file]) == 0
    token = capsys.readouterr().out.strip()
    with ServerProcess(tmp_path / "data", access_tokens_file=file) as server:
        job = Audit(server=SparkConnection(server.url, token=token))
        result = recorded(job, lambda: DONE)
    (said,) = result.warnings
    assert said.startswith("The run is not locked and recorded: ")
    assert "write:_jobs" in said
    assert result == DONE


def test_an_unreachable_server_is_found_before_the_work():
    job = Audit(server=SparkConnection("http://127.0.0.1:9", retries=0))
    with pytest.raises(OutboundError):
        recorded(job, lambda: pytest.fail("the work was begun"))
    # Without a record nothing is asked.
    assert recorded(replace(job, record=False), lambda: DONE) == DONE


def test_a_server_that_is_gone_is_not_asked_again(tmp_path):
    with ServerProcess(tmp_path) as gone:
        # Each attempt to reach it would take minutes.
        job = Audit(server=SparkConnection(gone.url, retries=20))

        def work():
            gone.stop()
            raise OutboundError("It cannot be reached.")

        with pytest.raises(OutboundError):
            recorded(job, work)


def test_a_result_is_not_lost_with_the_server(tmp_path):
    with ServerProcess(tmp_path) as gone:
        job = Audit(server=SparkConnection(gone.url, retries=0))

        def work():
            gone.stop()
            return DONE

        result = recorded(job, work)
    assert result == DONE
    assert result.warnings[0].startswith("The run is not recorded: ")


def test_a_bucket_that_is_not_there_is_found_before_the_work(server):
    connection = SparkConnection(server.url)
    job = Snapshot(bucket="nothing-here", fold="concat", server=connection)
    with pytest.raises(BucketNotFoundError):
        recorded(job, lambda: pytest.fail("the work was begun"))
    # Nothing was run.
    with pytest.raises(StreamNotFoundError):
        history(server, pipeline_name(job))


def test_the_name_is_made_of_the_target():
    one, two = SparkConnection("http://one"), SparkConnection("http://two")
    assert pipeline_name(Audit()) == "audit"
    assert pipeline_name(Audit(name="nightly")) == "nightly"
    assert pipeline_name(Snapshot(bucket="events", fold="concat")) == "snapshot-events"
    names = [pipeline_name(Replay(bucket="events", target=each)) for each in (one, two)]
    assert [each[:14] for each in names] == ["replay-events-"] * 2
    assert names[0] != names[1]


def test_a_job_is_a_function(spark, server, tmp_path):
    bucket = Filled(server.url)
    bucket.append("a", b"1", b"2")
    connection = SparkConnection(server.url)
    result = pipeline.archive(spark, bucket=bucket.bucket, to=str(tmp_path), server=connection)
    assert (result.rows, result.ok) == (2, True)
    assert [each["event"] for each in history(server, result.name)] == ["started", "finished"]
    with pytest.raises(BucketNotFoundError):
        pipeline.archive(spark, bucket="nothing-here", to=str(tmp_path / "b"), server=connection)
