"""A directory of Parquet files, with a commit log that adds each batch exactly once.

Rules:

- Executors write below `_holdfast/staging`, which readers ignore. The driver commits a batch by
  creating `_holdfast/commits/NUMBER.json`, which lists every file and its final path. That succeeds
  once for each number, so of two concurrent runs one is refused.
- A commit is then carried out: its files are moved into place, and replaced ones removed. A run
  that opens the table first carries out what is left of earlier commits. Twice does no harm.
- `_holdfast/latest.json` has the number of the last commit that was carried out. It may be behind;
  later commits are found by their numbers.
- Staged files of no commit are removed once their run has certainly ended.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.clock import SystemClock
from holdfast.errors import ObjectMissingError, StoreError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.layout import CONTROL, DATE, TableLayout
from holdfast.spark.archiving.place import TablePlace, busy
from holdfast.spark.archiving.table import (
    BEGINNING,
    STALE_MS,
    DataFile,
    ListedFile,
    TableBatch,
    TableState,
    check_there,
)

_STAGING: Final = f"{CONTROL}/staging/"
_COMMITS: Final = f"{CONTROL}/commits/"
_LATEST: Final = f"{CONTROL}/latest.json"
# Readers such as Spark take the schema of a directory from this file, if it exists.
_SCHEMA: Final = "_common_metadata"


class TableCommit(msgspec.Struct, frozen=True):
    """A file of the commit log."""

    number: int
    after: str
    until: str
    columns: dict[str, str]
    # From, to.
    moves: list[tuple[str, str]]
    removes: list[str] = []
    rows: int = 0
    # As in the state of the table.
    erased: str = ""


class _Latest(msgspec.Struct, frozen=True):
    number: int


@dataclass(frozen=True)
class ParquetTable:
    """Parquet files in directories such as `date=2031-05-17`."""

    widens: ClassVar[bool] = True
    place: TablePlace

    def open(self, *, alone: bool) -> TableState:
        number = self._latest()
        last = self._read_commit(number) if number else None
        left: list[TableCommit] = []
        while (following := self._read_commit(number + len(left) + 1)) is not None:
            left.append(following)
        for at, each in enumerate(left):
            # A later commit of another run may have removed a file of this one.
            gone = {name for later in left[at + 1 :] for name in later.removes}
            self._carry_out(each, gone)
            last = each
        self._remove_stale(number + len(left), alone=alone)
        if last is None:
            return TableState(BEGINNING, 0)
        return TableState(last.until, last.number, last.columns, last.erased)

    def begin(self, batch: TableBatch) -> tuple[str, str]:
        return _folder(batch), f"part-{batch.number:08d}"

    def discard(self, batch: TableBatch, files: Sequence[DataFile] = ()) -> None:
        self.place.remove_below(_folder(batch))

    def commit(self, batch: TableBatch, files: Sequence[DataFile], layout: TableLayout) -> None:
        check_there(self.place, files)
        self._write_schema(layout, batch)
        self._log_commit(batch, files, layout)

    def files(self, size_below: int | None = None) -> list[ListedFile]:
        return [
            ListedFile(each.name, _date_of(each.name), each.size_bytes)
            for each in self.place.objects.list()
            if each.name.endswith(".parquet")
            and not each.name.startswith(("_", "."))
            and (size_below is None or each.size_bytes < size_below)
        ]

    def files_with(self, stream_ids: Sequence[str]) -> list[ListedFile]:
        # Only the files themselves know.
        return self.files() if stream_ids else []

    def replace(
        self,
        batch: TableBatch,
        old: Sequence[ListedFile],
        new: Sequence[DataFile],
        layout: TableLayout,
        *,
        same_rows: bool,
    ) -> None:
        check_there(self.place, new)
        self._log_commit(batch, new, layout, [each.path for each in old])

    def _log_commit(
        self,
        batch: TableBatch,
        files: Sequence[DataFile],
        layout: TableLayout,
        removes: Sequence[str] = (),
    ) -> None:
        folder = _folder(batch)
        commit = TableCommit(
            batch.number,
            batch.after,
            batch.until,
            dict(layout.columns),
            [(each.path, each.path.removeprefix(folder)) for each in files],
            list(removes),
            sum(each.rows for each in files),
            batch.erased,
        )
        data = msgspec.json.format(msgspec.json.encode(commit))
        if not self.place.objects.create(_name(batch.number), data):
            self.discard(batch)
            raise busy(self.place.name)
        failpoint("archive.decided")
        self._carry_out(commit)
        self.discard(batch)

    def _carry_out(self, commit: TableCommit, gone: Container[str] = ()) -> None:
        """Move and remove the files of a commit; harmless if that was done before.

        While files are replaced, readers may see rows twice for a moment, but never miss one.
        """
        moves = [each for each in commit.moves if each[1] not in gone]
        self.place.move(moves[:1])
        failpoint("archive.moving")
        self.place.move(moves[1:])
        failpoint("archive.moved")
        for each in commit.removes:
            self.place.objects.remove(each)
            failpoint("archive.removing")
        self.place.objects.put(_LATEST, msgspec.json.encode(_Latest(commit.number)))

    def _latest(self) -> int:
        try:
            return msgspec.json.decode(self.place.objects.read(_LATEST), type=_Latest).number
        except ObjectMissingError:
            return 0
        except msgspec.MsgspecError as error:
            raise self._damaged(_LATEST, error) from None

    def _read_commit(self, number: int) -> TableCommit | None:
        name = _name(number)
        try:
            return msgspec.json.decode(self.place.objects.read(name), type=TableCommit)
        except ObjectMissingError:
            return None
        except msgspec.MsgspecError as error:
            raise self._damaged(name, error) from None

    def _damaged(self, name: str, error: Exception) -> StoreError:
        return StoreError(f"{name} of the table at {self.place.name} is damaged: {error}.")

    def _remove_stale(self, number: int, *, alone: bool) -> None:
        """Remove staged files of committed batches, and of runs that have ended."""
        if alone:
            self.place.remove_below(_STAGING)
            return
        before_ms = SystemClock().now_ms() - STALE_MS
        for each in list(self.place.objects.list(_STAGING)):
            of_batch = each.name.removeprefix(_STAGING).partition("-")[0]
            if int(of_batch) <= number or each.modified_ms < before_ms:
                self.place.objects.remove(each.name)

    def _write_schema(self, layout: TableLayout, batch: TableBatch) -> None:
        """Write the schema where Spark looks first, so that it sees all columns."""
        last = self._read_commit(batch.number - 1) if batch.number > 1 else None
        if last is None or last.columns != dict(layout.columns):
            sink = pa.BufferOutputStream()
            pq.write_metadata(layout.schema, sink, store_schema=False)
            self.place.objects.put(_SCHEMA, sink.getvalue().to_pybytes())


def _folder(batch: TableBatch) -> str:
    return f"{_STAGING}{batch.number:020d}-{batch.attempt}/"


def _name(number: int) -> str:
    return f"{_COMMITS}{number:020d}.json"


def _date_of(path: str) -> str:
    folder, slash, _ = path.partition("/")
    return folder.removeprefix(f"{DATE}=") if slash else ""
