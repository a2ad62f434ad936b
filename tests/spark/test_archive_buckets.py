"""Archiving to tables in S3."""

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog import load_catalog

from holdfast.errors import SettingsError
from tests.moto_server import KEY_ID, SECRET
from tests.server_process import ServerProcess
from tests.spark.archiving import SETTINGS, Killed, fill, killed_once, new_bucket, rows, run


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("archived"), **SETTINGS) as found:
        yield found


@pytest.fixture
def filled(server):
    return new_bucket(server)


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.mark.parametrize(
    ("form", "point"),
    [
        ("parquet", "archive.staged"),
        ("parquet", "archive.moving"),
        ("delta", "archive.ready"),
        ("iceberg", "archive.ready"),
    ],
)
def test_tables_in_buckets(filled, form, point, moto, keys, tmp_path, monkeypatch):
    bucket = moto.new_bucket()
    to = f"s3://{bucket}/lake/events"
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    options = {"format": form, "to_endpoint": moto.endpoint, "compact_files": 2}
    options |= {"deletes": "apply"}
    options |= {"catalog_options": catalog} if form == "iceberg" else {}
    fill(filled)
    run(filled, to, **options)
    filled.client.stream(f"{filled.bucket}/late-0").delete()
    filled.rows = [each for each in filled.rows if each.stream_id != "late-0"]
    fill(filled, 1)
    killed_once(monkeypatch, point)
    with pytest.raises(Killed):
        run(filled, to, **options)
    assert run(filled, to, **options).until == filled.cursor()
    storage = {
        "AWS_ENDPOINT_URL": moto.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }
    match form:
        case "delta":
            found = DeltaTable(to, storage_options=storage).to_pyarrow_table()
        case "iceberg":
            s3 = {"s3.endpoint": moto.endpoint, "s3.region": "us-east-1"}
            table = load_catalog("holdfast", **catalog | s3).load_table(("holdfast", filled.bucket))
            found = table.scan().to_arrow()
        case _:
            files = S3FileSystem(endpoint_override=moto.endpoint, region="us-east-1")
            found = ds.dataset(to.removeprefix("s3://"), filesystem=files).to_table()
    assert rows(found) == filled.everything()


def test_an_iceberg_table_in_a_bucket_needs_a_catalog(filled, moto, keys):
    to = f"s3://{moto.new_bucket()}/x"
    with pytest.raises(SettingsError, match=r"^'catalog': an Iceberg table in a bucket needs a"):
        run(filled, to, format="iceberg", to_endpoint=moto.endpoint)
