"""The Durable Streams protocol as plain functions: no I/O, no clock, no event loop."""
