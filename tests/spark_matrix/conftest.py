"""The whole matrix: `make test-spark`. It takes many minutes; `make test-all` runs a part of it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.spark.session import check_java
from tests.client.restarting import RestartingServer
from tests.spark.copying import Copy
from tests.spark.filled import TEXT, Filled
from tests.spark_matrix.standalone import Standalone

if os.environ.get("SPARK_MATRIX") != "1":
    collect_ignore = ["test_exactly_once.py", "test_jobs_killed.py"]

ROWS = 600
STREAMS = 11


@pytest.fixture(scope="session", autouse=True)
def java() -> str:
    """The Java that Spark runs on."""
    try:
        return check_java()
    except SettingsError as error:
        pytest.fail(error.message, pytrace=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestartingServer]:
    """A server that comes back on its port."""
    with RestartingServer(tmp_path / "data", flush_age=3600) as process:
        yield process


@pytest.fixture
def source(server: RestartingServer) -> Filled:
    """A bucket of which half is in packs."""
    bucket = Filled(server.url, "source")
    for number in range(ROWS):
        bucket.append(f"s{number % STREAMS:02d}", f"message {number};", content_type=TEXT)
        if number == ROWS // 2:
            bucket.flush()
    return bucket


@pytest.fixture
def copy(server: RestartingServer, source: Filled, tmp_path: Path) -> Copy:
    return Copy(server.url, "source", "target", str(tmp_path / "checkpoint"), rows_per_batch=60)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A cluster with a master and two workers."""
    with Standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster
