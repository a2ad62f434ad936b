"""The data source `holdfast`.

Spark imports this module for every session, so it loads readers and writers on first use.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from holdfast.errors import HoldfastError
from holdfast.spark.plain_errors import RefusedStream, plain_errors


@plain_errors
class HoldfastDataSource(DataSource):
    """Streams as rows, and rows as messages of streams; docs/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType | str:
        from holdfast.spark.reading.readers import read_schema  # noqa: PLC0415
        from holdfast.spark.tables import given_options, with_options  # noqa: PLC0415

        return with_options(read_schema(given_options(self.options)), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from holdfast.spark.reading.readers import batch_reader  # noqa: PLC0415
        from holdfast.spark.tables import read_options  # noqa: PLC0415

        return batch_reader(read_options(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from holdfast.spark.reading.readers import stream_reader  # noqa: PLC0415
        from holdfast.spark.tables import read_options  # noqa: PLC0415

        try:
            return stream_reader(read_options(self.options, schema), schema)
        except HoldfastError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from holdfast.spark.writing.writers import batch_writer  # noqa: PLC0415

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from holdfast.spark.writing.writers import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite)
