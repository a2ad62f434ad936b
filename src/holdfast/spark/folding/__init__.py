"""Folding: what a stream's messages add up to, and how that becomes the stream's snapshot."""
