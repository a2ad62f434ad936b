"""Expiry without scanning: a heap of deadlines, corrected lazily when one comes due."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.state import State, Stream


class ExpiryQueue:
    """Streams with a deadline, soonest first.

    A renewal does not touch the heap: an entry that comes due too early is pushed again with the
    deadline the stream has by then. Deadlines only ever move later, so none is missed.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._heap: list[tuple[int, int]] = []

    def add(self, stream: Stream) -> None:
        """Watch a stream, if it expires at all."""
        if stream.deadline_ms is not None:
            heappush(self._heap, (stream.deadline_ms, stream.number))

    def due(self, now_ms: int) -> Iterator[Stream]:
        """The streams whose deadline has passed; each comes again until it is gone."""
        again = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, number = heappop(self._heap)
            stream = self._state.by_number.get(number)
            if stream is None or stream.deadline_ms is None:
                continue
            if stream.deadline_ms > now_ms:
                heappush(self._heap, (stream.deadline_ms, number))
            else:
                again.append((stream.deadline_ms, number))
                yield stream
        for entry in again:
            heappush(self._heap, entry)
