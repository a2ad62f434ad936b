"""Turns for long responses, and a budget for the bytes that clients have not read yet.

A response that is longer than a piece is sent piece by piece, and every piece is a turn. All
responses of a server wait for their turns in one queue, which is worked off for a few milliseconds
in each round of the event loop. So appends and short requests do not wait until everybody who
catches up has been served, however many they are.

Rules:

- Whoever is paused waits for its client to read, not for a turn.
- While clients that do not read hold up more bytes than the budget, nobody gets a turn.
- Then those that have not read for longest are disconnected, until half of the budget is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock

_log = logging.getLogger(__name__)
# The stored bytes that are sent in one turn. Some clients get less, and a JSON message is whole.
PIECE_BYTES: Final = 64 * 1024
ROUND_S: Final = 0.003
# What a turn is taken to cost whose work is done after the round, by a task.
_TASK_S: Final = ROUND_S / 8
# How long a client may read nothing while there is no room for others.
PATIENCE_S: Final = 1.0
_CHECK_S: Final = 0.25


class Turns:
    """A fair queue of calls, some of which run in each round of the event loop."""

    def __init__(self, clock: Clock, unsent: Unsent) -> None:
        self._clock = clock
        self._unsent = unsent
        unsent.on_room = self._schedule
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._until_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, turn: Callable[[], None]) -> None:
        """Call `turn` after everybody who waits already."""
        self._waiting.append(turn)
        self._schedule()

    async def next(self) -> None:
        """Wait for a turn, in a task."""
        granted = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if not granted.done():
                self._until_s -= _TASK_S
                granted.set_result(None)

        self.add(grant)
        await granted

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled and not self._unsent.is_full:
            self._scheduled = True
            self._clock.call_soon(self._round)

    def _round(self) -> None:
        waiting, monotonic_s = self._waiting, self._clock.monotonic_s
        self._until_s = monotonic_s() + ROUND_S
        while waiting and not self._unsent.is_full:
            try:
                waiting.popleft()()
            except Exception:  # noqa: BLE001 (a defect in one response must not stop the others)
                _log.exception("a response could not be continued")
            if monotonic_s() >= self._until_s:
                break
        self._scheduled = False
        self._schedule()


class StalledClient(Protocol):
    """A connection whose client does not read."""

    def abort(self) -> None:
        """Disconnect, and drop what is not sent."""


class Unsent:
    """The bytes that wait for clients that do not read, over all connections.

    A connection counts from when the kernel takes no more until most of its bytes are sent. The
    kernel's own buffers do not count.
    """

    def __init__(self, clock: Clock, bytes_max: int) -> None:
        self._clock = clock
        self._bytes_max = bytes_max
        # Bytes, and since when; those that have not read for longest come first.
        self._stalled: dict[StalledClient, tuple[int, float]] = {}
        self._is_checking = False
        self.on_room: Callable[[], None] = lambda: None
        self.size_bytes = 0
        self.disconnects = 0

    @property
    def is_full(self) -> bool:
        return self.size_bytes > self._bytes_max

    def add(self, client: StalledClient, size_bytes: int) -> None:
        """A client has stopped reading, and this much waits for it."""
        self.remove(client)
        self._stalled[client] = size_bytes, self._clock.monotonic_s()
        self.size_bytes += size_bytes
        if self.is_full and not self._is_checking:
            self._is_checking = True
            self._clock.call_later(_CHECK_S, self._check)

    def remove(self, client: StalledClient) -> None:
        """The client reads again, or is gone."""
        found = self._stalled.pop(client, None)
        if found is not None:
            was_full = self.is_full
            self.size_bytes -= found[0]
            if was_full and not self.is_full:
                self.on_room()

    def _check(self) -> None:
        self._is_checking = False
        if not self.is_full:
            return
        size_bytes, before = self.size_bytes, self.disconnects
        latest_s = self._clock.monotonic_s() - PATIENCE_S
        for client, (_, since_s) in list(self._stalled.items()):
            if since_s > latest_s or self.size_bytes <= self._bytes_max // 2:
                break
            self.remove(client)
            self.disconnects += 1
            client.abort()
        if self.disconnects > before:
            _log.warning(
                "disconnected %d clients that did not read: %d bytes waited for such clients, and "
                "unsent_bytes_max is %d",
                self.disconnects - before,
                size_bytes,
                self._bytes_max,
            )
        if self.is_full:
            self._is_checking = True
            self._clock.call_later(_CHECK_S, self._check)
