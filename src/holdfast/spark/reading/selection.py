"""Which streams of a bucket a read is about, and from which of their offsets to which."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from holdfast.errors import SettingsError
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.spark.connection import Options

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_CURSOR: Final = re.compile(r"\d{20}")


@dataclass(frozen=True)
class Selection:
    """All streams of a bucket, those of a list, or those whose ids a pattern matches as a whole."""

    streams: frozenset[str] | None = None
    pattern: str = ""
    # By stream; those that are not here are read from their start, and to the end of the read.
    starts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    @cached_property
    def prefix(self) -> str:
        """What the ids of all selected streams begin with."""
        if self.streams:
            least, most = min(self.streams), max(self.streams)
            same = [a == b for a, b in zip(least, most, strict=False)]
            return least[: same.index(False)] if False in same else least[: len(same)]
        return _literal_prefix(self.pattern)

    @cached_property
    def _matches(self) -> re.Pattern[str] | None:
        return re.compile(self.pattern) if self.pattern else None

    def wants(self, stream_id: str) -> bool:
        """Whether the read is about this stream."""
        if self.streams is not None:
            return stream_id in self.streams
        return self._matches is None or self._matches.fullmatch(stream_id) is not None

    def window(self, stream_id: str, earliest: int) -> tuple[int, int]:
        """From which offset to which the stream is read."""
        start = max(self.starts.get(stream_id, 0), earliest)
        return start, self.ends.get(stream_id, OFFSET_MAX)

    def __getstate__(self) -> dict[str, object]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _literal_prefix(pattern: str) -> str:
    """The plain characters that a pattern begins with."""
    if "|" in pattern:
        return ""
    plain = re.match(r"[A-Za-z0-9_/:-]*", pattern)
    found = plain[0] if plain else ""
    # The last one may not have to be there.
    return found[:-1] if pattern[len(found) :].startswith(("?", "*", "{")) else found


@dataclass(frozen=True)
class Bound:
    """Where a read starts or ends: a cursor, `earliest`, `latest`, or an offset for each stream."""

    cursor: str = ""
    offsets: dict[str, int] = field(default_factory=dict)


def parse_selection(options: Options) -> Selection:
    """The streams that the options name."""
    return make_selection(options.words("streams"), options.text("streamPattern"))


def make_selection(streams: Sequence[str], pattern: str) -> Selection:
    """The streams with these ids, those whose ids a pattern matches, or all."""
    if streams and pattern:
        raise SettingsError("Give either 'streams' or 'streamPattern', not both.")
    try:
        re.compile(pattern)
    except re.error as error:
        raise SettingsError(
            f"The option 'streamPattern' is no regular expression: {error}."
        ) from None
    return Selection(frozenset(streams) if streams else None, pattern)


def parse_bound(options: Options, name: str, default: str) -> Bound:
    """The option `startingOffsets` or `endingOffsets`."""
    text = options.text(name, default).strip()
    if text in {EARLIEST, LATEST} or _CURSOR.fullmatch(text):
        return Bound(text)
    try:
        found = json.loads(text)
        offsets = {str(stream): _offset(value) for stream, value in found.items()}
    except (ValueError, AttributeError, TypeError):
        raise SettingsError(
            f"The option {name!r} is 'earliest', 'latest', a cursor of 20 digits, or JSON such as "
            f'{{"stream-id": "00000000000000000042"}}, not {text!r}.'
        ) from None
    return Bound(offsets=offsets)


def _offset(value: object) -> int:
    if value == "-1" or value == EARLIEST:  # noqa: PLR1714 (each is a word of its own)
        return 0
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()):
        raise ValueError(value)
    if int(value) > OFFSET_MAX:
        raise ValueError(value)
    return int(value)
