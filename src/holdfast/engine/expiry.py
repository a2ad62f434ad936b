"""Expiry without scanning: a heap of deadlines, corrected lazily when one comes due."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.engine.state import State, Stream

_SPARE_ENTRIES: Final = 1024


class ExpiryQueue:
    """Streams with a deadline, soonest first.

    A renewal does not touch the heap: an entry that comes due too early is pushed again with the
    deadline the stream has by then. Deadlines only ever move later, so none is missed. Entries of
    streams that are gone stay until they come due, or until they are more than the others.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, stream: Stream) -> None:
        """Watch a stream, if it expires at all."""
        if stream.deadline_ms is None:
            return
        if len(self._heap) > 2 * len(self._state.by_number) + _SPARE_ENTRIES:
            self._rebuild()
        heappush(self._heap, (stream.deadline_ms, stream.number))

    def take_due(self, now_ms: int, streams_max: int) -> list[Stream]:
        """Some streams whose deadline has passed; they are watched no longer."""
        due: list[Stream] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < streams_max:
            _, number = heappop(self._heap)
            stream = self._state.by_number.get(number)
            if stream is None or stream.deadline_ms is None:
                continue
            if stream.deadline_ms > now_ms:
                heappush(self._heap, (stream.deadline_ms, number))
            else:
                due.append(stream)
        return due

    def _rebuild(self) -> None:
        self._heap = [
            (stream.deadline_ms, stream.number)
            for stream in self._state.by_number.values()
            if stream.deadline_ms is not None
        ]
        heapify(self._heap)
