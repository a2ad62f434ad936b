"""Other Sparks than that of tests/spark: Connect, a cluster that loses a worker, the oldest.

The rest of this folder is for `make test-spark`; these run in `make test-all` too.
"""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.spark.copying import Copy, Driver
from tests.spark.filled import TEXT, Filled
from tests.spark_matrix.checking import check, run
from tests.spark_matrix.conftest import ROWS
from tests.spark_matrix.standalone import ROOT, Standalone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# `make test-all` installs it.
OLDEST = ROOT / ".venv" / "spark-oldest"


def test_connect(copy: Copy) -> None:
    driver = run(replace(copy, remote="local[2]", rows_per_batch=200))
    assert f"rows {ROWS}" in driver.lines
    check(copy)


def test_a_worker_is_killed(copy: Copy, tmp_path: Path) -> None:
    """The query goes on with the other worker, and nothing is lost or doubled."""
    with Standalone(tmp_path) as cluster:
        conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
        with Driver(replace(copy, master=cluster.master, conf=conf)) as driver:
            driver.wait_for("written 1")
            cluster.kill_worker()
            driver.finish()
    batches = ROWS // copy.rows_per_batch
    assert f"written {batches - 1}" in driver.lines
    check(copy)


@pytest.fixture
def oldest() -> str:
    """Where the oldest PySpark is that pyproject.toml allows."""
    if not OLDEST.exists():
        said = "the oldest Spark was not tested: make test-all installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(said)
        pytest.skip(said)
    return str(OLDEST)


def test_the_oldest_is_the_declared_minimum() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = " ".join(project["optional-dependencies"]["spark"])
    declared = re.search(r"pyspark\[sql\]>=([\d.]+)", needs)
    pinned = re.search(r"pyspark==([\d.]+)", (ROOT / "requirements/spark-oldest.txt").read_text())
    assert declared is not None
    assert pinned is not None
    assert pinned[1] == f"{declared[1]}.0"


def test_the_oldest_spark(copy: Copy, source: Filled, oldest: str) -> None:
    """Discovery, batch read, filters, stream read, both ways to write, and a restart between."""
    copy = replace(copy, rows_per_batch=0, filtered="s00")
    for sink in (False, True):
        driver = run(replace(copy, sink=sink), PYTHONPATH=oldest)
        assert driver.lines[0] == "started 4.1.0"
        assert f"rows {len(source.rows)}" in driver.lines
        assert f"filtered {len(source.of('s00'))}" in driver.lines
        check(copy)
        source.append("s00", "after the first run;", content_type=TEXT)


def test_the_oldest_spark_has_no_limits(oldest: str) -> None:
    ask = """
from holdfast.spark.reading.arrow import DEFAULT_COLUMNS, spark_schema
from holdfast.spark.reading.readers import stream_reader
stream_reader({"bucket": "a", "maxRowsPerTrigger": "5"}, spark_schema(DEFAULT_COLUMNS))
"""
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "PYTHONPATH": oldest},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1].endswith(
        "SettingsError: The option 'maxRowsPerTrigger' needs PySpark 4.2 or later, and this is "
        "4.1.0: leave it out, and each micro-batch takes all that is new."
    )
