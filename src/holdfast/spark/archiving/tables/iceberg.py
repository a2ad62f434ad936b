"""An Iceberg table: files are written where they belong, and a snapshot names them.

How far the table is, is one of its properties, set in the same commit as the snapshot. The commit
requires that nobody else has committed since the table was read. PyIceberg would then try again by
itself, and so append what another run has appended; that is switched off, and tried again here if
the cursor is still the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import msgspec
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.transforms import DayTransform

from holdfast.errors import HoldfastError, SettingsError, StoreError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.layout import Layout
from holdfast.spark.archiving.names import CONTROL, DATE
from holdfast.spark.archiving.places import Place, busy
from holdfast.spark.archiving.state import BEGINNING, Batch, DataFile, State
from holdfast.spark.archiving.tables import attempts
from holdfast.spark.archiving.tables.table import SmallFile, check_there

_UNTIL: Final = "holdfast.until"
_NUMBER: Final = "holdfast.number"
_COLUMNS: Final = "holdfast.columns"
_DATA: Final = "data/"
_NAMESPACE: Final = "holdfast"
_RETRIES: Final = "commit.retry.num-retries"
_ATTEMPTS: Final = 5


@dataclass(frozen=True)
class Iceberg:
    """An Iceberg table at a place, in a catalog: the user's, or one beside the table."""

    place: Place
    by_date: bool
    bucket: str
    # What the user says: the catalog's name and properties, and the table's name there.
    catalog: str = ""
    catalog_options: Mapping[str, str] = field(default_factory=dict)
    table: str = ""

    def open(self, *, alone: bool) -> State:
        """How far the table is."""
        table = self._table()
        attempts.remove_stale(
            self.place, _DATA, lambda: self._paths(table) if table else set(), alone=alone
        )
        if table is None:
            return State()
        known = table.properties
        return State(
            known.get(_UNTIL, BEGINNING),
            int(known.get(_NUMBER, "0")),
            msgspec.json.decode(known.get(_COLUMNS, "{}")),
        )

    def begin(self, batch: Batch) -> tuple[str, str]:
        """Where the files of a batch go."""
        attempts.mark(self.place, batch)
        return _DATA, batch.attempt

    def discard(self, batch: Batch) -> None:
        """Remove what the attempt wrote."""
        attempts.remove_files(self.place, _DATA, {batch.attempt}, set())
        attempts.unmark(self.place, batch)

    def commit(self, batch: Batch, files: Sequence[DataFile], layout: Layout) -> None:
        """Commit the files, and the cursor with them."""
        check_there(self.place, files)
        properties = {
            _UNTIL: batch.until,
            _NUMBER: str(batch.number),
            _COLUMNS: msgspec.json.encode(dict(layout.columns)).decode(),
        }
        about = {"holdfast.after": batch.after, _UNTIL: batch.until}
        paths = [f"{self.place.url}/{each.path}" for each in files]

        def add(transaction: Any) -> None:
            with transaction.update_schema() as update:
                update.union_by_name(layout.schema)
            transaction.set_properties(properties)
            transaction.add_files(paths, snapshot_properties=about, check_duplicate_files=False)

        self._commit(batch, add, layout)
        attempts.unmark(self.place, batch)

    def small_files(self, size_bytes: int) -> list[SmallFile]:
        """The files of the table that are smaller."""
        table = self._table()
        if table is None:
            return []
        return [
            SmallFile(path, _date_of(path), each.file.file_size_in_bytes)
            for each in table.scan().plan_files()
            if each.file.file_size_in_bytes < size_bytes
            and (path := self._relative(each.file.file_path))
        ]

    def replace(
        self, batch: Batch, old: Sequence[SmallFile], new: Sequence[DataFile], layout: Layout
    ) -> None:
        """Commit a snapshot in which some files are in the place of others."""
        check_there(self.place, new)
        gone = {each.path for each in old}
        paths = [f"{self.place.url}/{each.path}" for each in new]

        def swap(transaction: Any) -> None:
            table = transaction._table
            with transaction.update_snapshot().overwrite() as update:
                for task in table.scan().plan_files():
                    if self._relative(task.file.file_path) in gone:
                        update.delete_data_file(task.file)
                files = parquet_files_to_data_files(
                    table.io, transaction.table_metadata, iter(paths)
                )
                for each in files:
                    update.append_data_file(each)

        self._commit(batch, swap, layout)
        attempts.unmark(self.place, batch)

    def _commit(self, batch: Batch, change: Callable[[Any], None], layout: Layout) -> None:
        for left in range(_ATTEMPTS, 0, -1):
            try:
                transaction = self._begun(batch, layout)
                change(transaction)
                failpoint("archive.ready")
                committed = transaction.commit_transaction()
            except TableAlreadyExistsError:
                raise busy(self.place.name) from None
            except CommitFailedException:
                # Another run, or somebody who maintains the table: the cursor tells.
                if left == 1:
                    raise busy(self.place.name) from None
            except (HoldfastError, OSError):
                raise
            except Exception as error:
                raise self._failed(error) from error
            else:
                self._hint(committed)
                return

    def _begun(self, batch: Batch, layout: Layout) -> Any:
        """A transaction of the table as the batch found it."""
        table = self._table()
        if table is None:
            return self._created(layout)
        if table.properties.get(_UNTIL, BEGINNING) != batch.after:
            raise busy(self.place.name)
        return _once(table).transaction()

    def _created(self, layout: Layout) -> Any:
        """A transaction that makes the table."""
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
        # It says a line for every column without statistics, of which some are meant to be.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        options = {**self._store_options(), **self.catalog_options}
        if not self.catalog and not self.catalog_options:
            if self.place.directory is None:
                raise SettingsError(
                    "'catalog': an Iceberg table in a bucket needs a catalog; name one, or give "
                    "its properties as 'catalog_options'."
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

    def _store_options(self) -> dict[str, str]:
        store = self.place.store
        if not store.url.startswith("s3://"):
            return {}
        given = {
            "s3.endpoint": store.endpoint,
            "s3.region": store.region or "us-east-1",
            "s3.access-key-id": store.access_key_id,
            "s3.secret-access-key": store.secret_access_key,
            "s3.session-token": store.session_token,
        }
        return {name: value for name, value in given.items() if value}

    def _paths(self, table: Any) -> set[str]:
        """The files of all snapshots that there are."""
        found: list[str] = table.inspect.all_files()["file_path"].to_pylist()
        return {self._relative(each) for each in found}

    def _relative(self, path: str) -> str:
        """The name below the place; empty for what is elsewhere."""
        root = f"{self.place.url}/"
        return path.removeprefix(root) if path.startswith(root) else ""

    def _hint(self, table: Any) -> None:
        """Say which metadata is the latest, for readers that have no catalog."""
        name = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
        self.place.objects.put("metadata/version-hint.text", name.encode())

    def _failed(self, error: Exception) -> StoreError:
        return StoreError(f"The Iceberg table at {self.place.name} fails: {_first_line(error)}")


def _once(table: Any) -> Any:
    """The table with a commit that is not repeated, whatever its properties say."""
    properties = {**table.metadata.properties, _RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _date_of(path: str) -> str:
    return next((part[5:] for part in path.split("/") if part.startswith(f"{DATE}=")), "")
