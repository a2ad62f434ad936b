"""Stream paths as the subscription API spells them, and patterns over them.

A path is relative to `/v1/stream/`. One segment is a stream of the default bucket, exactly as in
the URLs of streams: `a` is the stream `_default/a`.

In a pattern `*` is one segment, and `**` any number of them, none included. Any other segment is
compared as it is. A star in a name is written `%2A`, so that a pattern which looks like something
else (`a*`) can be refused instead of never matching.
"""

from __future__ import annotations

import re
from itertools import takewhile
from types import EllipsisType
from typing import Final

from holdfast.errors import InvalidRequestError, NotFoundError, SubscriptionError
from holdfast.protocol.names import DEFAULT_BUCKET, NAME_BYTES_MAX, parse_flat_path

SUBSCRIPTION_ID_BYTES_MAX: Final = 256
_SUBSCRIPTION_ID: Final = re.compile(r"[^/\x00-\x1f\x7f-\x9f]+")
_DEFAULT: Final = f"{DEFAULT_BUCKET}/"


def name_of(path: str) -> str:
    """The name of the stream at a path; leading slashes are ignored."""
    path = path.lstrip("/")
    try:
        # Paths in JSON are not percent-encoded.
        return parse_flat_path(path.replace("%", "%25").encode())
    except (InvalidRequestError, NotFoundError, UnicodeEncodeError):
        raise SubscriptionError(
            f"{path[:80]!r} is not a stream path: expected {{id}} or {{bucket}}/{{id}} of at most "
            f"{NAME_BYTES_MAX} bytes, relative to /v1/stream/."
        ) from None


def path_of(name: str) -> str:
    if name.startswith(_DEFAULT):
        stream_id = name[len(_DEFAULT) :]
        if "/" not in stream_id:
            return stream_id
    return name


def check_subscription_id(text: str) -> str:
    if not _SUBSCRIPTION_ID.fullmatch(text) or len(text.encode()) > SUBSCRIPTION_ID_BYTES_MAX:
        raise SubscriptionError(
            f"A subscription's id has 1 to {SUBSCRIPTION_ID_BYTES_MAX} bytes, and no slash and no "
            "control characters."
        )
    return text


PATTERN_BYTES_MAX: Final = 1024
_ONE: Final = "*"
_ANY: Final = "**"
_STAR: Final = re.compile(r"%2[Aa]")


class StreamGlob:
    __slots__ = ("_loose", "_parts", "first")

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern.encode()) > PATTERN_BYTES_MAX:
            raise SubscriptionError(f"pattern must have 1 to {PATTERN_BYTES_MAX} bytes.")
        parts = pattern.split("/")
        for part in parts:
            if "*" in part and part not in {_ONE, _ANY}:
                raise SubscriptionError(
                    f"The segment {part!r} of the pattern mixes a star with text: * is a whole "
                    "segment, ** any number of them, and %2A a star in a name."
                )
        # `*` is None and `**` is ..., which no name can be confused with.
        self._parts = [_part(part) for part in parts]
        self._loose = ... in self._parts
        head = self._parts[0]
        # The first segment of every path that matches; None if it can be any.
        self.first = head if isinstance(head, str) else None

    def matches(self, path: str) -> bool:
        """Whether a path matches; takes time proportional to both lengths at worst."""
        segments = path.split("/")
        if not self._loose:
            return len(segments) == len(self._parts) and all(
                part is None or part == segment
                for part, segment in zip(self._parts, segments, strict=True)
            )
        return self._matches_loosely(segments)

    def _matches_loosely(self, segments: list[str]) -> bool:
        # reached[i]: the segments so far match the first i parts.
        reached = self._closed([True] + [False] * len(self._parts))
        for segment in segments:
            following = [False] * len(reached)
            for at, part in enumerate(self._parts):
                if not reached[at]:
                    continue
                if part is ...:
                    following[at] = True
                elif part is None or part == segment:
                    following[at + 1] = True
            reached = self._closed(following)
            if True not in reached:
                return False
        return reached[-1]

    def _closed(self, reached: list[bool]) -> list[bool]:
        """Add what is reached if `**` matches nothing."""
        for at, part in enumerate(self._parts):
            if reached[at] and part is ...:
                reached[at + 1] = True
        return reached

    def name_prefixes(self) -> list[str]:
        """Prefixes of the names of all streams that match: where to look for them.

        A path of one segment is a name in the default bucket, so there may be two.
        """
        parts = self._parts
        literal = list(takewhile(lambda part: isinstance(part, str), parts))
        tight = [part for part in parts if part is not ...]
        prefixes = []
        if self._loose or len(parts) > 1:
            if not literal:
                return [""]
            # A path may end with the literal part if that is all, or if `**` comes next.
            ends = len(literal) > 1 and parts[len(literal) : len(literal) + 1] in ([], [...])
            prefixes.append("/".join(map(str, literal)) + ("" if ends else "/"))
        if len(tight) == 1:
            prefixes.append(f"{DEFAULT_BUCKET}/{tight[0] or ''}")
        return prefixes


def _part(segment: str) -> str | EllipsisType | None:
    if segment == _ONE:
        return None
    if segment == _ANY:
        return ...
    return _STAR.sub("*", segment)
