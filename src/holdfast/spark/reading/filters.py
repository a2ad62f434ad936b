"""Filters of queries, which Spark hands over so that less is read.

A filter is taken over if the read applies it exactly: then Spark does not apply it again. Filters
on `bucket` choose buckets; those on `stream_id`, `offset` and `timestamp` narrow the selection of
streams and messages. All other filters go back to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from holdfast.spark.reading.selection import (
    ALL_TEXTS,
    ALL_TIMES,
    OFFSET_DIGITS,
    TIME_MAX_MS,
    TIME_MIN_MS,
    Selection,
    TextRange,
    TimeBounds,
)

# Columns that no row lacks. There are no times where a server does not tell them.
_NEVER_NULL: Final = frozenset({"bucket", "stream_id", "offset", "next_offset"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class PushedFilters:
    """What filters say together, and which of them are left to Spark."""

    buckets: TextRange = ALL_TEXTS
    bucket_ids: frozenset[str] | None = None
    ids: TextRange = ALL_TEXTS
    stream_ids: frozenset[str] | None = None
    offsets: TextRange = ALL_TEXTS
    times: TimeBounds = ALL_TIMES
    taken: tuple[Filter, ...] = ()
    left: tuple[Filter, ...] = ()

    def wants_bucket(self, bucket: str) -> bool:
        return self.buckets.includes(bucket) and (
            self.bucket_ids is None or bucket in self.bucket_ids
        )

    def narrow(self, selection: Selection) -> Selection:
        """What is left of a selection."""
        return replace(
            selection,
            streams=_in_both(selection.streams, self.stream_ids),
            ids=selection.ids.both(self.ids),
            offsets=selection.offsets.both(self.offsets),
            times=selection.times.narrowed(self.times.from_ms, self.times.to_ms),
        )


def push_filters(
    filters: Iterable[Filter], columns: Iterable[str], *, framed: bool
) -> PushedFilters:
    """Take over what can be applied exactly. `columns` are the message's own in this read."""
    own = frozenset(columns)
    pushed = PushedFilters()
    for each in filters:
        narrowed = _narrowed(pushed, each, own, framed)
        if narrowed is None:
            pushed = replace(pushed, left=(*pushed.left, each))
        else:
            pushed = replace(narrowed, taken=(*pushed.taken, each))
    return pushed


def _narrowed(
    pushed: PushedFilters, each: Filter, own: frozenset[str], framed: bool
) -> PushedFilters | None:
    """What was pushed with one more filter; None if it cannot be taken over."""
    path: Any = getattr(each, "attribute", ())
    if len(path) != 1 or path[0] not in own:
        return None
    column = path[0]
    if isinstance(each, IsNotNull):
        return pushed if column in _NEVER_NULL else None
    value: Any = getattr(each, "value", None)
    if column == "timestamp":
        times = _times(each, value)
        return replace(pushed, times=pushed.times.narrowed(*times)) if times else None
    values = _values(each, value)
    texts = _texts(each, value)
    match column:
        case "bucket" if values is not None:
            return replace(pushed, bucket_ids=_in_both(pushed.bucket_ids, values))
        case "bucket" if texts is not None:
            return replace(pushed, buckets=pushed.buckets.both(texts))
        case "stream_id" if values is not None:
            return replace(pushed, stream_ids=_in_both(pushed.stream_ids, values))
        case "stream_id" if texts is not None:
            return replace(pushed, ids=pushed.ids.both(texts))
        # Records within a message have offsets of their own, so there Spark has to filter.
        case "offset" if not framed and _is_offset(value):
            texts = TextRange(value, f"{value}\0") if values is not None else texts
            if texts is not None and not texts.prefix:
                return replace(pushed, offsets=pushed.offsets.both(texts))
    return None


def _is_offset(value: Any) -> bool:
    return (
        isinstance(value, str)
        and len(value) == OFFSET_DIGITS
        and value.isascii()
        and value.isdigit()
    )


def _in_both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _values(each: Filter, value: Any) -> frozenset[str] | None:
    """The texts that a filter names."""
    if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
        return frozenset({value})
    if isinstance(each, In):
        # Null equals nothing.
        texts = [one for one in value if one is not None]
        return frozenset(texts) if all(isinstance(one, str) for one in texts) else None
    return None


def _texts(each: Filter, value: Any) -> TextRange | None:
    """The range of texts that a filter names; the next text after one has a character more."""
    if not isinstance(value, str):
        return None
    match each:
        case GreaterThan():
            return TextRange(first=f"{value}\0")
        case GreaterThanOrEqual():
            return TextRange(first=value)
        case LessThan():
            return TextRange(beyond=value)
        case LessThanOrEqual():
            return TextRange(beyond=f"{value}\0")
        case StringStartsWith():
            return TextRange(prefix=value)
    return None


def _times(each: Filter, value: Any) -> tuple[int, int] | None:
    """The milliseconds, from one to before another, that a filter on times names."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    at_us = (value - _EPOCH) // _MICROSECOND
    # Times of messages have whole milliseconds: the first at or after it, and the first after it.
    at_ms, after_ms = -(-at_us // 1000), at_us // 1000 + 1
    match each:
        case GreaterThan():
            return after_ms, TIME_MAX_MS
        case GreaterThanOrEqual():
            return at_ms, TIME_MAX_MS
        case LessThan():
            return TIME_MIN_MS, at_ms
        case LessThanOrEqual():
            return TIME_MIN_MS, after_ms
        case EqualTo() | EqualNullSafe():
            # Empty if it lies between two milliseconds.
            return at_ms, after_ms
    return None
