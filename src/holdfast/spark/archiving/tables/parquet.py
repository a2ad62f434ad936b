"""A directory of Parquet files, made exactly once by a log of decisions.

Rules:

- Executors write below `_holdfast/staging`, which readers pass over. The driver decides on a batch
  by creating `_holdfast/commits/NUMBER.json`, which names every file and where it goes. That
  succeeds once for each number, so of two runs one is refused.
- What was decided is then done: files are moved into place, and others removed. Whoever opens the
  table next does what is left, and only then looks for more. Both can be done twice.
- `_holdfast/latest.json` says up to which number everything is done. It may be behind; decisions
  that follow it are found by their numbers.
- What is staged and was not decided on is removed once its run has ended for sure.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.clock import SystemClock
from holdfast.errors import ObjectMissingError, StoreError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.layout import Layout
from holdfast.spark.archiving.names import CONTROL, DATE
from holdfast.spark.archiving.places import Place, busy
from holdfast.spark.archiving.state import BEGINNING, Batch, DataFile, State
from holdfast.spark.archiving.tables.table import STALE_MS, SmallFile, check_there

_STAGING: Final = f"{CONTROL}/staging/"
_COMMITS: Final = f"{CONTROL}/commits/"
_LATEST: Final = f"{CONTROL}/latest.json"
# Readers such as Spark take the schema of a directory from here, if it is there.
_SCHEMA: Final = "_common_metadata"


class Decision(msgspec.Struct, frozen=True):
    """What a commit does."""

    number: int
    after: str
    until: str
    columns: dict[str, str]
    # From, to.
    moves: list[tuple[str, str]]
    removes: list[str] = []
    rows: int = 0


class _Latest(msgspec.Struct, frozen=True):
    number: int


@dataclass(frozen=True)
class ParquetTable:
    """Parquet files below a place, in directories such as `date=2031-05-17`."""

    place: Place

    def open(self, *, alone: bool) -> State:
        """Do what was decided, remove what was not."""
        number = self._latest()
        last = self._decision(number) if number else None
        left: list[Decision] = []
        while (following := self._decision(number + len(left) + 1)) is not None:
            left.append(following)
        for at, each in enumerate(left):
            # Where another run was faster, a file may have come and gone since.
            gone = {name for later in left[at + 1 :] for name in later.removes}
            self._do(each, gone)
            last = each
        self._remove_stale(number + len(left), alone=alone)
        if last is None:
            return State(BEGINNING, 0)
        return State(last.until, last.number, last.columns)

    def begin(self, batch: Batch) -> tuple[str, str]:
        """A folder of its own."""
        return _folder(batch), f"part-{batch.number:08d}"

    def discard(self, batch: Batch) -> None:
        """Remove the folder."""
        self.place.remove_below(_folder(batch))

    def commit(self, batch: Batch, files: Sequence[DataFile], layout: Layout) -> None:
        """Decide, then move."""
        check_there(self.place, files)
        self._write_schema(layout, batch)
        self._decide(batch, files, layout)

    def small_files(self, size_bytes: int) -> list[SmallFile]:
        """The smaller ones of all files that are in place."""
        return [
            SmallFile(each.name, _date_of(each.name), each.size_bytes)
            for each in self.place.objects.list()
            if each.name.endswith(".parquet")
            and not each.name.startswith(("_", "."))
            and each.size_bytes < size_bytes
        ]

    def replace(
        self, batch: Batch, old: Sequence[SmallFile], new: Sequence[DataFile], layout: Layout
    ) -> None:
        """Decide on moving new files in and removing old ones."""
        check_there(self.place, new)
        self._decide(batch, new, layout, [each.path for each in old])

    def _decide(
        self,
        batch: Batch,
        files: Sequence[DataFile],
        layout: Layout,
        removes: Sequence[str] = (),
    ) -> None:
        folder = _folder(batch)
        decision = Decision(
            batch.number,
            batch.after,
            batch.until,
            dict(layout.columns),
            [(each.path, each.path.removeprefix(folder)) for each in files],
            list(removes),
            sum(each.rows for each in files),
        )
        data = msgspec.json.format(msgspec.json.encode(decision))
        if not self.place.objects.create(_name(batch.number), data):
            self.discard(batch)
            raise busy(self.place.name)
        failpoint("archive.decided")
        self._do(decision)
        self.discard(batch)

    def _do(self, decision: Decision, gone: Container[str] = ()) -> None:
        """Move and remove what a decision says; harmless if that was done.

        Readers may see rows twice for a moment while files are replaced, but never miss one.
        """
        moves = [each for each in decision.moves if each[1] not in gone]
        self.place.move(moves[:1])
        failpoint("archive.moving")
        self.place.move(moves[1:])
        failpoint("archive.moved")
        for each in decision.removes:
            self.place.objects.remove(each)
            failpoint("archive.removing")
        self.place.objects.put(_LATEST, msgspec.json.encode(_Latest(decision.number)))

    def _latest(self) -> int:
        try:
            return msgspec.json.decode(self.place.objects.read(_LATEST), type=_Latest).number
        except ObjectMissingError:
            return 0
        except msgspec.MsgspecError as error:
            raise self._damaged(_LATEST, error) from None

    def _decision(self, number: int) -> Decision | None:
        name = _name(number)
        try:
            return msgspec.json.decode(self.place.objects.read(name), type=Decision)
        except ObjectMissingError:
            return None
        except msgspec.MsgspecError as error:
            raise self._damaged(name, error) from None

    def _damaged(self, name: str, error: Exception) -> StoreError:
        return StoreError(f"{name} of the table at {self.place.name} is damaged: {error}.")

    def _remove_stale(self, number: int, *, alone: bool) -> None:
        """Remove what is staged for batches that are done, and what a run that has ended left."""
        if alone:
            self.place.remove_below(_STAGING)
            return
        before_ms = SystemClock().now_ms() - STALE_MS
        for each in list(self.place.objects.list(_STAGING)):
            of_batch = each.name.removeprefix(_STAGING).partition("-")[0]
            if int(of_batch) <= number or each.modified_ms < before_ms:
                self.place.objects.remove(each.name)

    def _write_schema(self, layout: Layout, batch: Batch) -> None:
        """Keep the schema where Spark looks first, so that all columns are seen."""
        last = self._decision(batch.number - 1) if batch.number > 1 else None
        if last is None or last.columns != dict(layout.columns):
            sink = pa.BufferOutputStream()
            pq.write_metadata(layout.schema, sink, store_schema=False)
            self.place.objects.put(_SCHEMA, sink.getvalue().to_pybytes())


def _folder(batch: Batch) -> str:
    return f"{_STAGING}{batch.number:020d}-{batch.attempt}/"


def _name(number: int) -> str:
    return f"{_COMMITS}{number:020d}.json"


def _date_of(path: str) -> str:
    folder, slash, _ = path.partition("/")
    return folder.removeprefix(f"{DATE}=") if slash else ""
