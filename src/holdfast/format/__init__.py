"""The bytes on disk, without any I/O: records, batches, segments."""
