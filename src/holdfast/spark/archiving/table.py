"""Archived tables, whatever their format: each takes every batch once, and knows its position.

`parquet_table`, `delta_table` and `iceberg_table` implement the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import ObjectMissingError, SettingsError, StoreError
from holdfast.spark.archiving.layout import CONTROL, TableLayout
from holdfast.spark.archiving.place import TablePlace, busy

if TYPE_CHECKING:
    from holdfast.spark.jobs.options import TableOptions

# The position of an empty table.
BEGINNING: Final = ""
_IDENTITY: Final = f"{CONTROL}/table.json"
_MARKS: Final = f"{CONTROL}/attempts/"
# Where runs cannot lock each other out, files of another run are left alone for a day.
STALE_MS: Final = 86_400_000


class TableIdentity(msgspec.Struct, frozen=True):
    """What a table is an archive of, and how it was made. Stored with it, and never changed."""

    format: str
    bucket: str
    # The id of the server's store, since addresses change.
    store_id: str
    # Which streams: a list, a pattern, or neither.
    streams: list[str]
    stream_pattern: str
    json_as: str
    partition_by: str
    # The end of the bucket when the table was begun: what was deleted by then is no loss.
    begun_at: str = ""
    holds: str = "messages"

    def check(self, wanted: TableIdentity, place: str) -> None:
        """Raise unless a job with this identity may continue the table."""
        if self.holds != wanted.holds:
            raise SettingsError(
                f"'to': the table at {place} holds {self.holds}, not {wanted.holds}."
            )
        if self.format != wanted.format:
            raise SettingsError(
                f"'format': the table at {place} has the format {self.format}, not {wanted.format}."
            )
        if self.bucket != wanted.bucket:
            raise SettingsError(
                f"'to': the table at {place} is the archive of the bucket {self.bucket!r}, "
                f"not of {wanted.bucket!r}."
            )
        if self.store_id != wanted.store_id:
            raise SettingsError(
                f"'to': the table at {place} is the archive of another server's bucket "
                f"{self.bucket!r} (its store has the id {self.store_id!r}, not "
                f"{wanted.store_id!r})."
            )
        for name in ("streams", "stream_pattern", "json_as", "partition_by"):
            before, now = getattr(self, name), getattr(wanted, name)
            if before != now:
                raise SettingsError(
                    f"{name!r}: the table at {place} was made with {before!r}, which cannot become "
                    f"{now!r}; archive to another place."
                )


class TableState(msgspec.Struct, frozen=True):
    """The position of a table."""

    # The bucket's cursor up to which it has everything.
    until: str = BEGINNING
    # The number of commits.
    number: int = 0
    columns: dict[str, str] = {}
    # The cursor up to which deletions of streams are applied; empty if they never were.
    erased: str = ""


class DataFile(msgspec.Struct, frozen=True):
    """A file that an executor wrote; `path` is relative to the table's place."""

    path: str
    # Empty if the table is not partitioned.
    date: str
    rows: int
    size_bytes: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    first_stream_id: str
    last_stream_id: str


class TableBatch(msgspec.Struct, frozen=True):
    """The part (after, until] of the bucket, to be committed to the table."""

    number: int
    after: str
    until: str
    # Distinguishes this attempt from others at the same batch.
    attempt: str
    # As in the state of the table.
    erased: str = ""


@dataclass(frozen=True)
class ListedFile:
    """A file of a table, which can be replaced."""

    path: str
    date: str
    size_bytes: int


class ArchiveTable(Protocol):
    """A table. Batches are begun one at a time, and then committed or discarded."""

    # Whether a column of int can become one of long.
    widens: ClassVar[bool]

    def open(self, *, alone: bool) -> TableState:
        """Complete or undo what an earlier run left, and return the position.

        `alone` says that no other run can be active.
        """

    def begin(self, batch: TableBatch) -> tuple[str, str]:
        """Prepare a batch: the folder of its files, and the prefix of their names."""

    def discard(self, batch: TableBatch, files: Sequence[DataFile] = ()) -> None:
        """Drop a batch whose tasks have ended, and the files they wrote."""

    def commit(self, batch: TableBatch, files: Sequence[DataFile], layout: TableLayout) -> None:
        """Add a batch to the table; raises ConflictError if another run was faster."""

    def files(self, size_below: int | None = None) -> list[ListedFile]:
        """All files, or those smaller than this."""

    def files_with(self, stream_ids: Sequence[str]) -> list[ListedFile]:
        """The files that may have rows of these streams; the ids are sorted."""

    def replace(
        self,
        batch: TableBatch,
        old: Sequence[ListedFile],
        new: Sequence[DataFile],
        layout: TableLayout,
        *,
        same_rows: bool,
    ) -> None:
        """Replace files by others with the same rows, or with fewer of them."""


@dataclass(frozen=True)
class MarkedTable:
    """A table whose commits list its files, which are written directly into their final folder.

    Files of a killed run are invisible, since no commit lists them. To find them, each attempt
    leaves a mark before its first file, and removes it at its end. Only what a killed run left has
    to be looked for in the whole table.
    """

    folder: ClassVar[str] = ""
    place: TablePlace

    def begin(self, batch: TableBatch) -> tuple[str, str]:
        self.place.objects.put(f"{_MARKS}{batch.attempt}", b"")
        return self.folder, batch.attempt

    def discard(self, batch: TableBatch, files: Sequence[DataFile] = ()) -> None:
        for each in files:
            self.place.objects.remove(each.path)
        self._unmark(batch)

    def _unmark(self, batch: TableBatch) -> None:
        self.place.objects.remove(f"{_MARKS}{batch.attempt}")

    def _remove_stale(self, listed: Callable[[], Container[str]], *, alone: bool) -> None:
        """Remove what attempts that have ended left behind, unless the table lists it."""
        objects = self.place.objects
        before_ms = SystemClock().now_ms() - STALE_MS
        marks = [
            each.name for each in objects.list(_MARKS) if alone or each.modified_ms < before_ms
        ]
        if not marks:
            return
        attempts, kept = {each.removeprefix(_MARKS) for each in marks}, listed()
        for each in list(objects.list(self.folder)):
            # Names of files start with the attempt.
            attempt = each.name.rpartition("/")[2].partition("-")[0]
            if attempt in attempts and each.name not in kept:
                objects.remove(each.name)
        for name in marks:
            objects.remove(name)


def table_at(place: TablePlace, options: TableOptions, name: str, *, by_date: bool) -> ArchiveTable:
    """The table at a place; `name` is its default name in a catalog."""
    match options.format:
        case "delta":
            from holdfast.spark.archiving.delta_table import DeltaLakeTable  # noqa: PLC0415

            return DeltaLakeTable(place, by_date)
        case "iceberg":
            from holdfast.spark.archiving.iceberg_table import IcebergTable  # noqa: PLC0415

            return IcebergTable(
                place,
                by_date,
                name,
                options.catalog,
                options.catalog_properties(),
                options.catalog_table,
            )
        case _:
            from holdfast.spark.archiving.parquet_table import ParquetTable  # noqa: PLC0415

            return ParquetTable(place)


def new_batch(state: TableState, until: str) -> TableBatch:
    """The next batch of a table."""
    attempt = f"{SystemClock().random_u64():016x}"
    return TableBatch(state.number + 1, state.until, until, attempt, state.erased)


def claim(place: TablePlace, wanted: TableIdentity) -> TableIdentity:
    """Create the table at a place, or check that it is this one."""
    found = read_identity(place)
    if found is None:
        other = next((each.name for each in place.objects.list() if _counts(each.name)), None)
        if other is not None:
            raise SettingsError(
                f"'to': {place.name} is not a table of this job, and is not empty "
                f"(it has {other!r})."
            )
        if place.objects.create(_IDENTITY, msgspec.json.format(msgspec.json.encode(wanted))):
            return wanted
        found = read_identity(place)
        if found is None:
            raise busy(place.name)
    found.check(wanted, place.name)
    return found


def read_identity(place: TablePlace) -> TableIdentity | None:
    """The identity of the table at a place, or None."""
    try:
        return msgspec.json.decode(place.objects.read(_IDENTITY), type=TableIdentity)
    except ObjectMissingError:
        return None
    except msgspec.MsgspecError as error:
        raise StoreError(f"{_IDENTITY} of the table at {place.name} is damaged: {error}.") from None


def check_there(place: TablePlace, files: Sequence[DataFile]) -> None:
    """Raise if the driver does not see files of executors: a table must not list those.

    Files in a bucket need no check, since all its clients see the same.
    """
    for each in files if place.directory is not None else ():
        if not place.has(each.path, each.size_bytes):
            raise StoreError(
                f"'to': an executor wrote {each.path} below {place.name}, but the driver does not "
                "see it; the place must be shared by the driver and all executors."
            )


def _counts(name: str) -> bool:
    """Whether a place with this file is not empty."""
    return name != f"{CONTROL}/lock" and not name.rpartition("/")[2].startswith(".")
