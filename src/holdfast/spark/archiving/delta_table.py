"""A Delta table: executors write files into it, and a commit of Delta's log lists them.

The table's position, a cursor, is stored as the version of an application transaction of Delta. It
is part of the same commit as the files, is kept in checkpoints, and makes Delta refuse the commit
of a run that another one has overtaken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Final

import msgspec
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from deltalake.writer import WriterProperties

from holdfast.clock import SystemClock
from holdfast.errors import StoreError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.layout import DATE, TableLayout
from holdfast.spark.archiving.place import busy
from holdfast.spark.archiving.table import (
    BEGINNING,
    DataFile,
    MarkedTable,
    SmallFile,
    TableBatch,
    TableState,
    check_there,
)

_APP: Final = "holdfast.archive"
_COLUMNS: Final = "holdfast.columns"
# Longer texts would have to be truncated in statistics.
_STATS_TEXT_MAX: Final = 32


@dataclass(frozen=True)
class DeltaLakeTable(MarkedTable):
    # The library does not support Delta's type widening.
    widens: ClassVar[bool] = False
    by_date: bool
    compression: str

    def open(self, *, alone: bool) -> TableState:
        table = self._table()
        self._remove_stale(lambda: _paths(table) if table else set(), alone=alone)
        if table is None:
            return TableState()
        columns = msgspec.json.decode(table.metadata().configuration.get(_COLUMNS, "{}"))
        position = table.transaction_version(_APP)
        # The number is only used in names, to tell batches apart.
        return TableState(
            BEGINNING if position is None else f"{position:020d}", table.version(), columns
        )

    def commit(self, batch: TableBatch, files: Sequence[DataFile], layout: TableLayout) -> None:
        check_there(self.place, files)
        try:
            table = self._ready(layout)
            position = table.transaction_version(_APP)
            if (BEGINNING if position is None else f"{position:020d}") != batch.after:
                raise busy(self.place.name)
            failpoint("archive.ready")
            table.create_write_transaction(
                [self._action(each, layout) for each in files],
                "append",
                self._schema(layout),
                [DATE] if self.by_date else None,
                commit_properties=CommitProperties(
                    custom_metadata={"holdfast": {"after": batch.after, "until": batch.until}},
                    app_transactions=[Transaction(_APP, int(batch.until))],
                ),
            )
        except CommitFailedError:
            raise busy(self.place.name) from None
        except DeltaError as error:
            raise self._failed(error) from None
        self._unmark(batch)

    def small_files(self, size_bytes: int) -> list[SmallFile]:
        table = self._table()
        if table is None:
            return []
        listed: list[dict[str, Any]] = _rows(table.get_add_actions(flatten=True))
        return [
            SmallFile(each["path"], str(each.get(f"partition.{DATE}") or ""), each["size_bytes"])
            for each in listed
            if each["size_bytes"] < size_bytes
        ]

    def compact(self, dates: Sequence[str], file_bytes: int) -> int:
        table = self._table()
        assert table is not None, "there are files"
        codec = "UNCOMPRESSED" if self.compression == "none" else self.compression.upper()
        try:
            found = table.optimize.compact(
                partition_filters=[(DATE, "in", list(dates))] if self.by_date else None,
                target_size=file_bytes,
                writer_properties=WriterProperties(compression=codec),  # type: ignore[arg-type]
            )
        except DeltaError as error:
            raise self._failed(error) from None
        return int(found["numFilesRemoved"])

    def _table(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.place.name, storage_options=self._options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise self._failed(error) from None

    def _ready(self, layout: TableLayout) -> DeltaTable:
        """The table with all columns; creates it if necessary."""
        columns = msgspec.json.encode(dict(layout.columns)).decode()
        table = self._table()
        if table is None:
            return DeltaTable.create(
                self.place.name,
                self._schema(layout),
                partition_by=[DATE] if self.by_date else None,
                configuration={_COLUMNS: columns},
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        known = {each.name for each in table.schema().fields}
        fields: list[Field] = [
            each for each in self._schema(layout).fields if each.name not in known
        ]
        if fields:
            table.alter.add_columns(fields)
        if table.metadata().configuration.get(_COLUMNS) != columns:
            table.alter.set_table_properties({_COLUMNS: columns}, raise_if_not_exists=False)
        return table

    def _schema(self, layout: TableLayout) -> Schema:
        return Schema.from_arrow(layout.schema_with_date() if self.by_date else layout.schema)

    def _action(self, file: DataFile, layout: TableLayout) -> AddAction:
        return AddAction(
            file.path,
            file.size_bytes,
            {DATE: file.date} if file.date else {},
            SystemClock().now_ms(),
            data_change=True,
            stats=json.dumps(_stats(file, layout.time_column)),
        )

    @cached_property
    def _options(self) -> dict[str, str]:
        options = self.place.s3_options(
            *("AWS_ENDPOINT_URL", "AWS_REGION"),
            *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        )
        if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        # A commit must not overwrite another.
        return options and {**options, "aws_conditional_put": "etag"}

    def _failed(self, error: Exception) -> StoreError:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return StoreError(f"The Delta table at {self.place.name} fails: {reason}")


def _stats(file: DataFile, time_column: str) -> dict[str, Any]:
    first: dict[str, str] = {time_column: _time(file.first_timestamp_ms)}
    last: dict[str, str] = {time_column: _time(file.last_timestamp_ms)}
    if max(len(file.first_stream_id), len(file.last_stream_id)) <= _STATS_TEXT_MAX:
        first["stream_id"], last["stream_id"] = file.first_stream_id, file.last_stream_id
    return {"numRecords": file.rows, "minValues": first, "maxValues": last}


def _time(timestamp_ms: int) -> str:
    time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _paths(table: DeltaTable) -> set[str]:
    return {each["path"] for each in _rows(table.get_add_actions(flatten=True))}


def _rows(table: Any) -> list[dict[str, Any]]:
    import pyarrow as pa  # noqa: PLC0415 (what Delta hands out is not pyarrow's)

    found: list[dict[str, Any]] = pa.table(table).to_pylist()
    return found
