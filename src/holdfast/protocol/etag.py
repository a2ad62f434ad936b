"""Entity tags: which stream, which bytes, and whether the end is the end for good."""

from __future__ import annotations


def read_etag(number: int, start: int, end: int, *, closed: bool) -> bytes:
    """The ETag of the bytes from `start` to `end`; closure at the tail changes it."""
    return b'"%x:%d:%d%b"' % (number, start, end, b":c" if closed else b"")


def state_etag(number: int, tail: int, *, closed: bool) -> bytes:
    """The ETag of a stream as it is: any append and its closure change it."""
    return b'"%x:%d%b"' % (number, tail, b":c" if closed else b"")


def matches_state(if_match: bytes, number: int, tail: int, *, closed: bool) -> bool:
    """Whether an `If-Match` value names this state, by strong comparison.

    That is the stream's own tag, or the tag of a read that ended at the tail.
    """
    if if_match == state_etag(number, tail, closed=closed) or if_match.strip() == b"*":
        return True
    return any(_names(each.strip(), number, tail, closed) for each in if_match.split(b","))


def _names(tag: bytes, number: int, tail: int, closed: bool) -> bool:
    if len(tag) < 2 or not tag.startswith(b'"') or not tag.endswith(b'"'):
        return False
    parts = tag[1:-1].split(b":")
    if (parts[-1] == b"c") != closed:
        return False
    known = parts[:-1] if closed else parts
    return len(known) in {2, 3} and known[0] == b"%x" % number and known[-1] == b"%d" % tail


def matches(if_none_match: bytes, etag: bytes) -> bool:
    """Whether an `If-None-Match` value names this tag, by weak comparison."""
    if if_none_match == etag or if_none_match.strip() == b"*":
        return True
    return any(
        candidate.strip().removeprefix(b"W/") == etag for candidate in if_none_match.split(b",")
    )
