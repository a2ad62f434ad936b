"""The engine: a shard, the single writer of its streams, and the state its records make."""
