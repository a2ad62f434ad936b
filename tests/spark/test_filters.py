"""Filters that Spark hands over, times and offsets by option, and reads of several buckets."""

import pickle
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from holdfast.errors import PackCorruptError, SettingsError
from holdfast.spark.reading.arrow import spark_schema
from holdfast.spark.reading.readers import batch_reader
from tests.server_process import ServerProcess
from tests.spark.filled import JSON, Filled, batches, planned
from tests.thorough import examples

COLUMNS = ("bucket", "stream_id", "offset", "timestamp", "payload")
MICROSECOND = timedelta(microseconds=1)


class Found(NamedTuple):
    """A row of a read."""

    bucket: str
    stream_id: str
    offset: str
    timestamp: datetime
    payload: bytes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("filters") / "data", flush_age=3600) as process:
        yield process


@pytest.fixture(scope="module")
def bucket(server: ServerProcess) -> Filled:
    """Two buckets, each in two packs and not in packs, at some twenty different times."""
    first, second = Filled(server.url, "first"), Filled(server.url, "second")
    for step in range(6):
        for each in (first, second):
            each.append(f"s-{step % 4}", b"a", b"bc")
            each.append("other", {"n": step}, content_type=JSON)
            sleep(0.003)
        if step in {2, 4}:
            first.flush()
    return first


def found(parts: Iterable[Any]) -> list[Found]:
    rows = (row for part in parts for batch in batches(part) for row in batch.to_pylist())
    return sorted(Found(**row) for row in rows)


def read(options: dict[str, str], filters: Iterable[Filter] = ()) -> tuple[list[Found], set[int]]:
    """The rows of a read with these filters, and which of them are left to Spark."""
    reader = batch_reader(options, spark_schema(COLUMNS))
    filters = list(filters)
    left = list(reader.pushFilters(filters)) if filters else []
    assert all(any(each is one for one in filters) for each in left)
    return found(pickle.loads(pickle.dumps(reader.partitions()))), {id(each) for each in left}


def holds(each: Filter, row: Found) -> bool:
    """Whether a row passes a filter, as SQL has it."""
    if isinstance(each, Not):
        return not holds(each.child, row)
    value = getattr(row, each.attribute[0])
    match each:
        case IsNotNull():
            return True
        case EqualTo() | EqualNullSafe():
            return value == each.value
        case In():
            return value in each.value
        case GreaterThan():
            return value > each.value
        case GreaterThanOrEqual():
            return value >= each.value
        case LessThan():
            return value < each.value
        case LessThanOrEqual():
            return value <= each.value
        case StringStartsWith():
            return value.startswith(each.value)
        case StringContains():
            return each.value in value
    raise AssertionError(each)


def both_buckets(bucket: Filled, **more: str) -> dict[str, str]:
    names = ",".join(COLUMNS)
    return bucket.options(columns=names, pushdown="true", **more) | {"bucket": "first,second"}


@pytest.fixture(scope="module")
def everything(bucket: Filled) -> list[Found]:
    rows, _ = read(both_buckets(bucket))
    assert len(rows) == 2 * 18
    assert len({row.timestamp for row in rows}) > 6
    return rows


COMPARISONS = st.sampled_from(
    [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
)


@st.composite
def some_filters(draw: st.DrawFn, rows: list[Found]) -> list[Filter]:
    """Filters whose values are those of rows, near them, and far from them."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        column = draw(st.sampled_from(("bucket", "stream_id", "offset", "timestamp")))
        value = getattr(draw(st.sampled_from(rows)), column)
        if column == "timestamp":
            value += draw(st.sampled_from((-1, 0, 1, 500, 1000))) * MICROSECOND
        elif column == "offset":
            value = draw(st.sampled_from((value, f"{int(value) + 1:020d}", value[:19], "9")))
        else:
            value = draw(st.sampled_from((value, value[:2], value + "x", "")))
        kind = draw(st.sampled_from(("compare", "compare", "in", "starts", "contains", "not")))
        path = (column,)
        if kind == "in":
            other = getattr(draw(st.sampled_from(rows)), column)
            found.append(In(path, (value, other)))
        elif kind == "starts" and isinstance(value, str):
            found.append(StringStartsWith(path, value))
        elif kind == "contains" and isinstance(value, str):
            found.append(StringContains(path, value))
        elif kind == "not":
            found.append(Not(EqualTo(path, value)))
        else:
            found += [IsNotNull(path), draw(COMPARISONS)(path, value)]
    return found


@given(data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_rows_are_those_that_pass_the_filters(
    bucket: Filled, everything: list[Found], data: st.DataObject
) -> None:
    filters = data.draw(some_filters(everything))
    rows, left = read(both_buckets(bucket), filters)
    taken = [each for each in filters if id(each) not in left]
    assert rows == [row for row in everything if all(holds(each, row) for each in taken)]
    exact = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    for each in filters:
        if isinstance(each, exact) and each.attribute != ("offset",):
            assert id(each) not in left
        if isinstance(each, Not | StringContains):
            assert id(each) in left


def test_only_what_passes_is_planned_and_asked_for(bucket: Filled) -> None:
    options = both_buckets(bucket)

    def parts(*filters: Filter) -> list[Any]:
        reader = batch_reader(options, spark_schema(COLUMNS))
        assert not list(reader.pushFilters(list(filters)))
        return list(reader.partitions())

    assert len({part.source.bucket for part in parts()}) == 2
    assert {part.source.bucket for part in parts(EqualTo(("bucket",), "second"))} == {"second"}
    assert parts(EqualTo(("bucket",), "third")) == []
    assert parts(GreaterThan(("stream_id",), "b"), LessThan(("stream_id",), "a")) == []
    assert parts(LessThan(("offset",), f"{5:020d}"), EqualTo(("offset",), f"{5:020d}")) == []
    (first, *_) = parts(EqualTo(("stream_id",), "s-1"))
    assert first.source.selection.prefix == "s-1"
    (first, *_) = parts(StringStartsWith(("stream_id",), "s-"))
    assert first.source.selection.prefix == "s-"


def test_packs_of_other_times_are_not_read(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", flush_age=3600, merge_packs=1000) as server:
        bucket = Filled(server.url)
        times = []
        for step in range(5):
            bucket.append("a", bytes([step]) * 1000)
            bucket.append(f"s-{step}", b"x")
            bucket.flush()
            times.append(datetime.now(UTC))
            sleep(0.003)
        pushed = [GreaterThan(("timestamp",), times[2]), LessThan(("timestamp",), times[3])]
        wanted, left = read(bucket.options(columns=",".join(COLUMNS), pushdown="true"), pushed)
        assert [(row.stream_id, row.payload[:1]) for row in wanted] == [("a", b"\3"), ("s-3", b"x")]
        assert not left
        # All others could be gone.
        packs = bucket.packs()
        needed = {
            each.pack
            for each in bucket.client.bucket(bucket.bucket).ranges(first="s-3", last="s-3")
        }
        for pack in packs - needed:
            (tmp_path / "data" / "objects" / pack).write_bytes(b"damaged")
        assert read(bucket.options(columns=",".join(COLUMNS), pushdown="true"), pushed)[0] == wanted


def test_extents_of_other_times_are_not_read(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", flush_age=3600) as server:
        bucket = Filled(server.url)
        bucket.append("early", b"written before")
        sleep(0.003)
        middle = datetime.now(UTC)
        sleep(0.003)
        bucket.append("late", b"1", b"2")
        bucket.flush()
        (pack,) = (tmp_path / "data" / "objects" / "packs").glob("*.pack")
        pack.write_bytes(pack.read_bytes().replace(b"written before", b"Written before"))
        options = bucket.options(columns=",".join(COLUMNS), pushdown="true")
        rows, _ = read(options, [GreaterThan(("timestamp",), middle)])
        assert [row.payload for row in rows] == [b"1", b"2"]
        with pytest.raises(PackCorruptError):
            read(options)


def test_few_streams_of_many(bucket: Filled, everything: list[Found]) -> None:
    rows, _ = read(bucket.options(columns=",".join(COLUMNS), streams="other,s-3"))
    assert rows == [
        row for row in everything if row.bucket == "first" and row.stream_id in {"other", "s-3"}
    ]


def test_framed_records_keep_their_own_offsets(bucket: Filled) -> None:
    reader = batch_reader(both_buckets(bucket, framing="length-prefixed"), spark_schema(COLUMNS))
    offset = EqualTo(("offset",), f"{4:020d}")
    stream = EqualTo(("stream_id",), "s-0")
    assert list(reader.pushFilters([stream, offset])) == [offset]


def test_times_by_option(bucket: Filled, everything: list[Found]) -> None:
    times = sorted({row.timestamp for row in everything})
    start, end = times[2], times[-2]
    plain = {"columns": ",".join(COLUMNS)}
    bounds = {"startingTimestamp": start.isoformat(), "endingTimestamp": end.isoformat()}
    rows, _ = read(both_buckets(bucket, **bounds))
    assert rows == [row for row in everything if start <= row.timestamp < end]
    milliseconds = str((start - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))
    rows, _ = read(bucket.options(startingTimestamp=milliseconds, **plain))
    assert rows == [row for row in everything if row.bucket == "first" and row.timestamp >= start]
    one = f'{{"s-1": "{end.isoformat()}"}}'
    rows, _ = read(bucket.options(startingTimestamp=one, **plain))
    assert rows == [
        row
        for row in everything
        if row.bucket == "first" and (row.stream_id != "s-1" or row.timestamp >= end)
    ]
    for wrong in ("yesterday", '{"s-1": null}', "[1]"):
        with pytest.raises(SettingsError, match="'startingTimestamp' is a time such as"):
            planned(bucket.options(startingTimestamp=wrong))
    with pytest.raises(SettingsError, match="does not tell when messages were written"):
        planned(bucket.options(startingTimestamp=milliseconds, via="http"))


def test_offsets_by_pattern(bucket: Filled, everything: list[Found]) -> None:
    third, first = f"{3:020d}", f"{1:020d}"
    options = bucket.options(
        columns=",".join(COLUMNS),
        startingOffsetsByPattern=f'{{"s-[01]": "{third}", "s-.*": "{first}"}}',
        startingOffsets=f'{{"s-1": "{0:020d}"}}',
    )
    least = {"s-0": third, "s-1": "", "s-2": first, "s-3": first, "other": ""}
    rows, _ = read(options)
    assert rows == [
        row for row in everything if row.bucket == "first" and row.offset >= least[row.stream_id]
    ]
    with pytest.raises(SettingsError, match="'startingOffsetsByPattern' is JSON with regular"):
        planned(bucket.options(startingOffsetsByPattern='{"(": "0"}'))


def test_buckets_by_pattern(bucket: Filled, everything: list[Found]) -> None:
    options = both_buckets(bucket)
    del options["bucket"]
    rows, _ = read(options | {"bucketPattern": "fir.*|second"})
    assert rows == everything
    with pytest.raises(SettingsError, match=r"No bucket of .* matches 'fir'"):
        read(options | {"bucketPattern": "fir"})
    with pytest.raises(SettingsError, match="either 'bucket' or 'bucketPattern'"):
        read(options | {"bucketPattern": "fir", "bucket": "first"})


def test_spark_shows_what_was_pushed(
    spark: SparkSession, bucket: Filled, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = spark.read.format("holdfast").options(**bucket.options(pushdown="true")).load()
    query = frame.where(
        "stream_id like 's-%' and timestamp < '2100-01-01' and offset >= '00000000000000000001' "
        "and length(payload) = 2"
    )
    query.explain("formatted")
    (line,) = (each for each in capsys.readouterr().out.splitlines() if "PushedFilters" in each)
    for word in ("StringStartsWith(stream_id,s-)", "LessThan(timestamp", "(offset,0000000"):
        assert word in line
    assert "payload" not in line
    assert query.count() == 6
