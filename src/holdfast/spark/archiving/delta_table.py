"""A Delta table: executors write files into it, and a commit of Delta's log lists them.

The table's position, a cursor, is stored as the version of an application transaction of Delta. It
is part of the same commit as the files, is kept in checkpoints, and makes Delta refuse the commit
of a run that another one has overtaken.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from holdfast.clock import SystemClock
from holdfast.errors import StoreError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.layout import DATE, TableLayout
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

_APP: Final = "holdfast.archive"
_ERASED: Final = "holdfast.erased"
_COLUMNS: Final = "holdfast.columns"
# Longer texts would have to be truncated in statistics.
_STATS_TEXT_MAX: Final = 32


@dataclass(frozen=True)
class DeltaLakeTable(MarkedTable):
    # The library does not support Delta's type widening.
    widens: ClassVar[bool] = False
    by_date: bool

    def open(self, *, alone: bool) -> TableState:
        table = self._table()
        self._remove_stale(lambda: _paths(table) if table else set(), alone=alone)
        if table is None:
            return TableState()
        columns = msgspec.json.decode(table.metadata().configuration.get(_COLUMNS, "{}"))
        # The number is only used in names, to tell batches apart.
        return TableState(
            _position(table, _APP), table.version(), columns, _position(table, _ERASED)
        )

    def commit(self, batch: TableBatch, files: Sequence[DataFile], layout: TableLayout) -> None:
        check_there(self.place, files)
        self._write_log(batch, [self._added(each, layout) for each in files], layout)

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
        now_ms = SystemClock().now_ms()
        removed = [
            RemoveAction(
                each.path,
                data_change=not same_rows,
                deletion_timestamp=now_ms,
                size=each.size_bytes,
                partition_values={DATE: each.date} if each.date else {},
            )
            for each in old
        ]
        added = [self._added(each, layout, is_change=not same_rows) for each in new]
        self._write_log(batch, [*removed, *added], layout)

    def _write_log(
        self, batch: TableBatch, actions: list[AddAction | RemoveAction], layout: TableLayout
    ) -> None:
        # Delta refuses the commit if one of these was committed since the table was read, or one
        # of the files was removed.
        positions = {_APP: batch.until, _ERASED: batch.erased}
        transactions = [
            Transaction(name, int(cursor)) for name, cursor in positions.items() if cursor
        ]
        try:
            table = self._ready(layout)
            if _position(table, _APP) != batch.after:
                raise busy(self.place.name)
            failpoint("archive.ready")
            table.create_write_transaction(
                actions,
                "append",
                self._schema(layout),
                [DATE] if self.by_date else None,
                commit_properties=CommitProperties(
                    custom_metadata={"holdfast": {"after": batch.after, "until": batch.until}},
                    app_transactions=transactions,
                ),
            )
        except CommitFailedError:
            raise busy(self.place.name) from None
        except DeltaError as error:
            raise self._failed(error) from None
        self._unmark(batch)

    def files(self, size_below: int | None = None) -> list[ListedFile]:
        table = self._table()
        if table is None:
            return []
        listed = _actions(table)
        if size_below is not None:
            listed = listed.filter(pc.less(listed["size_bytes"], size_below))
        return _files(listed)

    def files_with(self, stream_ids: Sequence[str]) -> list[ListedFile]:
        table = self._table()
        if table is None or not stream_ids:
            return []
        listed = _actions(table)
        names = ("min.stream_id", "max.stream_id")
        if set(names) <= set(listed.column_names):
            # Files of which nothing is known may have any stream.
            first, last = (listed[name].to_pylist() for name in names)
            may_have = [
                low is None
                or high is None
                or bisect_left(stream_ids, low) < bisect_right(stream_ids, high)
                for low, high in zip(first, last, strict=True)
            ]
            listed = listed.filter(pa.array(may_have))
        return _files(listed)

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

    def _added(self, file: DataFile, layout: TableLayout, *, is_change: bool = True) -> AddAction:
        return AddAction(
            file.path,
            file.size_bytes,
            {DATE: file.date} if file.date else {},
            SystemClock().now_ms(),
            data_change=is_change,
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


def _position(table: DeltaTable, name: str) -> str:
    """The cursor that is stored as the version of an application transaction."""
    version = table.transaction_version(name)
    return BEGINNING if version is None else f"{version:020d}"


def _paths(table: DeltaTable) -> set[str]:
    return set(_actions(table)["path"].to_pylist())


def _actions(table: DeltaTable) -> Any:
    """The files of the table, as rows."""
    listed = pa.table(table.get_add_actions(flatten=True))
    # Delta hands out views of texts, for which Arrow lacks functions.
    views = {pa.string_view(): pa.string()}
    return listed.cast(
        pa.schema([each.with_type(views.get(each.type, each.type)) for each in listed.schema])
    )


def _files(listed: Any) -> list[ListedFile]:
    names = ["path", "size_bytes", f"partition.{DATE}"]
    rows = listed.select([name for name in names if name in listed.column_names]).to_pylist()
    return [
        ListedFile(each["path"], str(each.get(f"partition.{DATE}") or ""), each["size_bytes"])
        for each in rows
    ]
