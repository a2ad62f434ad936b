"""Spark with packs and tables in S3, and keys from options and from the environment."""

import pytest
from deltalake import DeltaTable

from holdfast.spark.jobs import run_job
from tests.moto_server import KEY_ID, SECRET
from tests.server_process import ServerProcess
from tests.spark.archiving import SETTINGS, fill, job, new_bucket, rows
from tests.spark.conftest import EXECUTORS_KEY_ID
from tests.spark.filled import Row, ordered


@pytest.fixture(scope="module")
def filled(moto, tmp_path_factory):
    """A bucket in packs, but for its last messages."""
    settings = SETTINGS | moto.settings(moto.new_bucket())
    with ServerProcess(tmp_path_factory.mktemp("in-s3"), **settings) as server:
        found = new_bucket(server)
        fill(found)
        yield found


def test_packs_are_read_with_keys_of_options_or_of_the_environment(spark, filled, moto):
    names = list(Row._fields)
    for keys, expected in (
        ({"storeAccessKeyId": "key-of-an-option", "storeSecretAccessKey": SECRET}, None),
        ({}, EXECUTORS_KEY_ID),
    ):
        options = filled.options(via="store", storeEndpoint=moto.endpoint, **keys)
        moto.seen_keys()
        frame = spark.read.format("holdfast").options(**options).load().select(names)
        found = ordered(Row(*each[:-1], bytes(each[-1])) for each in frame.collect())
        assert found == filled.everything()
        # The server itself has another key, and may use it at any time.
        assert moto.seen_keys() - {KEY_ID} == {expected or "key-of-an-option"}


def test_a_table_is_archived_from_s3_to_s3(spark, filled, moto, monkeypatch):
    bucket = moto.new_bucket()
    # The driver's keys are for the table, those of the executors for packs.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    to = f"s3://{bucket}/lake/events"
    stores = {"store_endpoint": moto.endpoint, "to_endpoint": moto.endpoint, "via": "store"}
    moto.seen_keys()
    found = run_job(spark, job(filled, to, format="delta", **stores))
    assert found.rows == len(filled.rows)
    assert moto.seen_keys() == {KEY_ID, EXECUTORS_KEY_ID}
    reach = {"AWS_ENDPOINT_URL": moto.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    table = DeltaTable(to, storage_options=reach).to_pyarrow_table()
    assert rows(table) == filled.everything()
