"""Expiry without scanning: a heap of deadlines, corrected lazily when one comes due."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream

_SPARE_ENTRIES: Final = 1024


class ExpiryQueue:
    """Streams with a deadline, soonest first.

    A renewal does not touch the heap: an entry that comes due too early is pushed again with the
    deadline the stream has by then. Deadlines only ever move later, so none is missed, and one
    entry a stream is enough, however often it leaves memory and comes back. Entries of streams that
    are gone stay until they come due, or until they are more than the others.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._heap: list[tuple[int, int]] = []
        self._watched: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, stream: Stream) -> None:
        """Watch a stream, if it expires at all."""
        if stream.deadline_ms is None or stream.number in self._watched:
            return
        if len(self._heap) > 2 * len(self._state.by_number) + _SPARE_ENTRIES:
            self._rebuild()
        if stream.number not in self._watched:
            self._watched.add(stream.number)
            heappush(self._heap, (stream.deadline_ms, stream.number))

    def take_due(self, now_ms: int, streams_max: int) -> list[Stream]:
        """Some streams whose deadline has passed; they are watched no longer."""
        due: list[Stream] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < streams_max:
            _, number = heappop(self._heap)
            stream = self._state.by_number.get(number)
            if stream is not None and stream.deadline_ms is not None:
                if stream.deadline_ms > now_ms:
                    heappush(self._heap, (stream.deadline_ms, number))
                    continue
                due.append(stream)
            self._watched.discard(number)
        return due

    def _rebuild(self) -> None:
        self._heap = [
            (stream.deadline_ms, stream.number)
            for stream in self._state.by_number.values()
            if stream.deadline_ms is not None
        ]
        heapify(self._heap)
        self._watched = {number for _, number in self._heap}
