"""Globs over the paths of URLs.

Rules:

- `*` stands for anything within a segment, and for at least one character where it is all of one.
- `**` stands for anything, and so does a `*` at the very end: `/v1/*` is all that is below `/v1/`.
- Everything else stands for itself, in the same case.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

_TOKEN: Final = re.compile(r"\*+|[^*]")


class PathGlob:
    """One glob.

    It is matched in one pass, all its possible places at once (the bits of a number): a regular
    expression with several stars can be made slow by whoever chooses the path.
    """

    def __init__(self, text: str) -> None:
        self._any = self._within = self._one = 0
        self._literal: defaultdict[str, int] = defaultdict(int)
        place = 1
        for found in _TOKEN.finditer(text):
            token, end = found[0], found.end()
            if token[0] != "*":
                self._literal[token] |= place
            elif len(token) > 1 or end == len(text):
                self._any |= place
            else:
                if text[found.start() - 1 : found.start()] == "/" == text[end]:
                    self._one |= place
                    place <<= 1
                self._within |= place
            place <<= 1
        self._end = place

    def matches(self, path: str) -> bool:
        """Whether the whole path is meant."""
        literal, within, stars = self._literal, self._within, self._any | self._within
        places = 1 | (1 & stars) << 1
        for character in path:
            onward, staying = places & literal.get(character, 0), places & self._any
            if character != "/":
                onward |= places & self._one
                staying |= places & within
            places = onward << 1 | staying
            # A star may stand for nothing.
            places |= (places & stars) << 1
            if not places:
                return False
        return bool(places & self._end)
