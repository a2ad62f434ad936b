"""What the tiered storage is to reach: memory, flushing, cold reads and recovery."""
