"""Archiving with `deletes=apply`: the table has no rows of streams that are deleted."""

import pickle
import time

import pytest

from holdfast.errors import CursorGoneError, DataLossError
from holdfast.spark.archiving import erasing
from tests.server_process import ServerProcess
from tests.spark.archiving import (
    FORMATS,
    SETTINGS,
    Here,
    Killed,
    fill,
    killed_once,
    new_bucket,
    rows,
    run,
    table_at,
)
from tests.spark.filled import TEXT, Filled
from tests.thorough import some_of, some_rows_of


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


def delete(filled: Filled, *stream_ids: str) -> int:
    """Delete streams; returns how many messages they had."""
    before = len(filled.rows)
    for each in stream_ids:
        filled.client.stream(f"{filled.bucket}/{each}").delete()
    filled.rows = [each for each in filled.rows if each.stream_id not in stream_ids]
    filled.forget(*stream_ids)
    return before - len(filled.rows)


def test_rows_of_deleted_streams_are_removed(filled, form, tmp_path):
    options = {"format": form, "deletes": "apply"}
    fill(filled)
    run(filled, tmp_path, **options)
    assert rows(table_at(form, tmp_path)) == filled.everything()
    gone = delete(filled, "bytes-1", "json-2", "late-0")
    # The new one has nothing of the old one.
    filled.append("bytes-1", b"anew")
    found = run(filled, tmp_path, **options)
    assert (found.erased_rows, found.rows, found.erased_files > 0) == (gone, 1, True)
    assert rows(table_at(form, tmp_path)) == filled.everything()
    # Nothing is done twice, and what has no rows in the table does not matter.
    delete(filled, "bytes-1")
    filled.append("never", b"archived")
    delete(filled, "never")
    found = run(filled, tmp_path, **options)
    assert (found.erased_rows, found.rows) == (1, 0)
    assert run(filled, tmp_path, **options).erased_files == 0
    assert rows(table_at(form, tmp_path)) == filled.everything()


@pytest.mark.parametrize("form", some_of(FORMATS, 1))
def test_by_default_they_are_kept_until_a_run_applies_them(filled, form, tmp_path, monkeypatch):
    fill(filled)
    source, fork = (filled.client.stream(f"{filled.bucket}/{name}") for name in ("bytes-0", "fork"))
    # It inherits messages that are older than itself.
    fork.fork(source)
    fork.append(b"of the fork")
    run(filled, tmp_path, format=form)
    archived = rows(table_at(form, tmp_path))
    gone = delete(filled, "bytes-1", "json-2")
    filled.append("bytes-1", b"anew")
    assert run(filled, tmp_path, format=form).erased_rows == 0
    assert len(rows(table_at(form, tmp_path))) == len(archived) + 1
    # The changes since the table was begun do not tell the new stream's rows from the old one's:
    # the streams are compared, here page by page.
    monkeypatch.setattr(erasing, "_PAGE_STREAMS", 2)
    assert run(filled, tmp_path, format=form, deletes="apply").erased_rows == gone
    of_forks = [each for each in archived if each.stream_id == "fork"]
    assert rows(table_at(form, tmp_path)) == sorted(filled.everything() + of_forks)


KILLS = [
    ("parquet", "archive.staged"),
    ("parquet", "archive.decided"),
    ("delta", "archive.ready"),
    ("iceberg", "archive.ready"),
]


@pytest.mark.parametrize(("form", "point"), some_rows_of(KILLS, 2))
def test_killed_while_rows_are_removed(filled, form, point, tmp_path, monkeypatch):
    fill(filled)
    run(filled, tmp_path, format=form, deletes="apply")
    gone = delete(filled, "bytes-0", "json-1")
    killed_once(monkeypatch, point)
    with pytest.raises(Killed):
        run(filled, tmp_path, format=form, deletes="apply")
    fill(filled, 1)
    found = run(filled, tmp_path, format=form, deletes="apply")
    assert found.erased_rows == (0 if point == "archive.decided" else gone)
    assert rows(table_at(form, tmp_path)) == filled.everything()


@pytest.mark.slow
def test_rows_of_expired_streams_are_removed(filled, tmp_path):
    stream = filled.client.stream(f"{filled.bucket}/short")
    stream.create(TEXT, ttl_s=2)
    stream.append("soon gone")
    filled.append("kept", b"1")
    assert run(filled, tmp_path, deletes="apply").rows == 2
    deadline_s = time.monotonic() + 20
    while not run(filled, tmp_path, deletes="apply").erased_rows:
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    assert rows(table_at("parquet", tmp_path)) == filled.everything()


class Measured(Here):
    """Notes the size of what tasks return."""

    def __init__(self):
        super().__init__()
        self.result_bytes = 0

    def run(self, tasks, work, what):
        results = super().run(tasks, work, what)
        self.result_bytes += len(pickle.dumps(results))
        return results


def test_what_tasks_return_depends_on_files_not_on_streams(filled, tmp_path):
    sizes = []
    for count in (2, 60):
        names = [f"{'x' * 60}-{count}-{number}" for number in range(count)]
        for each in names:
            filled.append(each, b"1")
        executors = Measured()
        run(filled, tmp_path, executors)
        delete(filled, *names)
        run(filled, tmp_path, executors, deletes="apply")
        sizes.append(executors.result_bytes)
    assert sizes[1] < 2 * sizes[0]
    assert list(tmp_path.glob("date=*/*.parquet")) == []


def test_deletions_that_the_feed_has_forgotten(tmp_path):
    with ServerProcess(tmp_path / "data", **SETTINGS) as server:
        filled = new_bucket(server)
        fill(filled)
        filled.flush()
        first = run(filled, tmp_path / "to", deletes="apply")
        gone = delete(filled, "bytes-0", "json-1")
        fill(filled, 1)
        filled.flush()
        server.stop()
        server.start()
        again = Filled(server.url, filled.bucket)
        again.rows = filled.rows
        with pytest.raises(CursorGoneError):
            next(again.client.bucket(again.bucket).changes(first.until))
        found = run(again, tmp_path / "to", deletes="apply")
        assert found.erased_rows == gone
        assert rows(table_at("parquet", tmp_path / "to")) == again.everything()


def test_what_was_deleted_before_it_was_read_is_no_loss_but_what_was_trimmed_is(filled, tmp_path):
    filled.append("kept", b"1")
    run(filled, tmp_path, deletes="apply")
    filled.append("kept", b"2")
    filled.append("gone", b"1")
    delete(filled, "gone")
    run(filled, tmp_path, deletes="apply")
    assert rows(table_at("parquet", tmp_path)) == filled.everything()
    filled.append("kept", b"3", b"4")
    snapshots = filled.client.stream(f"{filled.bucket}/kept").snapshots
    snapshots.publish(f"{3:020d}", b"state")
    with pytest.raises(DataLossError, match="'kept'"):
        run(filled, tmp_path, deletes="apply")
