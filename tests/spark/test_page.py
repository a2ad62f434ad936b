"""The examples of docs/spark.md do what it says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.client import SyncClient
from tests.server_process import ServerProcess

PAGE = (Path(__file__).parents[2] / "docs/spark.md").read_text()
(_, READ, _, TYPED, FOLLOW, _, WRITE, SINK, JOB) = re.findall(
    r"```python\n(.+?)```", PAGE, re.DOTALL
)
EVENTS = [{"user_id": f"user-{n % 3}", "at": n} for n in range(9)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("page") / "data") as process:
        with SyncClient(process.url) as client:
            stream = client.stream("events/all")
            stream.create("application/json")
            stream.append_many(EVENTS)
        yield process


def run(block: str, server: ServerProcess, place: Path, **scope: Any) -> dict[str, Any]:
    """The scope of an example after it was run here instead of there."""
    places = {"/lake": f"{place}/lake", '"lake/': f'"{place}/lake/'}
    for there, here in {"http://127.0.0.1:4437": server.url, **places}.items():
        block = block.replace(there, here)
    exec(block, scope)
    return scope


@pytest.mark.slow
def test_read(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> None:
    messages = run(READ, server, tmp_path, spark=spark)["messages"]
    assert [json.loads(row.payload) for row in messages.sort("offset").collect()] == EVENTS


@pytest.mark.slow
def test_typed(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> None:
    with SyncClient(server.url) as client:
        stream = client.stream("users/typed")
        stream.create("application/json")
        stream.append_many([{"name": "Ada", "age": 36, "address": {"city": "London"}}])
    block = TYPED.replace('"users")', f'"users").option("url", {server.url!r})')
    (row,) = run(block, server, tmp_path, spark=spark)["users"].collect()
    assert (row.name, row.age, row.address.city, row.address.zip) == ("Ada", 36, "London", None)


@pytest.mark.slow
def test_follow(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> None:
    run(FOLLOW, server, tmp_path, spark=spark)["query"].awaitTermination(60)
    assert spark.read.parquet(f"{tmp_path}/lake/events").count() == len(EVENTS)


@pytest.mark.slow
def test_write(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> None:
    options = {"url": server.url, "bucket": "events", "columns": "value"}
    frame = (
        spark.readStream.format("holdfast")
        .options(**options)
        .load()
        .selectExpr("from_json(value, 'user_id string, at long') AS message")
        .select("message.*")
    )
    query = run(WRITE, server, tmp_path, frame=frame)["query"]
    query.processAllAvailable()
    query.stop()
    with SyncClient(server.url) as client:
        for user in ("user-0", "user-1", "user-2"):
            stored = client.stream(f"users/{user}").read().read_json()
            assert stored == [each for each in EVENTS if each["user_id"] == user]


@pytest.mark.slow
def test_sink(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> None:
    rows = [("imported", '{"n":1}'), ("imported", '{"n":2}')]
    frame = spark.createDataFrame(rows, "stream_id string, value string").coalesce(1)
    block = SINK.replace(".save()", f".option('url', {server.url!r}).save()")
    for _ in range(2):
        run(block, server, tmp_path, frame=frame)
    with SyncClient(server.url) as client:
        assert client.stream("users/imported").read().read_json() == [{"n": 1}, {"n": 2}]


def test_job(
    spark: SparkSession,
    server: ServerProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    block = "from holdfast.spark.connection import SparkConnection\n" + JOB.replace(
        "spark, ", f"spark, server=SparkConnection({server.url!r}), "
    )
    run(block, server, tmp_path, spark=spark)
    assert capsys.readouterr().out.split()[0] == str(len(EVENTS))
