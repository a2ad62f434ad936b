"""Copies of a bucket, run to their end, and compared with what they should be."""

from tests.spark.copying import Copy, Driver, expected
from tests.spark.reading_back import messages
from tests.spark_matrix.conftest import ROWS


def check(copy: Copy) -> None:
    """Nothing is lost, nothing doubled, all in order."""
    found = messages(copy.url, copy.target)
    assert found == expected(copy.url, copy.source)
    assert sum(map(len, found.values())) >= ROWS


def run(copy: Copy, **env: str) -> Driver:
    with Driver(copy, **env) as driver:
        driver.finish()
    return driver
