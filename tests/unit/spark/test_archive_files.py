"""TableFiles of a task: by day, not too large, and nothing left of a task that failed."""

import datetime as dt
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from holdfast.spark.archiving import files as files_module
from holdfast.spark.archiving.files import TableFiles, by_day
from holdfast.spark.archiving.layout import TableRows
from holdfast.spark.archiving.table_run import grouped, task_bytes
from holdfast.spark.connection import SparkConnection
from holdfast.spark.reading.planning import ReadPlan
from holdfast.spark.reading.source import ReadSource, Slice
from tests.unit.spark.archived import DAY_MS, LAYOUT, chunk_of, output_at, place_at

SOURCE = ReadSource(SparkConnection(), "events")


def test_days_begin_at_midnight_in_utc():
    times = [-1, 0, DAY_MS - 1, DAY_MS, 366 * DAY_MS]
    chunk = replace(chunk_of(range(5)), timestamps=np.array(times, dtype=np.int64))
    found = {day: part.payloads.to_pylist() for day, part in by_day(chunk)}
    assert found == {
        "1969-12-31": [b"0"],
        "1970-01-01": [b"1", b"2"],
        "1970-01-02": [b"3"],
        "1971-01-02": [b"4"],
    }
    for day, part in by_day(chunk):
        for at in part.timestamps.tolist():
            assert dt.datetime.fromtimestamp(at / 1000, dt.UTC).date().isoformat() == day


def write(output, numbers, days=2):
    rows = TableRows(LAYOUT, "events")
    with TableFiles(output, 3) as files:
        for number in numbers:
            for day, part in by_day(chunk_of([number], days=days)):
                files.write(day, rows.batch(part))
    return files.written


def test_a_full_file_is_followed_by_another(tmp_path):
    place = place_at(tmp_path)
    written = write(output_at(place, file_bytes=1_000), range(200), days=1)
    assert len(written) > 2
    assert sum(each.rows for each in written) == 200
    for each in written:
        assert (tmp_path / each.path).stat().st_size == each.size_bytes < 20_000
        assert pq.read_metadata(tmp_path / each.path).num_rows == each.rows


def test_what_is_said_of_a_file_is_in_it(tmp_path):
    for each in write(output_at(place_at(tmp_path), "x/", "stem"), range(10)):
        table = pq.read_table(tmp_path / each.path, partitioning=None)
        assert each.path.startswith(f"x/date={each.date}/stem-00003-")
        assert {str(time.date()) for time in table["timestamp"].to_pylist()} == {each.date}
        times = [int(time.timestamp() * 1000) for time in table["timestamp"].to_pylist()]
        assert (each.first_timestamp_ms, each.last_timestamp_ms) == (min(times), max(times))
        assert (each.first_stream_id, each.last_stream_id) == ("s", "s")


def test_only_so_many_files_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_OPEN_MAX", 3)
    written = write(output_at(place_at(tmp_path)), range(20), days=10)
    assert len(written) == 20
    assert sum(each.rows for each in written) == 20


def test_only_so_much_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_HELD_BYTES_MAX", 300)
    written = write(output_at(place_at(tmp_path)), range(20))
    assert len(written) == 2
    assert all(pq.read_metadata(tmp_path / each.path).num_row_groups > 1 for each in written)


def test_nothing_is_left_of_a_task_that_failed(tmp_path):
    output = output_at(place_at(tmp_path), file_bytes=1_000)
    rows = TableRows(LAYOUT, "events")

    def failing():
        with TableFiles(output, 1) as files:
            for number in range(300):
                for day, part in by_day(chunk_of([number])):
                    files.write(day, rows.batch(part))
            assert files.written, "some are complete"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert list(tmp_path.rglob("*.parquet")) == []


MEGA = 1 << 20


@pytest.mark.parametrize(
    ("total", "cores", "tasks"),
    [(400, 2, 4), (128, 2, 2), (100, 2, 1), (1, 8, 1), (1000, 100, 8), (16384, 100, 200)],
)
def test_tasks_are_about_a_file_and_keep_all_cores_busy(total, cores, tasks):
    size = task_bytes(total * MEGA, 128 * MEGA, cores)
    assert -(-total * MEGA // size) == tasks
    assert size <= 128 * MEGA
    assert size >= min(total, 64) * MEGA


def slice_of(size, number=0):
    return Slice(f"s{number}", f"s{number}", 0, 9, 9, size)


@pytest.mark.parametrize(
    ("sizes", "total", "groups"),
    [
        ([], 0, []),
        ([0], 0, [1]),
        ([100, 100, 20, 0], 250, [1, 2, 1]),
        ([100, 0], 190, [1, 1]),
        ([10] * 25, 250, [12, 12, 1]),
        ([300, 1, 1], 302, [1, 2]),
    ],
)
def test_small_slices_share_a_task(sizes, total, groups):
    slices = [slice_of(size, number) for number, size in enumerate(sizes)]
    tasks = grouped(ReadPlan(SOURCE, slices, ""), 100, total)
    assert [len(each.parts) for each in tasks] == groups
    assert [part for each in tasks for part in each.parts] == slices
    assert [each.number for each in tasks] == list(range(len(groups)))
