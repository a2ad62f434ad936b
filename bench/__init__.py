"""Holdfast beside its peers, measured in one run. Not a test: it never fails on time.

Run from the repository root: `python -m bench [--only SCENARIO]`. Linux only: it pins with taskset
and reads CPU times and memory from /proc.
"""
