"""Holdfast: durable, URL-addressable, append-only streams over plain HTTP."""

__version__ = "0.1.0"
