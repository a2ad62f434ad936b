"""Which streams of a bucket are read, and from which offsets to which.

The command line imports this without PySpark or PyArrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os.path import commonprefix
from typing import Final

from holdfast.errors import InvalidOffsetError, SettingsError
from holdfast.protocol.headers import OFFSET_MAX, START, format_offset, is_decimal, parse_offset
from holdfast.spark.connection import Options

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True)
class Selection:
    """All streams of a bucket, those of a list, or those whose whole id matches a pattern."""

    streams: frozenset[str] | None = None
    pattern: str = ""
    # By stream id. Other streams are read from their start, and to the end of the read.
    starts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    @cached_property
    def prefix(self) -> str:
        """The common prefix of all selected ids."""
        if self.streams:
            return commonprefix(list(self.streams))  # noqa: RUF071 (ids are plain text)
        return _literal_prefix(self.pattern)

    @cached_property
    def _compiled(self) -> re.Pattern[str] | None:
        return re.compile(self.pattern) if self.pattern else None

    def includes(self, stream_id: str) -> bool:
        if self.streams is not None:
            return stream_id in self.streams
        return self._compiled is None or self._compiled.fullmatch(stream_id) is not None

    def window(self, stream_id: str, earliest: int) -> tuple[int, int]:
        """The offsets between which a stream is read."""
        start = max(self.starts.get(stream_id, 0), earliest)
        return start, self.ends.get(stream_id, OFFSET_MAX)

    def __getstate__(self) -> dict[str, object]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


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
