"""The module by which Spark finds the data source `holdfast`.

Every session imports all modules whose names start with `pyspark_`, so this one only names the
class.
"""

from holdfast.spark.source import HoldfastDataSource as DefaultSource

__all__ = ["DefaultSource"]
