"""examples/airflow, with stand-ins for what it uses of Airflow, which is too large to install."""

import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.errors import SettingsError
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs.archive import Archive
from holdfast.spark.jobs.recording import recorded
from tests.server_process import ServerProcess
from tests.spark.filled import Filled

FOLDER = Path(__file__).parents[2] / "examples" / "airflow"


class SkipError(Exception):
    """Stands for AirflowSkipException."""


class FailError(Exception):
    """Stands for AirflowFailException."""


class Operator:
    """Stands for BaseOperator."""

    def __init__(self, *, task_id: str) -> None:
        self.task_id = task_id
        self.log = logging.getLogger(task_id)

    def __rshift__(self, other: Any) -> Any:
        return other


@contextmanager
def a_dag(**options: Any) -> Any:
    assert options["dag_id"]
    yield


@pytest.fixture
def dag(monkeypatch):
    """The names that the file of the DAG defines."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = {"sdk": {"BaseOperator": Operator, "DAG": a_dag}}
    names["exceptions"] = {"AirflowSkipException": SkipError, "AirflowFailException": FailError}
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    for name, members in names.items():
        module = ModuleType(f"airflow.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "holdfast_operator", raising=False)
    found: dict[str, Any] = {}
    exec((FOLDER / "holdfast_dag.py").read_text(), found)
    import holdfast_operator

    monkeypatch.setattr(holdfast_operator, "close_session", lambda _: None)
    return found


def test_options_are_checked_when_the_dag_is_parsed(dag):
    names = ("archive", "snapshot", "audit")
    assert tuple(dag[each].job for each in names) == names
    with pytest.raises(SettingsError, match="unknown option 'buckte'"):
        dag["HoldfastOperator"](task_id="x", job="archive", options={"buckte": "events", "to": "x"})


@pytest.mark.slow
def test_the_operator(spark, dag, tmp_path, monkeypatch):
    with ServerProcess(tmp_path / "server") as server:
        monkeypatch.setenv("HOLDFAST_URL", server.url)
        bucket = Filled(server.url)
        bucket.append("a", b"1", b"2")
        options = {"bucket": bucket.bucket, "to": str(tmp_path / "lake")}
        operator = dag["HoldfastOperator"](task_id="x", job="archive", options=options)
        assert operator.execute({})["rows"] == 2
        job = Archive(**options, server=SparkConnection(server.url))

        def meanwhile() -> Any:
            with pytest.raises(SkipError, match="Another run of archive-events-"):
                operator.execute({})
            raise FailError

        with pytest.raises(FailError):
            recorded(job, meanwhile)
