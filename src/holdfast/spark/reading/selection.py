"""Which streams of a bucket are read, and from which offsets and times to which.

The command line imports this without PySpark or PyArrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from os.path import commonprefix
from typing import Any, Final

from holdfast.errors import InvalidOffsetError, SettingsError
from holdfast.protocol.headers import OFFSET_MAX, START, format_offset, is_decimal, parse_offset
from holdfast.spark.connection import Options

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OFFSET_DIGITS: Final = 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True)
class TextRange:
    """Texts in [first, beyond) that start with a prefix, in the order of their characters."""

    first: str = ""
    # None: no end.
    beyond: str | None = None
    prefix: str = ""

    def includes(self, text: str) -> bool:
        return (
            text >= self.first
            and (self.beyond is None or text < self.beyond)
            and text.startswith(self.prefix)
        )

    def intersects(self, first: str, last: str) -> bool:
        """Whether some of the texts may be from one to another, both included; '' is no end."""
        if last and (last < self.first or last < self.prefix):
            return False
        if self.beyond is not None and first >= self.beyond:
            return False
        return first <= self.prefix or first.startswith(self.prefix)

    def both(self, other: TextRange) -> TextRange:
        """The texts that are in both ranges."""
        ends = [each.beyond for each in (self, other) if each.beyond is not None]
        longer, shorter = sorted((self.prefix, other.prefix), key=len, reverse=True)
        # If neither prefix starts with the other, no text has both.
        none = not longer.startswith(shorter)
        return TextRange(
            max(self.first, other.first), "" if none else min(ends, default=None), longer
        )


ALL_TEXTS: Final = TextRange()
# Wider than all times of messages.
TIME_MIN_MS: Final = -(2**62)
TIME_MAX_MS: Final = 2**62


@dataclass(frozen=True)
class TimeBounds:
    """Times in milliseconds: [from_ms, to_ms), and narrower ones for some streams."""

    from_ms: int = TIME_MIN_MS
    to_ms: int = TIME_MAX_MS
    starts_ms: dict[str, int] = field(default_factory=dict)
    ends_ms: dict[str, int] = field(default_factory=dict)

    def of(self, stream_id: str) -> tuple[int, int]:
        """The first time of a stream, and the one before which its last is."""
        return (
            max(self.from_ms, self.starts_ms.get(stream_id, TIME_MIN_MS)),
            min(self.to_ms, self.ends_ms.get(stream_id, TIME_MAX_MS)),
        )

    def narrowed(self, from_ms: int, to_ms: int) -> TimeBounds:
        return TimeBounds(
            max(self.from_ms, from_ms), min(self.to_ms, to_ms), self.starts_ms, self.ends_ms
        )


ALL_TIMES: Final = TimeBounds()


@dataclass(frozen=True)
class Selection:
    """All streams of a bucket, or those of a list, or those whose whole id matches a pattern.

    Filters that Spark hands over narrow it further.
    """

    streams: frozenset[str] | None = None
    pattern: str = ""
    # By stream id. Other streams are read from their start, and to the end of the read.
    starts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    # By pattern, for streams that `starts` does not name; the first that matches counts.
    pattern_starts: tuple[tuple[str, int], ...] = ()
    ids: TextRange = ALL_TEXTS
    # The offsets of messages, of every stream, as texts.
    offsets: TextRange = ALL_TEXTS
    times: TimeBounds = ALL_TIMES

    @cached_property
    def prefix(self) -> str:
        """The common prefix of all selected ids."""
        if self.streams:
            return commonprefix(list(self.streams))  # noqa: RUF071 (ids are plain text)
        return max(_literal_prefix(self.pattern), self.ids.prefix, key=len)

    @cached_property
    def chosen(self) -> tuple[str, ...]:
        """The streams of a list that can be selected, in order; empty if there is no list."""
        return tuple(sorted(filter(self.includes, self.streams or ())))

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be selected at all."""
        return (
            self.streams == frozenset()
            or self.times.from_ms >= self.times.to_ms
            or any(
                each.beyond is not None and each.first >= each.beyond
                for each in (self.ids, self.offsets)
            )
        )

    @cached_property
    def _compiled(self) -> re.Pattern[str] | None:
        return re.compile(self.pattern) if self.pattern else None

    def includes(self, stream_id: str) -> bool:
        if self.streams is not None and stream_id not in self.streams:
            return False
        return self.ids.includes(stream_id) and (
            self._compiled is None or self._compiled.fullmatch(stream_id) is not None
        )

    def intersects(self, first: str, last: str) -> bool:
        """Whether streams from one id to another may be selected; an empty `last` is no end."""
        if self.streams is None:
            return self.ids.intersects(first, last)
        return any(first <= each and (not last or each <= last) for each in self.streams)

    def start_of(self, stream_id: str) -> int:
        """The offset from which the user wants a stream; 0 takes what there is."""
        start = self.starts.get(stream_id)
        if start is None:
            matching = (at for each, at in self._compiled_starts if each.fullmatch(stream_id))
            start = next(matching, 0)
        return start

    @cached_property
    def _compiled_starts(self) -> list[tuple[re.Pattern[str], int]]:
        return [(re.compile(pattern), start) for pattern, start in self.pattern_starts]

    @cached_property
    def offset_numbers(self) -> tuple[int, int]:
        """The least offset of all streams, and the one before which the last is."""
        beyond = self.offsets.beyond
        return _number_at(self.offsets.first), OFFSET_MAX if beyond is None else _number_at(beyond)

    def window(self, stream_id: str, earliest: int) -> tuple[int, int]:
        """The offsets between which a stream is read."""
        first, beyond = self.offset_numbers
        start = max(self.start_of(stream_id), earliest, first)
        return start, min(self.ends.get(stream_id, OFFSET_MAX), beyond)

    @cached_property
    def time_range(self) -> tuple[int, int]:
        """Times that include those of all selected streams."""
        times = self.times
        if self.streams is None:
            return times.from_ms, times.to_ms
        each = [times.of(stream_id) for stream_id in self.streams]
        return min(start for start, _ in each), max(end for _, end in each)

    @property
    def scan_bounds(self) -> dict[str, Any]:
        """The bounds of ids and times, as the parameters of a scan."""
        ids = self.ids
        first, last = (min(self.streams), max(self.streams)) if self.streams else ("", "")
        ends = [each for each in (last, ids.beyond) if each]
        return {"first": max(first, ids.first), "last": min(ends, default=""), **self.scan_times}

    @property
    def scan_times(self) -> dict[str, Any]:
        """The same as the parameters of a scan, which includes both times."""
        from_ms, to_ms = self.time_range
        return {
            "from_ms": from_ms if from_ms > 0 else None,
            "to_ms": max(to_ms - 1, 0) if to_ms < TIME_MAX_MS else None,
        }

    def __getstate__(self) -> dict[str, object]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _number_at(text: str) -> int:
    """The least offset that is not before a text of 20 digits, or of these and one character."""
    digits = text[:OFFSET_DIGITS]
    return min(int(digits or 0) + (len(text) > OFFSET_DIGITS), OFFSET_MAX)


def make_selection(streams: Sequence[str], pattern: str) -> Selection:
    if streams and pattern:
        raise SettingsError("Give either 'streams' or 'streamPattern', not both.")
    try:
        re.compile(pattern)
    except re.error as error:
        raise SettingsError(
            f"The option 'streamPattern' is no regular expression: {error}."
        ) from None
    return Selection(frozenset(streams) if streams else None, pattern)


def _literal_prefix(pattern: str) -> str:
    """The plain characters that a pattern begins with."""
    if "|" in pattern:
        return ""
    plain = re.match(r"[A-Za-z0-9_/:-]*", pattern)
    prefix = plain[0] if plain else ""
    # A quantifier may make the last character optional.
    return prefix[:-1] if pattern[len(prefix) :].startswith(("?", "*", "{")) else prefix


@dataclass(frozen=True)
class ReadBound:
    """Where a read starts or ends: a cursor, `earliest`, `latest`, or an offset for each stream."""

    cursor: str = ""
    offsets: dict[str, int] = field(default_factory=dict)

    @property
    def scan_cursor(self) -> str:
        """The cursor as a scan takes it: empty for the earliest and the latest."""
        return "" if self.cursor in {EARLIEST, LATEST} else self.cursor


def parse_bound(options: Options, name: str, default: str) -> ReadBound:
    """Parse the option `startingOffsets` or `endingOffsets`."""
    text = options.text(name, default).strip()
    if text in {EARLIEST, LATEST}:
        return ReadBound(text)
    try:
        if is_decimal(text):
            return ReadBound(format_offset(parse_offset(text)).decode())
        offsets = {str(stream): _offset(value) for stream, value in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError, InvalidOffsetError):
        raise SettingsError(
            f"The option {name!r} is 'earliest', 'latest', a cursor, or JSON such as "
            f'{{"stream-id": "00000000000000000042"}}, not {text!r}.'
        ) from None
    return ReadBound(offsets=offsets)


def _offset(value: object) -> int:
    if not isinstance(value, str):
        raise TypeError(value)
    return 0 if value in {START, EARLIEST} else parse_offset(value)


def parse_pattern_starts(options: Options) -> tuple[tuple[str, int], ...]:
    """Parse the option `startingOffsetsByPattern`."""
    text = options.text("startingOffsetsByPattern").strip()
    if not text:
        return ()
    try:
        starts = [(str(each), _offset(value)) for each, value in json.loads(text).items()]
        for pattern, _ in starts:
            re.compile(pattern)
    except (ValueError, AttributeError, TypeError, InvalidOffsetError, re.error):
        raise SettingsError(
            "The option 'startingOffsetsByPattern' is JSON with regular expressions, such as "
            f'{{"user-.*": "00000000000000000042"}}, not {text!r}.'
        ) from None
    return tuple(starts)


def parse_times(options: Options) -> TimeBounds:
    """Parse the options `startingTimestamp` and `endingTimestamp`."""
    start = _parse_time(options, "startingTimestamp")
    end = _parse_time(options, "endingTimestamp")
    return TimeBounds(
        start if isinstance(start, int) else TIME_MIN_MS,
        end if isinstance(end, int) else TIME_MAX_MS,
        start if isinstance(start, dict) else {},
        end if isinstance(end, dict) else {},
    )


def _parse_time(options: Options, name: str) -> int | dict[str, int] | None:
    """A time for all streams, or one for each."""
    text = options.text(name).strip()
    if not text:
        return None
    try:
        if text.startswith("{"):
            return {str(each): _milliseconds(str(at)) for each, at in json.loads(text).items()}
        return _milliseconds(text)
    except (ValueError, OverflowError):
        raise SettingsError(
            f"The option {name!r} is a time such as 2031-05-17T12:00:00Z, milliseconds since 1970, "
            f'or JSON such as {{"stream-id": "2031-05-17T12:00:00Z"}}, not {text!r}.'
        ) from None


def _milliseconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    at = datetime.fromisoformat(text)
    # The first millisecond that is not before it.
    return -((_EPOCH - (at if at.tzinfo else at.replace(tzinfo=UTC))) // _MILLISECOND)


@dataclass(frozen=True)
class BatchBounds:
    """How much of the source a batch read covers, and in how many partitions."""

    starting: ReadBound
    ending: ReadBound
    min_partitions: int | None
    partition_bytes: int | None

    @classmethod
    def from_options(cls, options: Options) -> BatchBounds:
        starting = parse_bound(options, "startingOffsets", EARLIEST)
        ending = parse_bound(options, "endingOffsets", LATEST)
        if ending.cursor == EARLIEST:
            raise SettingsError("The option 'endingOffsets' cannot be 'earliest'.")
        return cls(starting, ending, options.count("minPartitions"), options.size("partitionBytes"))

    def divided(self, count: int) -> BatchBounds:
        """The bounds of each of so many reads, which have the partitions together."""
        least = self.min_partitions
        return replace(self, min_partitions=least and -(-least // max(count, 1)))

    def until(self, cursor: str) -> BatchBounds:
        """The same up to a cursor, unless the end is given."""
        if self.ending.cursor not in {LATEST, ""} or not cursor:
            return self
        return replace(self, ending=replace(self.ending, cursor=cursor))
