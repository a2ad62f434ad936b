"""Runs of the job `archive`, with Spark or without, and tables as others read them."""

import pickle
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from holdfast import failpoints
from holdfast.settings.options import build
from holdfast.spark.archiving.archive_run import archive
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs.archive import Archive, Archived
from holdfast.spark.jobs.progress import UNSEEN
from tests.server_process import ServerProcess
from tests.spark.filled import JSON, TEXT, Filled, Row, ordered

FORMATS = ("parquet", "delta", "iceberg")
BUCKETS = count()
# Nothing is merged by itself.
SETTINGS = {"merge_packs": 1000}


class Here:
    """Does tasks in this process, so that a test sees into them; what travels is pickled."""

    cores = 2

    def __init__(self, *, twice: bool = False) -> None:
        self._twice = twice

    def run(self, tasks, work, what):
        results = [sent(sent(work)(sent(task))) for task in tasks]
        # As Spark may do with any of them.
        return [sent(sent(work)(sent(task))) for task in tasks] if self._twice else results


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def job(filled: Filled, to: object, **options: Any) -> Archive:
    given = {
        "bucket": filled.bucket,
        "to": str(to),
        "server": SparkConnection(filled.url, retries=1),
    }
    return build(Archive, given | options)


def run(filled: Filled, to: object, executors: Here | None = None, **options: Any) -> Archived:
    """A run without Spark."""
    return archive(executors or Here(), job(filled, to, **options), UNSEEN)


def table_at(form: str, to: Any, **storage: Any) -> Any:
    """The table as pyarrow, deltalake or pyiceberg reads it."""
    match form:
        case "delta":
            return DeltaTable(str(to), **storage).to_pyarrow_table()
        case "iceberg":
            found = StaticTable.from_metadata(f"file://{to}").scan().to_arrow()
            return found.cast(
                pa.schema([each.with_type(small(each.type)) for each in found.schema])
            )
        case _:
            names = [str(each) for each in sorted(to.rglob("*.parquet")) if hidden(each, to)]
            schemas = [pq.read_schema(each) for each in names]
            schema = pa.unify_schemas(schemas, promote_options="permissive")
            if any("date=" in each for each in names):
                schema = schema.append(pa.field("date", pa.date32()))
            kept = {"partitioning": "hive", "partition_base_dir": str(to)}
            return ds.dataset(names, schema, **kept).to_table()


def hidden(path: Any, to: Any) -> bool:
    """Whether readers pass over it."""
    return not any(part.startswith(("_", ".")) for part in path.relative_to(to).parts)


def small(kind: Any) -> Any:
    return pa.string() if kind == pa.large_string() else kind


def rows(table: Any) -> list[Row]:
    """The rows of a table in which JSON messages are as they were, by stream and offset."""
    return ordered(
        Row(*(each[name] for name in Row._fields))
        for each in table.select(list(Row._fields)).to_pylist()
    )


class Killed(BaseException):
    """In place of a signal that nobody could catch."""


def killed_once(monkeypatch, name):
    """Have this process end at a failpoint, the first time that it is passed."""

    def hook(passed):
        if passed == name:
            monkeypatch.setattr(failpoints, "hook", None)
            raise Killed

    monkeypatch.setattr(failpoints, "hook", hook)


def new_bucket(server: ServerProcess) -> Filled:
    """A bucket that no test had before."""
    found = Filled(server.url, f"bucket-{next(BUCKETS)}")
    found.client.bucket(found.bucket).create()
    return found


def fill(filled, turn=0):
    """Some streams of every kind, in packs and not there yet."""
    for number in range(3):
        filled.append(f"bytes-{number}", *(b"%d of %d" % (each, turn) for each in range(4)))
        filled.append(f"json-{number}", {"n": number, "s": f"ä{turn}"}, [1], content_type=JSON)
    filled.flush()
    filled.append("bytes-0", b"not in a pack in turn %d" % turn)
    filled.append(f"late-{turn}", "short", content_type=TEXT)
