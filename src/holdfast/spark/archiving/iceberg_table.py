"""An Iceberg table: executors write files into it, and a snapshot lists them.

The table's position is one of its properties, set in the same commit as the snapshot. A commit
requires that nothing was committed since the table was read. PyIceberg's own retries are switched
off, since they would append what another run has appended; a commit is retried here, and only if
the cursor is still the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Final

import msgspec
import pyiceberg.expressions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.transforms import DayTransform
from pyiceberg.utils.concurrent import ExecutorFactory

from holdfast.errors import HoldfastError, SettingsError, StoreError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.layout import CONTROL, DATE, TableLayout
from holdfast.spark.archiving.place import busy
from holdfast.spark.archiving.table import (
    BEGINNING,
    DataFile,
    ListedFile,
    MarkedTable,
    TableBatch,
    TableState,
    check_there,
)

_UNTIL: Final = "holdfast.until"
_NUMBER: Final = "holdfast.number"
_ERASED: Final = "holdfast.erased"
_COLUMNS: Final = "holdfast.columns"
_NAMESPACE: Final = "holdfast"
_RETRIES: Final = "commit.retry.num-retries"
_ATTEMPTS: Final = 5
# Their constructors take other arguments than their types say.
_EXPRESSIONS: Any = pyiceberg.expressions


@dataclass(frozen=True)
class IcebergTable(MarkedTable):
    """A table in the user's catalog, or in one that is stored with the table."""

    folder: ClassVar[str] = "data/"
    widens: ClassVar[bool] = True
    by_date: bool
    bucket: str
    # The user's catalog: its name and properties, and the table's name in it.
    catalog: str = ""
    catalog_options: Mapping[str, str] = field(default_factory=dict)
    table: str = ""

    def open(self, *, alone: bool) -> TableState:
        table = self._table()
        self._remove_stale(lambda: self._paths(table) if table else set(), alone=alone)
        if table is None:
            return TableState()
        known = table.properties
        return TableState(
            known.get(_UNTIL, BEGINNING),
            int(known.get(_NUMBER, "0")),
            msgspec.json.decode(known.get(_COLUMNS, "{}")),
            known.get(_ERASED, ""),
        )

    def commit(self, batch: TableBatch, files: Sequence[DataFile], layout: TableLayout) -> None:
        check_there(self.place, files)
        about = {"holdfast.after": batch.after, _UNTIL: batch.until}
        paths = [f"{self.place.url}/{each.path}" for each in files]

        def add(transaction: Any) -> None:
            with transaction.update_schema() as update:
                update.union_by_name(layout.schema)
            transaction.set_properties(_properties(batch, layout))
            transaction.add_files(paths, snapshot_properties=about, check_duplicate_files=False)

        self._commit(batch, add, layout)
        self._unmark(batch)

    def files(self, size_below: int | None = None) -> list[ListedFile]:
        found = self._files(_EXPRESSIONS.AlwaysTrue())
        if size_below is None:
            return found
        return [each for each in found if each.size_bytes < size_below]

    def files_with(self, stream_ids: Sequence[str]) -> list[ListedFile]:
        if not stream_ids:
            return []
        # PyIceberg looks at up to 200 values, and otherwise at the files' least and greatest ids.
        is_one = _EXPRESSIONS.In("stream_id", stream_ids)
        from_first = _EXPRESSIONS.GreaterThanOrEqual("stream_id", stream_ids[0])
        to_last = _EXPRESSIONS.LessThanOrEqual("stream_id", stream_ids[-1])
        return self._files(_EXPRESSIONS.And(is_one, from_first, to_last))

    def _files(self, wanted: Any) -> list[ListedFile]:
        table = self._table()
        if table is None:
            return []
        return [
            ListedFile(path, _date_of(path), each.file.file_size_in_bytes)
            for each in table.scan(wanted).plan_files()
            if (path := self._relative(each.file.file_path))
        ]

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
        gone = {each.path for each in old}
        paths = [f"{self.place.url}/{each.path}" for each in new]

        def swap(transaction: Any) -> None:
            transaction.set_properties(_properties(batch, layout))
            if not old:
                return
            table = transaction._table
            describe = partial(parquet_file_to_data_file, table.io, transaction.table_metadata)
            with transaction.update_snapshot().overwrite() as update:
                for task in table.scan().plan_files():
                    if self._relative(task.file.file_path) in gone:
                        update.delete_data_file(task.file)
                for each in ExecutorFactory.get_or_create().map(describe, paths):
                    update.append_data_file(each)

        self._commit(batch, swap, layout)
        self._unmark(batch)

    def _commit(
        self, batch: TableBatch, change: Callable[[Any], None], layout: TableLayout
    ) -> None:
        for left in range(_ATTEMPTS, 0, -1):
            try:
                transaction = self._begun(batch, layout)
                change(transaction)
                failpoint("archive.ready")
                committed = transaction.commit_transaction()
            except TableAlreadyExistsError:
                raise busy(self.place.name) from None
            except CommitFailedException:
                # Another run, or maintenance of the table: the next attempt checks the cursor.
                if left == 1:
                    raise busy(self.place.name) from None
            except (HoldfastError, OSError):
                raise
            except Exception as error:
                raise self._failed(error) from error
            else:
                self._hint(committed)
                return

    def _begun(self, batch: TableBatch, layout: TableLayout) -> Any:
        """A transaction on the table, if it is still where the batch starts."""
        table = self._table()
        if table is None:
            return self._created(layout)
        if table.properties.get(_UNTIL, BEGINNING) != batch.after:
            raise busy(self.place.name)
        return _once(table).transaction()

    def _created(self, layout: TableLayout) -> Any:
        """A transaction that creates the table."""
        catalog = self._catalog
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(self._identifier[:-1])
        properties = {
            f"write.metadata.metrics.column.{name}": "none" for name in layout.large_columns
        }
        transaction = catalog.create_table_transaction(
            self._identifier, layout.schema, location=self.place.url, properties=properties
        )
        if self.by_date:
            with transaction.update_spec() as spec:
                spec.add_field(layout.time_column, DayTransform(), DATE)
        return transaction

    def _table(self) -> Any:
        try:
            return self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except HoldfastError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    @cached_property
    def _catalog(self) -> Catalog:
        # It logs a line for every column without statistics, some of which have none on purpose.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        options = self.place.s3_options(
            *("s3.endpoint", "s3.region"),
            *("s3.access-key-id", "s3.secret-access-key", "s3.session-token"),
        )
        options |= self.catalog_options
        if not self.catalog and not self.catalog_options:
            if self.place.directory is None:
                raise SettingsError(
                    "'catalog': an Iceberg table in a bucket needs a catalog; name one, give the "
                    "URL of a REST catalog as 'catalog_uri', or properties as 'catalog_options'."
                )
            path = self.place.directory / CONTROL / "catalog.db"
            path.parent.mkdir(parents=True, exist_ok=True)
            options |= {"type": "sql", "uri": f"sqlite:///{path}", "warehouse": self.place.url}
        try:
            return load_catalog(self.catalog or _NAMESPACE, **options)
        except Exception as error:
            raise SettingsError(f"'catalog': {_first_line(error)}") from error

    @property
    def _identifier(self) -> tuple[str, ...]:
        return tuple(self.table.split(".")) if self.table else (_NAMESPACE, self.bucket)

    def _paths(self, table: Any) -> set[str]:
        """The files of all snapshots."""
        found: list[str] = table.inspect.all_files()["file_path"].to_pylist()
        return {self._relative(each) for each in found}

    def _relative(self, path: str) -> str:
        """The name relative to the place; empty for files elsewhere."""
        root = f"{self.place.url}/"
        return path.removeprefix(root) if path.startswith(root) else ""

    def _hint(self, table: Any) -> None:
        """Record the latest metadata file, for readers without a catalog."""
        folder, _, name = self._relative(table.metadata_location).rpartition("/")
        if folder == "metadata":
            version = name.removesuffix(".metadata.json")
            self.place.objects.put("metadata/version-hint.text", version.encode())

    def _failed(self, error: Exception) -> StoreError:
        return StoreError(f"The Iceberg table at {self.place.name} fails: {_first_line(error)}")


def _properties(batch: TableBatch, layout: TableLayout) -> dict[str, str]:
    """The state of the table after a batch."""
    found = {
        _UNTIL: batch.until,
        _NUMBER: str(batch.number),
        _COLUMNS: msgspec.json.encode(dict(layout.columns)).decode(),
    }
    return {**found, _ERASED: batch.erased} if batch.erased else found


def _once(table: Any) -> Any:
    """The table, with PyIceberg's retries of commits switched off."""
    properties = {**table.metadata.properties, _RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _date_of(path: str) -> str:
    return next((part[5:] for part in path.split("/") if part.startswith(f"{DATE}=")), "")
