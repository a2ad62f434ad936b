"""Entity tags: which stream, which bytes, and whether the end is the end for good."""

from __future__ import annotations


def read_etag(number: int, start: int, end: int, *, closed: bool) -> bytes:
    """The ETag of the bytes from `start` to `end`; closure at the tail changes it."""
    return b'"%x:%d:%d%b"' % (number, start, end, b":c" if closed else b"")


def matches(if_none_match: bytes, etag: bytes) -> bool:
    """Whether an `If-None-Match` value names this tag, by weak comparison."""
    if if_none_match == etag or if_none_match.strip() == b"*":
        return True
    return any(
        candidate.strip().removeprefix(b"W/") == etag for candidate in if_none_match.split(b",")
    )
