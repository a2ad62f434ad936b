"""Live readers: who waits for which stream, and how they are woken.

A pass over a stream's readers yields to the event loop every `WAKES_PER_ROUND` readers. Each reader
knows its own offset and takes what it lacks, so it does not matter if more was published while the
pass was under way: those who were already served are served again in another pass.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.engine.stream import Stream

_log = logging.getLogger(__name__)
WAKES_PER_ROUND: Final = 32


class Reader(Protocol):
    """Somebody who waits for a stream to change."""

    def wake(self) -> None:
        """The stream grew, closed or is gone."""

    def finish(self) -> None:
        """The server is shutting down: say goodbye."""


class Readers:
    """The live readers of one stream."""

    __slots__ = ("_again", "_clock", "_members", "_pass")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._members: dict[Reader, None] = {}
        self._pass: list[Reader] | None = None
        self._again = False

    def __len__(self) -> int:
        return len(self._members)

    def add(self, reader: Reader) -> None:
        """Wake this reader from now on."""
        self._members[reader] = None

    def remove(self, reader: Reader) -> None:
        """Wake it no more; harmless if it is not there."""
        self._members.pop(reader, None)

    def wake(self) -> None:
        """Wake everyone, in rounds."""
        if self._pass is not None:
            self._again = True
            return
        self._pass = list(self._members)
        self._round(0)

    def _round(self, at: int) -> None:
        readers = self._pass
        assert readers is not None
        members = self._members
        for reader in readers[at : at + WAKES_PER_ROUND]:
            if reader in members:
                try:
                    reader.wake()
                except Exception:  # noqa: BLE001 (a defect in one reader must not stop the others)
                    _log.exception("a live reader could not be woken")
                    self.remove(reader)
        at += WAKES_PER_ROUND
        if at < len(readers):
            self._clock.call_soon(self._round, at)
            return
        self._pass = None
        if self._again:
            self._again = False
            self._clock.call_soon(self.wake)


class LiveReaders:
    """All live readers of a shard."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all: dict[Reader, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, stream: Stream, reader: Reader) -> None:
        """Wake this reader whenever the stream changes."""
        self._all[reader] = None
        if stream.readers is None:
            stream.readers = Readers(self._clock)
        stream.readers.add(reader)

    def attend(self, stream: Stream, watcher: Reader) -> None:
        """Wake somebody of ours, who is no client: they do not count, and say no goodbye."""
        if stream.readers is None:
            stream.readers = Readers(self._clock)
        stream.readers.add(watcher)

    def remove(self, stream: Stream, reader: Reader) -> None:
        """Forget the reader; harmless if it is not there."""
        self._all.pop(reader, None)
        if stream.readers is not None:
            stream.readers.remove(reader)
            if not stream.readers:
                stream.readers = None

    def finish_all(self) -> None:
        """Have every reader say goodbye."""
        for reader in list(self._all):
            reader.finish()
