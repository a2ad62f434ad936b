"""Tables without a server: files of made-up messages, and what readers see of them."""

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from holdfast.spark.archiving.delta_table import DeltaLakeTable
from holdfast.spark.archiving.files import FileOutput, TableFiles, by_day
from holdfast.spark.archiving.iceberg_table import IcebergTable
from holdfast.spark.archiving.layout import TableLayout, TableRows
from holdfast.spark.archiving.parquet_table import ParquetTable
from holdfast.spark.archiving.place import TablePlace
from holdfast.spark.archiving.table import TableState, new_batch
from holdfast.spark.reading.arrow import Chunk, StreamName

FORMATS = ("parquet", "delta", "iceberg")
DAY_MS = 86_400_000
NOON_MS = 1_936_958_400_000  # 2031-05-19T00:00:00Z
LAYOUT = TableLayout()


def place_at(path, env=None):
    return TablePlace.of(str(path), "", "", env or {})


def table_of(form, place, **options):
    match form:
        case "delta":
            return DeltaLakeTable(place, True)
        case "iceberg":
            return IcebergTable(place, True, "events", **options)
        case _:
            return ParquetTable(place)


def chunk_of(numbers, stream="s", days=2):
    """A message for each number: its text, at a time that the number gives."""
    count = len(numbers)
    offsets = np.array(numbers, dtype=np.int64)
    return Chunk(
        [StreamName(stream, "text/plain")],
        np.zeros(count, dtype=np.int32),
        offsets,
        offsets + 1,
        NOON_MS + (offsets % days) * DAY_MS,
        pa.array([str(each).encode() for each in numbers], pa.binary()),
    )


def output_at(place, folder="", stem="x", layout=LAYOUT, file_bytes=1 << 20):
    return FileOutput(place, folder, stem, layout, True, "zstd", file_bytes)


def written(table, batch, numbers, layout=LAYOUT):
    """What executors would return for a batch of these messages."""
    folder, stem = table.begin(batch)
    rows = TableRows(layout, "events")
    with TableFiles(output_at(table.place, folder, stem, layout), 0) as files:
        for day, chunk in by_day(chunk_of(numbers)):
            files.write(day, rows.batch(chunk))
    return files.written


def add(table, state, numbers, layout=LAYOUT):
    """Commit a batch of messages whose numbers follow the cursor; the state then."""
    until = f"{numbers[-1]:020d}"
    batch = new_batch(state, until)
    table.commit(batch, written(table, batch, numbers, layout), layout)
    return TableState(until, batch.number, dict(layout.columns))


def seen(form, path):
    """The numbers that readers of a table see."""
    match form:
        case "delta":
            found = DeltaTable(str(path)).to_pyarrow_table()
        case "iceberg":
            found = StaticTable.from_metadata(path.as_uri()).scan().to_arrow()
        case _:
            found = ds.dataset(str(path), partitioning="hive").to_table()
    return sorted(int(each) for each in found["payload"].to_pylist())


def leftovers(form, path):
    """TableFiles that are there, and which the table does not need."""
    files = {
        str(each.relative_to(path))
        for each in path.rglob("*.parquet")
        if "_delta_log" not in each.parts
    }
    match form:
        case "delta":
            uris = pa.table(DeltaTable(str(path)).get_add_actions())
            return files - set(uris["path"].to_pylist())
        case "iceberg":
            table = StaticTable.from_metadata(path.as_uri())
            root = f"{path.as_uri()}/"
            return files - {
                each.removeprefix(root)
                for each in table.inspect.all_files()["file_path"].to_pylist()
            }
        case _:
            return {each for each in files if each.startswith("_")}
