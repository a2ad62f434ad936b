"""Archived tables as other engines open them: DuckDB, PyIceberg through a REST catalog, deltalake.

DuckDB's extensions for Delta and Iceberg have to be downloaded, so it reads the files that the
tables list, and Arrow datasets.
"""

import duckdb
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from holdfast.errors import SettingsError
from tests.server_process import ServerProcess
from tests.spark.archiving import (
    FORMATS,
    SETTINGS,
    Killed,
    fill,
    killed_once,
    new_bucket,
    rows,
    run,
)
from tests.spark.filled import Row, ordered
from tests.spark.rest_catalog import TOKEN, rest_catalog


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("archived"), **SETTINGS) as found:
        yield found


@pytest.fixture
def filled(server):
    return new_bucket(server)


def queried(of: object, **parameters: object) -> list[Row]:
    names = ", ".join(f'"{name}"' for name in Row._fields)
    found = duckdb.connect().execute(f"SELECT {names} FROM {of}", parameters).fetchall()
    return ordered(Row(*each) for each in found)


@pytest.mark.parametrize("form", FORMATS)
def test_duckdb_reads_the_files_of_every_format(filled, form, tmp_path):
    fill(filled)
    options = {"format": form, "compact_files": 2, "deletes": "apply"}
    run(filled, tmp_path, **options)
    filled.client.stream(f"{filled.bucket}/json-0").delete()
    filled.rows = [each for each in filled.rows if each.stream_id != "json-0"]
    filled.forget("json-0")
    fill(filled, 1)
    run(filled, tmp_path, **options)
    match form:
        case "delta":
            files = DeltaTable(str(tmp_path)).file_uris()
        case "iceberg":
            table = StaticTable.from_metadata(f"file://{tmp_path}")
            files = table.inspect.files()["file_path"].to_pylist()
        case _:
            files = [str(tmp_path / "date=*" / "*.parquet")]
    read = "read_parquet($files, hive_partitioning = true, union_by_name = true)"
    assert queried(read, files=files) == filled.everything()
    if form == "delta":
        # With Delta's own statistics and partitions.
        dataset = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
        ((count,),) = (
            duckdb.from_arrow(dataset).filter("stream_id = 'bytes-0'").count("*").fetchall()
        )
        assert count == len(filled.of("bytes-0"))


def test_a_rest_catalog_has_the_table(filled, tmp_path, monkeypatch):
    monkeypatch.setenv("CATALOG_TOKEN", TOKEN)
    to = tmp_path / "lake" / "events"
    with rest_catalog(tmp_path) as (url, requests):
        options = {
            "format": "iceberg",
            "catalog_uri": url,
            "catalog_warehouse": "w",
            "catalog_token_env": "CATALOG_TOKEN",
            "catalog_table": "raw.events",
            "compact_files": 2,
        }
        fill(filled)
        run(filled, to, **options)
        assert "GET /v1/config?warehouse=w" in requests
        fill(filled, 1)
        killed_once(monkeypatch, "archive.ready")
        with pytest.raises(Killed):
            run(filled, to, **options)
        assert run(filled, to, **options).until == filled.cursor()
        catalog = load_catalog("others", type="rest", uri=url, token=TOKEN)
        table = catalog.load_table("raw.events")
        assert rows(table.scan().to_arrow()) == filled.everything()
        connection = table.scan("stream_id = 'bytes-0'").to_duckdb("events")
        (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
        assert count == len(filled.of("bytes-0"))
        monkeypatch.setenv("CATALOG_TOKEN", "wrong")
        with pytest.raises(SettingsError, match=r"^'catalog': "):
            run(filled, to, **options)
