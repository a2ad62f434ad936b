"""Spark: the data source `holdfast` and the jobs of `holdfast pipeline`.

`spark.read.format("holdfast")` works once the package is installed: Spark finds the module
`pyspark_holdfast` by itself. The server does not use this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.spark.functions import register_functions
    from holdfast.spark.writing.writers import write_to_streams

__all__ = ["register_functions", "write_to_streams"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line imports this package without PySpark.
    if name == "write_to_streams":
        from holdfast.spark.writing.writers import write_to_streams  # noqa: PLC0415

        return write_to_streams
    if name == "register_functions":
        from holdfast.spark.functions import register_functions  # noqa: PLC0415

        return register_functions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
