"""One Spark session for all tests here, which run in one process (see tests/conftest.py)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import SettingsError
from holdfast.spark.session import check_java, open_session
from tests.moto_server import SECRET, MotoServer

ROOT = Path(__file__).parents[2]
EXECUTORS_KEY_ID = "key-in-the-environment-of-executors"
# Quick to start and to collect; an archive of its classes would save 3 s and cost 160 MB.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session", autouse=True)
def java() -> str:
    """The Java that Spark runs on; without one there are no Spark tests."""
    try:
        return check_java()
    except SettingsError as error:
        said = f"no Spark test ran. {error.message}"
        if os.environ.get("CI") == "true":
            pytest.fail(said, pytrace=False)
        pytest.skip(said)


@pytest.fixture(scope="session")
def spark(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, in which a task may fail three times."""
    with pytest.MonkeyPatch.context() as patch:
        # Workers inherit the environment of the JVM, which is this one.
        patch.setenv("AWS_ACCESS_KEY_ID", EXECUTORS_KEY_ID)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        session = open_session(
            "local[2,4]",
            "tests",
            {
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
                "spark.driver.extraJavaOptions": JAVA_OPTIONS,
                # What a test defines, a worker imports.
                "spark.executorEnv.PYTHONPATH": str(ROOT),
            },
        )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    """An S3 server."""
    with MotoServer() as found:
        yield found
