"""Archiving JSON streams: as text, as columns that are given or found, and what does not fit."""

import datetime as dt
import json

import pytest

from holdfast.errors import SettingsError
from holdfast.spark.jobs import run_job
from tests.server_process import ServerProcess
from tests.spark.archiving import FORMATS, SETTINGS, fill, job, new_bucket, run, table_at
from tests.spark.filled import JSON


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


@pytest.mark.slow
def test_spark_reads_the_directory(spark, filled, tmp_path):
    fill(filled)
    options = {"json_as": "columns", "evolve": True}
    run_job(spark, job(filled, tmp_path, **options))
    filled.append("json-0", {"later": True}, content_type=JSON)
    run_job(spark, job(filled, tmp_path, **options))
    frame = spark.read.parquet(str(tmp_path))
    assert frame.count() == len(filled.rows)
    assert dict(frame.dtypes) | {
        "timestamp": "timestamp",
        "date": "date",
        "later": "boolean",
    } == dict(frame.dtypes)
    assert frame.where("later").count() == 1
    assert frame.where("n = 2").select("stream_id", "s", "_raw").collect() == [
        ("json-2", "ä0", None)
    ]


def test_json_as_text(filled, form, tmp_path):
    fill(filled)
    run(filled, tmp_path, format=form, json_as="text")
    for each in table_at(form, tmp_path).to_pylist():
        is_json = each["content_type"] == JSON
        assert (each["payload"] is None) == is_json
        assert (each["value"] is None) != is_json
        if is_json:
            assert json.loads(each["value"])


def test_json_as_given_columns(filled, form, tmp_path):
    messages = [
        {"user": "a", "amount": 1, "at": "2031-05-17T12:00:00Z", "timestamp": "mine"},
        {"user": "b", "amount": 2.5, "more": {"x": [1]}},
        {"user": 7, "amount": 3},
        "text",
    ]
    filled.append("j", *messages, content_type=JSON)
    filled.append("b", b"bytes")
    schema = {"user": "string", "amount": "double", "at": "timestamp", "timestamp": "string"}
    options = {"format": form, "json_as": "columns", "schema": schema}
    found = run(filled, tmp_path, **options)
    assert (found.raw_rows, found.rest_rows) == (1, 2)
    at = dt.datetime(2031, 5, 17, 12, tzinfo=dt.UTC)
    names = ["payload", "user", "amount", "at", "timestamp_", "_rest", "_raw"]
    table = table_at(form, tmp_path).sort_by([("stream_id", "ascending"), ("offset", "ascending")])
    assert [tuple(each.values()) for each in table.select(names).to_pylist()] == [
        (b"bytes", None, None, None, None, None, None),
        (None, "a", 1.0, at, "mine", None, None),
        (None, "b", 2.5, None, None, '{"more":{"x":[1]}}', None),
        (None, None, 3.0, None, None, '{"user":7}', None),
        (None, None, None, None, None, None, '"text"'),
    ]
    filled.append("j", {"user": "c"}, content_type=JSON)
    assert run(filled, tmp_path, **options | {"schema": {}}).rows == 1
    with pytest.raises(
        SettingsError, match=r"'user' is string in the table at .* cannot become lo"
    ):
        run(filled, tmp_path, **options | {"schema": {"user": "long"}})
    with pytest.raises(
        SettingsError, match=r"'more' is not a column in the table at .* without 'evol"
    ):
        run(filled, tmp_path, **options | {"schema": {"more": "json"}})


def test_json_columns_are_found_and_stay(filled, form, tmp_path):
    options = {"format": form, "json_as": "columns"}
    filled.append("b", b"no JSON yet")
    assert run(filled, tmp_path, **options).columns == {}
    filled.append("j", {"n": 1, "deep": {"a": 1}}, content_type=JSON)
    columns = {"n": "long", "deep": "json"}
    assert run(filled, tmp_path, **options).columns == columns
    filled.append("j", {"n": 2, "new": "x"}, {"n": "three"}, content_type=JSON)
    found = run(filled, tmp_path, **options)
    assert (found.columns, found.rest_rows, found.raw_rows) == (columns, 2, 0)
    table = table_at(form, tmp_path).sort_by([("stream_id", "ascending"), ("offset", "ascending")])
    assert table["n"].to_pylist() == [None, 1, 2, None]
    assert table["_rest"].to_pylist() == [None, None, '{"new":"x"}', '{"n":"three"}']


def test_new_fields_get_columns_if_wanted(filled, form, tmp_path):
    options = {"format": form, "json_as": "columns", "evolve": True}
    filled.append("j", {"n": 1}, content_type=JSON)
    run(filled, tmp_path, **options)
    filled.append("j", {"n": 2, "new": "x", "no good": 1}, content_type=JSON)
    found = run(filled, tmp_path, **options)
    assert (found.columns, found.rest_rows) == ({"n": "long", "new": "string"}, 1)
    table = table_at(form, tmp_path).sort_by("offset")
    assert table.select(["n", "new", "_rest"]).to_pylist() == [
        {"n": 1, "new": None, "_rest": None},
        {"n": 2, "new": "x", "_rest": '{"no good":1}'},
    ]
    # What was written before the column was known is not there any more.
    assert (
        len([each for each in tmp_path.rglob("*.parquet") if "_delta_log" not in each.parts]) == 2
    )
    assert found.files == 1


def test_a_column_becomes_wider_where_the_format_can(filled, form, tmp_path):
    options = {"format": form, "json_as": "columns", "evolve": True}
    filled.append("j", {"n": 1, "m": 1}, content_type=JSON)
    run(filled, tmp_path, **options, schema={"n": "int", "m": "long"})
    filled.append("j", {"n": 2**40, "m": 1.5}, content_type=JSON)
    found = run(filled, tmp_path, **options)
    table = table_at(form, tmp_path).sort_by("offset")
    if form == "delta":
        assert (found.columns["n"], table["n"].to_pylist()) == ("int", [1, None])
        assert table["_rest"].to_pylist() == [None, '{"n":1099511627776,"m":1.5}']
        with pytest.raises(SettingsError, match=r"'n' is int in the table at .* cannot become lo"):
            run(filled, tmp_path, **options, schema={"n": "long"})
    else:
        assert (found.columns["n"], table["n"].to_pylist()) == ("long", [1, 2**40])
        assert table["_rest"].to_pylist() == [None, '{"m":1.5}']
