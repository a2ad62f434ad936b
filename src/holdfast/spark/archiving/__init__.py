"""Archiving: what the job `archive` is made of."""
