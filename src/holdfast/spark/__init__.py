"""Spark: the data source `holdfast`, and the jobs of the pipeline.

`spark.read.format("holdfast")` works as soon as the package is installed: Spark finds the module
`pyspark_holdfast` by itself. The server never needs any of this.
"""
