"""The formats of tables, and what each needs to take in a batch exactly once."""
