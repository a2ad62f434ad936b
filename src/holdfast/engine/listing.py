"""Listing: the published streams of a bucket in the order of their names, a page at a time.

The catalog gives any page of what it has; what changed since, or is not there yet, is in memory.
Both are in order, so a page costs what is on it, however many streams the bucket holds.
"""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.engine.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.clock import Clock
    from holdfast.engine.state import State
    from holdfast.storage.catalog import Catalog

_PAGE: Final = 1000


class Listed(NamedTuple):
    """A stream as it is listed."""

    name: str
    stream: Stream


class Listing:
    """Finds published streams by the beginning of their names."""

    def __init__(self, state: State, clock: Clock, catalog: Catalog | None) -> None:
        self._state = state
        self._clock = clock
        self._catalog = catalog

    def streams(self, prefix: str, after: str = "", page: int = _PAGE) -> Iterator[Listed]:
        """Streams whose names (`bucket/id`) start so and sort behind `after`, in order.

        To be gone through at once: what changes meanwhile is not seen as a whole. `page` is how
        many names the catalog is asked for at a time.
        """
        last = ""
        now_ms = self._clock.now_ms()
        names = merge(
            self._in_memory(prefix, after),
            self._in_catalog(prefix, after, page),
            key=lambda listed: listed.name,
        )
        for listed in names:
            stream = listed.stream
            if listed.name == last or stream.gone:
                continue
            last = listed.name
            if stream.deadline_ms is None or stream.deadline_ms > now_ms:
                yield listed

    def _in_memory(self, prefix: str, after: str) -> Iterator[Listed]:
        """What the catalog may not have yet."""
        state = self._state
        bucket = prefix.partition("/")[0]
        least, inclusive = (after, False) if after >= prefix else (prefix, True)
        for name in state.names.after(bucket, least, inclusive=inclusive):
            if not name.startswith(prefix):
                return
            stream = state.by_name.get(name)
            if stream is not None:
                yield Listed(name, stream)

    def _in_catalog(self, prefix: str, after: str, page: int) -> Iterator[Listed]:
        """What the catalog has, as it is by now."""
        state = self._state
        while self._catalog is not None:
            rows = self._catalog.page(prefix, after, page)
            for row in rows:
                name = row.meta.name
                stream = state.by_name.get(name)
                if stream is None and row.number not in state.removed_numbers:
                    # Not brought into memory: nobody asked for this stream.
                    stream = Stream.from_row(row)
                if stream is not None:
                    yield Listed(name, stream)
            if len(rows) < page:
                return
            after = rows[-1].meta.name
