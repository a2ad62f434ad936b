"""The data source `holdfast`.

Spark imports this for every session, so what reads and writes is imported when it is asked for.
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


class HoldfastDataSource(DataSource):
    """Streams as rows, and rows as messages of streams; the options are in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """What follows `format(`."""
        return "holdfast"

    def schema(self) -> StructType:
        """The columns that the option `columns` names, or the usual ones."""
        from holdfast.spark.options import Options  # noqa: PLC0415
        from holdfast.spark.reading.columns import spark_schema  # noqa: PLC0415
        from holdfast.spark.reading.source import READ_OPTIONS, Source  # noqa: PLC0415

        return spark_schema(Source.of(Options(self.options, READ_OPTIONS)).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from holdfast.spark.reading.batch_reader import batch_reader  # noqa: PLC0415

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream read."""
        from holdfast.spark.reading.stream_reader import stream_reader  # noqa: PLC0415

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from holdfast.spark.writing.writer import batch_writer  # noqa: PLC0415

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """A stream write."""
        from holdfast.spark.writing.writer import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite)
