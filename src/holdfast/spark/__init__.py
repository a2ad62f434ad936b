"""Spark: the data source `holdfast`, and the jobs of the pipeline.

`spark.read.format("holdfast")` works as soon as the package is installed: Spark finds the module
`pyspark_holdfast` by itself. The server never needs any of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.spark.writing.distribution import write_to_streams

__all__ = ["write_to_streams"]


def __getattr__(name: str) -> Any:
    """Load what is given out when it is asked for: the command line comes by without PySpark."""
    if name == "write_to_streams":
        from holdfast.spark.writing.distribution import write_to_streams  # noqa: PLC0415

        return write_to_streams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
