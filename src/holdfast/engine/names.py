"""Names in order: which streams a bucket holds, a page at a time.

Most names are in the catalog, which gives any page of them. Those it does not have yet are kept
here in order, by bucket. Adding a name costs next to nothing until somebody asks for a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedSet

if TYPE_CHECKING:
    from collections.abc import Iterator


class Names:
    """The names of streams that the catalog may not have yet."""

    __slots__ = ("_fresh", "_sorted")

    def __init__(self) -> None:
        self._fresh: dict[str, set[str]] = {}
        self._sorted: dict[str, Any] = {}

    def add(self, name: str) -> None:
        """A stream was created."""
        bucket = name[: name.index("/")]
        fresh = self._fresh.get(bucket)
        if fresh is None:
            fresh = self._fresh[bucket] = set()
        fresh.add(name)

    def discard(self, name: str) -> None:
        """A stream is gone, or the catalog has it."""
        bucket = name[: name.index("/")]
        for index in (self._fresh, self._sorted):
            names = index.get(bucket)
            if names is not None:
                names.discard(name)
                if not names:
                    del index[bucket]

    def after(self, bucket: str, least: str, *, inclusive: bool) -> Iterator[str]:
        """The bucket's names from `least` on, in order."""
        fresh = self._fresh.pop(bucket, None)
        names = self._sorted.get(bucket)
        if fresh is not None:
            if names is None:
                names = self._sorted[bucket] = SortedSet()
            names.update(fresh)
        if names is None:
            return iter(())
        found: Iterator[str] = names.irange(least, inclusive=(inclusive, True))
        return found
