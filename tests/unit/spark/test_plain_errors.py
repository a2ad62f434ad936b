"""Errors of readers and writers as Spark's workers print them."""

import io
import os
import struct

import pytest
from pyspark.util import handle_worker_exception

from holdfast.errors import HoldfastError, SettingsError
from holdfast.spark.plain_errors import plain_errors
from holdfast.spark.reading.arrow import DEFAULT_COLUMNS, spark_schema
from holdfast.spark.source import HoldfastDataSource


@pytest.fixture
def worker(monkeypatch):
    """The environment of a worker of Spark."""
    monkeypatch.setattr(os, "environ", os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "x"})
    return monkeypatch


def printed(action):
    """What a worker sends to the JVM when the action fails."""
    try:
        action()
    except (KeyError, HoldfastError) as error:
        out = io.BytesIO()
        handle_worker_exception(error, out)
        return out.getvalue()[struct.calcsize("!ii") :].decode()
    raise AssertionError("nothing was raised")


@plain_errors
class Reader:
    def __init__(self, error):
        self.error = error

    def partitions(self):
        raise self.error

    def read(self):
        yield 1
        raise self.error


@pytest.mark.parametrize("method", ["partitions", "read"])
def test_only_errors_on_purpose_are_plain(worker, method):
    unexpected = Reader(KeyError("a fault of ours"))
    assert printed(lambda: list(getattr(unexpected, method)())).startswith("Traceback")
    expected = Reader(SettingsError("What to do."))
    assert printed(lambda: list(getattr(expected, method)())) == (
        "holdfast.errors.hierarchy.SettingsError: What to do.\n"
    )


def test_the_traceback_stays_for_debugging(worker):
    worker.setenv("HOLDFAST_DEBUG", "1")
    assert printed(Reader(SettingsError("What to do.")).partitions).startswith("Traceback")


def test_other_processes_keep_their_environment():
    with pytest.raises(SettingsError):
        Reader(SettingsError("What to do.")).partitions()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_a_stream_reader_that_cannot_be_made_says_why_when_it_is_asked():
    source = HoldfastDataSource({"bucket": "events", "maxrowspertrigger": "none"})
    reader = source.streamReader(spark_schema(DEFAULT_COLUMNS))
    with pytest.raises(HoldfastError, match="'maxRowsPerTrigger' is a number"):
        reader.initialOffset()
    with pytest.raises(HoldfastError, match="'maxRowsPerTrigger' is a number"):
        reader.latestOffset({}, None)
