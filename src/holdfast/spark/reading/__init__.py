"""Reading buckets: plans made by the driver, rows made by the executors."""
