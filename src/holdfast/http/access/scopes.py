"""What a token allows: scopes, and the identity that has them.

A scope is `ACTION:BUCKET`, `ACTION:BUCKET/PREFIX*` or `ACTION:BUCKET/ID`:

- ACTION is `read`, `write` (which allows reading, too) or `admin` (which allows everything).
- BUCKET is a bucket's id, or `*` for all buckets and the server itself.
- `/PREFIX*` limits the scope to streams whose id starts with PREFIX, `/ID` to one stream. Neither
  covers the bucket itself; a prefix covers a listing of that prefix or a longer one.

Names are written as they are, not percent-encoded. `*` has a meaning only as the whole bucket and
as the last character, and is refused everywhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class Need(IntEnum):
    """The permission that a route needs; each includes the lower ones."""

    NOTHING = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


ALL_BUCKETS: Final = "*"
SCOPE_BYTES_MAX: Final = 2048
_ACTIONS: Final = {"read": Need.READ, "write": Need.WRITE, "admin": Need.ADMIN}
_SCOPE: Final = re.compile(r"(read|write|admin):(\*|[^/*]+)(?:/([^*]*)(\*)?)?")


@dataclass(frozen=True, slots=True)
class Scope:
    """One permission; `stream` is None for whole buckets, else an id or a prefix."""

    need: Need
    bucket: str
    stream: str | None = None
    is_prefix: bool = False

    def __str__(self) -> str:
        """The text that `parse_scope` parses."""
        part = "" if self.stream is None else f"/{self.stream}{'*' if self.is_prefix else ''}"
        return f"{self.need.name.lower()}:{self.bucket}{part}"


def parse_scope(text: str) -> Scope:
    """Parse a scope; raises ValueError."""
    match = _SCOPE.fullmatch(text)
    if match is None or len(text) > SCOPE_BYTES_MAX or not text.isprintable():
        raise ValueError(
            f"{text[:100]!r} is not a scope: expected read, write or admin, a colon, a bucket "
            "or *, and perhaps /ID or /PREFIX*, such as write:demo/logs-*"
        )
    action, bucket, stream, star = match.groups()
    if stream == "" and not star:
        raise ValueError(f"{text!r} names no stream; leave the slash out to mean the whole bucket")
    return Scope(_ACTIONS[action], bucket, stream, star is not None)


# A scope on some streams of a bucket: the permission, the id or prefix, and which of them.
_Part = tuple[int, str, bool]


@dataclass(frozen=True, slots=True)
class Identity:
    """The holder of a token, what it allows, and until when."""

    name: str
    scopes: tuple[Scope, ...]
    # Seconds since the Unix epoch; None for a token that does not expire.
    expires_at_s: float | None = None
    # The scopes, arranged so that most requests are decided by one comparison or look-up.
    everywhere: int = field(init=False, repr=False, compare=False)
    whole_buckets: dict[str, int] = field(init=False, repr=False, compare=False)
    _parts: dict[str, list[_Part]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole: dict[str, int] = {}
        parts: dict[str, list[_Part]] = {}
        for scope in self.scopes:
            if scope.stream is None:
                whole[scope.bucket] = max(whole.get(scope.bucket, 0), int(scope.need))
            else:
                part = (int(scope.need), scope.stream, scope.is_prefix)
                parts.setdefault(scope.bucket, []).append(part)
        object.__setattr__(self, "everywhere", whole.pop(ALL_BUCKETS, 0))
        object.__setattr__(self, "whole_buckets", whole)
        object.__setattr__(self, "_parts", parts)

    def allows(self, need: Need, bucket: str, stream_id: str, *, is_prefix: bool = False) -> bool:
        """Whether this is permitted; no bucket means the server, no stream the bucket itself."""
        if self.everywhere >= need:
            return True
        if not bucket:
            return False
        if self.whole_buckets.get(bucket, 0) >= need:
            return True
        if not stream_id and not is_prefix:
            return False
        return self._covers(bucket, need, stream_id, is_prefix) or self._covers(
            ALL_BUCKETS, need, stream_id, is_prefix
        )

    def allows_somewhere(self, need: Need) -> bool:
        """Whether this is permitted for any stream at all."""
        return any(scope.need >= need for scope in self.scopes)

    def _covers(self, bucket: str, need: Need, stream_id: str, is_prefix: bool) -> bool:
        """Whether a scope on some streams of a bucket covers this stream or prefix."""
        for level, text, text_is_prefix in self._parts.get(bucket, ()):
            if level < need:
                continue
            if text_is_prefix:
                if stream_id.startswith(text):
                    return True
            elif stream_id == text and not is_prefix:
                return True
        return False


def parse_scopes(texts: Iterable[str]) -> tuple[Scope, ...]:
    """Parse scopes without duplicates; raises ValueError for the first bad one."""
    return tuple(dict.fromkeys(parse_scope(text) for text in texts))


def known_scopes(texts: Iterable[object]) -> tuple[Scope, ...]:
    """Parse the scopes that are ours: JWTs may carry those of other services as well."""
    return parse_scopes(text for text in texts if isinstance(text, str) and _is_scope(text))


def _is_scope(text: str) -> bool:
    try:
        parse_scope(text)
    except ValueError:
        return False
    return True
