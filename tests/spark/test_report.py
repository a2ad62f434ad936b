"""The report: what it counts, from which tables, and what its page holds."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import SettingsError
from holdfast.spark.jobs import run_job
from holdfast.spark.jobs.progress import UNSEEN
from holdfast.spark.jobs.report import Report, Reported, run
from holdfast.spark.jobs.report_figures import REST, message_figures
from holdfast.spark.jobs.report_page import Section
from holdfast.spark.jobs.report_tables import open_all
from holdfast.testing import FakeClock

START = datetime(2026, 3, 1, tzinfo=UTC)
# (bucket, stream, bytes of its messages); one every hour, all streams at the same time.
STREAMS = [
    ("events", "clicks", [100, 200, 300]),
    ("events", "<script>alert(1)</script>", [5000]),
    ("orders", "eu/1", [10] * 30),
    ("empty", "nothing", [0]),
]


def rows(streams=STREAMS):
    for bucket, stream, sizes in streams:
        offset = 0
        for hour, size in enumerate(sizes):
            yield {
                "bucket": bucket,
                "stream_id": stream,
                "offset": f"{offset:020d}",
                "next_offset": f"{offset + size:020d}",
                "timestamp": START + timedelta(hours=hour),
                "content_type": "application/octet-stream",
                "payload": b"x",
            }
            offset += size


SCHEMA = pa.schema(
    [
        ("bucket", pa.string()),
        ("stream_id", pa.string()),
        ("offset", pa.string()),
        ("next_offset", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("content_type", pa.string()),
        ("payload", pa.binary()),
    ]
)


def table(found=None):
    return pa.Table.from_pylist(list(rows() if found is None else found), SCHEMA)


@pytest.fixture
def lake(tmp_path):
    """A Parquet table with a directory for each day."""
    for day in (0, 1):
        date = (START + timedelta(days=day)).date()
        place = tmp_path / "lake" / f"date={date}"
        place.mkdir(parents=True)
        found = [each for each in rows() if each["timestamp"].date() == date]
        pq.write_table(table(found), place / "part-0.parquet")
    return tmp_path / "lake"


def opened(spark, *paths):
    return open_all(spark, [str(each) for each in paths]).messages


def test_the_figures_are_right(spark, lake):
    found = message_figures(opened(spark, lake), top=2)
    total = found.totals
    assert (total.messages, total.bytes, total.streams, total.buckets) == (35, 5900, 4, 3)
    assert (total.first_s, total.last_s) == (
        START.timestamp(),
        (START + timedelta(hours=29)).timestamp(),
    )
    assert [(each.bucket, each.streams, each.bytes) for each in found.buckets] == [
        ("events", 2, 5600),
        ("orders", 1, 300),
        ("empty", 1, 0),
    ]
    assert [(each.stream_id, each.messages) for each in found.busiest] == [
        ("eu/1", 30),
        ("clicks", 3),
    ]
    assert [each.bytes for each in found.largest] == [5000, 600]
    assert found.sizes == {12: 1, 9: 1, 8: 1, -1: 1}
    assert found.rate_step_s == 300
    assert sum(found.rates.values()) == 35
    assert found.rates[int(START.timestamp())] == 4
    day = int(START.timestamp())
    assert found.volumes == {
        ("events", day): 5600,
        ("orders", day): 240,
        ("orders", day + 86_400): 60,
        ("empty", day): 0,
    }


def test_the_smaller_buckets_are_one_colour(spark, tmp_path):
    streams = [(f"bucket-{number}", "a", [number * 100]) for number in range(1, 12)]
    pq.write_table(table(rows(streams)), tmp_path / "a.parquet")
    found = message_figures(opened(spark, tmp_path), top=1)
    assert found.volume_buckets[0] == "bucket-11"
    assert found.volume_buckets[-1] == REST
    assert len(found.volume_buckets) == 8
    assert found.volumes[REST, int(START.timestamp())] == 1000


@pytest.mark.slow
def test_the_page(spark, lake, tmp_path):
    to = tmp_path / "out" / "page.html"
    job = Report(tables=[str(lake)], to=str(to), title="A & B", sections=[f"{__name__}:added"])
    clock = FakeClock(start_ms=int(START.timestamp() * 1000))
    assert run(spark, job, UNSEEN, clock) == Reported(str(to), 35, 5900, 4, 3)
    text = to.read_text()
    for said in (
        "<h1>A &amp; B</h1>",
        "2026-03-01 00:00 to 2026-03-02 05:00 UTC",
        "Made 2026-03-01 00:00 UTC",
        "Volume by bucket and day",
        "Append rate",
        "Stream sizes",
        "events/&lt;script&gt;alert(1)&lt;/script&gt;",
        f"added for {lake}",
    ):
        assert said in text, said
    assert "<script" not in text
    assert "://" not in text
    assert list(to.parent.iterdir()) == [to]


def added(spark, tables):
    """What another job puts on the page."""
    return Section("More", [], f"added for {', '.join(tables)}")


@pytest.mark.slow
def test_messages_without_a_time_are_counted_all_the_same(spark, tmp_path):
    found = [{**each, "timestamp": None} for each in rows()]
    pq.write_table(table(found), tmp_path / "a.parquet")
    to = tmp_path / "page.html"
    summary = run_job(spark, Report(tables=[str(tmp_path / "a.parquet")], to=str(to)))
    assert (summary.messages, summary.bytes) == (35, 5900)
    text = to.read_text()
    assert "No message has a time." in text
    assert "Append rate" not in text
    assert "Busiest streams" in text


@pytest.mark.slow
def test_offsets_that_are_no_numbers_have_no_size(spark, tmp_path):
    found = [{**each, "offset": "a_1", "next_offset": "a_2"} for each in rows()]
    pq.write_table(table(found), tmp_path / "a.parquet")
    figures = message_figures(opened(spark, tmp_path), top=1)
    assert (figures.totals.messages, figures.totals.bytes) == (35, 0)


def test_a_table_that_holds_nothing_yet(spark, tmp_path):
    (tmp_path / "lake" / "_commits").mkdir(parents=True)
    to = tmp_path / "page.html"
    assert run_job(spark, Report(tables=[str(tmp_path / "lake")], to=str(to))).messages == 0
    assert "hold no messages so far" in to.read_text()


@pytest.mark.slow
def test_delta_and_iceberg_are_read_as_of_now(spark, tmp_path):
    from deltalake import DeltaTable, write_deltalake
    from pyiceberg.catalog.sql import SqlCatalog

    delta = str(tmp_path / "delta")
    write_deltalake(delta, table())
    # What was replaced is no longer part of the table, though its file is still there.
    write_deltalake(delta, table(), mode="overwrite")
    assert len(DeltaTable(delta).file_uris()) == 1

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("a")
    iceberg = catalog.create_table(
        "a.b", schema=table().schema, location=f"file://{tmp_path}/iceberg"
    )
    iceberg.append(table())
    iceberg.overwrite(table())
    catalog.close()

    for place in (delta, tmp_path / "iceberg"):
        assert len(opened(spark, place).inputFiles()) == 1
    both = message_figures(opened(spark, delta, tmp_path / "iceberg"), top=1)
    assert (both.totals.messages, both.totals.streams) == (70, 4)


def test_what_is_no_table_is_refused(spark, tmp_path):
    with pytest.raises(SettingsError, match="There is no table at /nowhere"):
        run_job(spark, Report(tables=["/nowhere"]))
    pq.write_table(pa.table({"bucket": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(SettingsError, match="`transcripts`: it has no 'stream_id', "):
        run_job(spark, Report(tables=[str(tmp_path)]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tables": []}, "'tables' must name at least one table."),
        ({"top": 0}, "'top' is a number from 1 to 1000, not 0."),
        ({"sections": ["x"]}, "'sections' has functions as MODULE:NAME, not 'x'."),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(SettingsError) as caught:
        Report(**{"tables": ["x"], **options})
    assert caught.value.message == said


def test_a_section_that_cannot_be_loaded(spark, lake):
    with pytest.raises(SettingsError, match="'sections': nowhere:x cannot be loaded: No module"):
        run_job(spark, Report(tables=[str(lake)], sections=["nowhere:x"]))
