"""The data pipeline on Spark, beside what Spark does by itself."""
