"""What Spark looks for when a session starts: the class of the data source `holdfast`.

Every module whose name starts with `pyspark_` is imported then, by every session, so this one only
says where the source is.
"""

from holdfast.spark.source import HoldfastDataSource as DefaultSource

__all__ = ["DefaultSource"]
