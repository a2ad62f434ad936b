"""Tiered storage: packs in an object store, the catalog that finds them, and their upkeep."""
