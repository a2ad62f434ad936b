"""Archiving: every message of a bucket in the table once, run after run."""

import datetime as dt
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from holdfast import failpoints
from holdfast.errors import (
    BucketNotFoundError,
    ConflictError,
    DataLossError,
    OutboundError,
    SettingsError,
    StoreError,
)
from holdfast.settings.options import build
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import run_job
from holdfast.spark.jobs.archive import Archive
from tests.server_process import ServerProcess
from tests.spark.archiving import (
    FORMATS,
    SETTINGS,
    Here,
    Killed,
    fill,
    job,
    killed_once,
    new_bucket,
    rows,
    run,
    table_at,
)
from tests.spark.filled import Filled
from tests.thorough import some_rows_of

OF_PARQUET = {"archive.decided", "archive.moving", "archive.moved", "archive.removing"}
OF_OTHERS = {"archive.ready"}
KILLS = [
    (form, name)
    for form in FORMATS
    for name in failpoints.NAMES
    if name.startswith("archive.") and name not in (OF_OTHERS if form == "parquet" else OF_PARQUET)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("archived"), **SETTINGS) as found:
        yield found


@pytest.fixture
def filled(server):
    return new_bucket(server)


@pytest.fixture(params=FORMATS)
def form(request):
    return request.param


def test_with_spark_every_format_has_the_bucket(spark, filled, form, tmp_path):
    fill(filled)
    first = run_job(spark, job(filled, tmp_path, format=form, file_size="1m"))
    assert (first.rows, first.after, first.up_to_date) == (len(filled.rows), "", True)
    assert first.until == filled.cursor()
    assert rows(table_at(form, tmp_path)) == filled.everything()
    again = run_job(spark, job(filled, tmp_path, format=form, file_size="1m"))
    assert (again.rows, again.batches, again.until) == (0, 0, first.until)
    fill(filled, 1)
    more = run_job(spark, job(filled, tmp_path, format=form, file_size="1m", compact_files=2))
    assert (more.after, more.rows + first.rows) == (first.until, len(filled.rows))
    assert more.merged_files == more.files + first.files
    assert rows(table_at(form, tmp_path)) == filled.everything()


@pytest.mark.parametrize(("form", "point"), some_rows_of(KILLS, 3))
def test_killed_anywhere_and_run_again(filled, form, point, tmp_path, monkeypatch):
    options = {"format": form, "compact_files": 2}
    fill(filled)
    run(filled, tmp_path, **options)
    fill(filled, 1)
    killed_once(monkeypatch, point)
    with pytest.raises(Killed):
        run(filled, tmp_path, **options)
    fill(filled, 2)
    last = run(filled, tmp_path, **options)
    assert last.until == filled.cursor()
    assert rows(table_at(form, tmp_path)) == filled.everything()
    assert run(filled, tmp_path, **options).rows == 0


def test_tasks_that_are_run_twice_count_once(filled, form, tmp_path):
    fill(filled)
    run(filled, tmp_path, Here(twice=True), format=form)
    assert rows(table_at(form, tmp_path)) == filled.everything()


def test_a_second_run_at_the_same_time_is_refused(filled, form, tmp_path, monkeypatch):
    fill(filled)
    refused = []

    def hook(name):
        if name == "archive.staged":
            with pytest.raises(ConflictError, match=r"^Another run is archiving to .*run it again"):
                run(filled, tmp_path, format=form)
            refused.append(True)

    monkeypatch.setattr(failpoints, "hook", hook)
    run(filled, tmp_path, format=form)
    assert refused == [True]
    assert rows(table_at(form, tmp_path)) == filled.everything()


def test_a_long_backlog_takes_several_commits(filled, tmp_path):
    for number in range(40):
        filled.append(f"s-{number % 4}", b"x" * 1000)
    filled.flush()
    found = run(filled, tmp_path, max_bytes="10k")
    assert 4 <= found.batches <= 6
    assert found.payload_bytes == 40_000
    assert len(list((tmp_path / "_holdfast" / "commits").iterdir())) == found.batches
    assert rows(table_at("parquet", tmp_path)) == filled.everything()


def test_small_amounts_can_wait(filled, tmp_path):
    filled.append("s", b"x" * 1000)
    found = run(filled, tmp_path, min_bytes="10k")
    assert (found.rows, found.up_to_date) == (0, False)
    filled.append("s", *[b"x" * 1000] * 10)
    found = run(filled, tmp_path, min_bytes="10k", max_bytes="4k")
    assert (found.rows, found.up_to_date) == (11, True)
    assert run(filled, tmp_path, min_bytes="10k").up_to_date


def test_files_are_as_large_as_asked_for_and_sorted(filled, tmp_path):
    for number in range(4):
        filled.append(f"s-{number}", *(os.urandom(20_000) for _ in range(20)))
    filled.flush()
    found = run(filled, tmp_path, file_size="300k", compression="none")
    assert 4 <= found.files <= 8
    for path in tmp_path.rglob("part-*.parquet"):
        table = pq.read_table(path, partitioning=None)
        keys = list(
            zip(*(table[name].to_pylist() for name in ("stream_id", "offset")), strict=True)
        )
        assert keys == sorted(keys)
        assert path.stat().st_size < 700_000
    assert rows(table_at("parquet", tmp_path)) == filled.everything()


def test_nothing_is_archived_from_an_empty_bucket(filled, form, tmp_path):
    found = run(filled, tmp_path, format=form)
    assert (found.rows, found.files, found.up_to_date) == (0, 0, True)
    fill(filled)
    assert run(filled, tmp_path, format=form).rows == len(filled.rows)


@pytest.mark.parametrize(
    "options", [{"streams": ["bytes-1", "json-1"]}, {"stream_pattern": ".*-1"}]
)
def test_some_streams(filled, options, tmp_path):
    fill(filled)
    run(filled, tmp_path, **options)
    assert rows(table_at("parquet", tmp_path)) == filled.of("bytes-1", "json-1")
    with pytest.raises(SettingsError, match=f"^'{next(iter(options))}': the table at .* was made"):
        run(filled, tmp_path)


def test_without_partitions(filled, form, tmp_path):
    fill(filled)
    run(filled, tmp_path, format=form, partition_by="none")
    assert rows(table_at(form, tmp_path)) == filled.everything()
    assert not list(tmp_path.rglob("date=*"))


def test_days_are_those_of_utc(filled, form, tmp_path):
    fill(filled)
    run(filled, tmp_path, format=form)
    table = table_at(form, tmp_path)
    times = table["timestamp"].to_pylist()
    now = dt.datetime.now(dt.UTC)
    assert all(abs(now - each) < dt.timedelta(minutes=2) for each in times)
    days = {path.name for path in tmp_path.rglob("date=*")}
    assert days == {f"date={each.date()}" for each in times}
    if form != "iceberg":
        # Spark takes a directory for a table only if its partitions have one root.
        assert {path.parent for path in tmp_path.rglob("date=*")} == {tmp_path}
        assert {str(each) for each in table["date"].to_pylist()} == {each[5:] for each in days}


def test_what_was_deleted_before_it_was_archived_is_missed(filled, tmp_path):
    filled.append("kept", b"1")
    filled.append("gone", b"1")
    run(filled, tmp_path)
    filled.append("gone", b"2")
    filled.append("kept", b"2")
    filled.client.stream(f"{filled.bucket}/gone").delete()
    with pytest.raises(
        DataLossError, match=r"'gone'.*; set 'fail_on_data_loss' to false to skip them"
    ):
        run(filled, tmp_path)
    found = run(filled, tmp_path, fail_on_data_loss=False)
    assert found.up_to_date
    kept = [each for each in rows(table_at("parquet", tmp_path)) if each.stream_id == "kept"]
    assert kept == filled.of("kept")


def test_what_was_gone_before_the_table_was_begun_is_not_missed(filled, tmp_path, monkeypatch):
    for number in range(6):
        filled.append(f"s-{number}", b"x" * 1000)
    filled.append("s-0", b"more")
    filled.client.stream(f"{filled.bucket}/s-4").delete()
    killed_once(monkeypatch, "archive.committed")
    with pytest.raises(Killed):
        run(filled, tmp_path, max_bytes="2k")
    # As little by a second run that goes on with it.
    assert run(filled, tmp_path, max_bytes="2k").up_to_date
    kept = [each for each in rows(table_at("parquet", tmp_path)) if each.stream_id != "s-4"]
    assert kept == [each for each in filled.everything() if each.stream_id != "s-4"]


def test_the_table_of_another_server_or_bucket_is_refused(filled, tmp_path):
    filled.append("s", b"1")
    run(filled, tmp_path / "to")
    with ServerProcess(tmp_path / "other") as other:
        theirs = Filled(other.url, filled.bucket)
        theirs.client.bucket(filled.bucket).create()
        with pytest.raises(SettingsError, match="is the archive of another server's bucket"):
            run(theirs, tmp_path / "to")
    with pytest.raises(SettingsError, match="has the format parquet, not delta"):
        run(filled, tmp_path / "to", format="delta")
    with pytest.raises(BucketNotFoundError):
        run(filled, tmp_path / "nowhere", bucket="no-such-bucket")
    nobody = SparkConnection("http://127.0.0.1:9", retries=0)
    with pytest.raises(OutboundError, match="cannot be connected to"):
        run(filled, tmp_path / "nowhere", server=nobody)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"^'to': .* cannot be written: "):
        run(filled, tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file_size": "large"}, "'file_size' is a number of bytes such as 64m, not 'large'."),
        ({"streams": ["a"], "stream_pattern": "b"}, "Give either 'streams' or 'stream_pattern'"),
        ({"stream_pattern": "("}, "'stream_pattern' is no regular expression"),
        ({"schema": {"a": "long"}}, "'schema' and 'evolve' are for json_as = \"columns\"."),
        ({"compact_files": 1}, "'compact_files' is 0, or at least 2."),
        ({"catalog": "c"}, "'catalog' and its options are for format = \"iceberg\"."),
        ({"format": "orc"}, '\'format\': expected "parquet", "delta" or "iceberg", got \'orc\''),
    ],
)
def test_wrong_options_are_said_in_one_sentence(options, words):
    with pytest.raises(SettingsError) as caught:
        build(Archive, {"bucket": "b", "to": "/x"} | options)
    assert caught.value.message.startswith(words)


def test_the_options_are_read_without_spark_or_arrow():
    code = (
        "import sys, holdfast.spark.jobs.archive as a; "
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'deltalake', 'pyiceberg'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
