"""Durable, ordered batches of records: the log behind every shard."""
