"""The table that a job's options mean, in one of the formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdfast.spark.archiving.places import Place
from holdfast.spark.archiving.tables.table import Table


class TableOptions(Protocol):
    """What a job says of its table."""

    @property
    def format(self) -> str:
        """`parquet`, `delta` or `iceberg`."""

    @property
    def compression(self) -> str:
        """Of the files."""

    @property
    def catalog(self) -> str:
        """Iceberg: the catalog's name."""

    @property
    def catalog_options(self) -> Mapping[str, str]:
        """Iceberg: the catalog's properties."""

    @property
    def catalog_table(self) -> str:
        """Iceberg: the table's name in the catalog."""


def table_at(place: Place, options: TableOptions, name: str, *, by_date: bool) -> Table:
    """The table at a place; a catalog calls it by `name` unless the options say otherwise."""
    match options.format:
        case "delta":
            from holdfast.spark.archiving.tables.delta import Delta  # noqa: PLC0415 (where used)

            return Delta(place, by_date, options.compression)
        case "iceberg":
            from holdfast.spark.archiving.tables.iceberg import Iceberg  # noqa: PLC0415 (the same)

            return Iceberg(
                place,
                by_date,
                name,
                options.catalog,
                options.catalog_options,
                options.catalog_table,
            )
        case _:
            from holdfast.spark.archiving.tables.parquet import ParquetTable  # noqa: PLC0415

            return ParquetTable(place)
