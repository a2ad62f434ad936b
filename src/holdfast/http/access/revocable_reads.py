"""Live reads end when what admitted them is withdrawn.

When tokens or keys have changed, every live read is checked again, by the rules of a new request
but without rate limits. The reader is told as far as its response allows: with 401 or 403 if it has
not begun, else by its end, and the error comes when it reconnects.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, ref

from holdfast.errors import HoldfastError
from holdfast.http.responses import respond_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.clock import Clock
    from holdfast.http.access.scopes import Identity
    from holdfast.http.exchange import Request, Slot

# Reads checked in one round of the event loop: a JWT's signature takes tens of microseconds.
_ROUND_READS: Final = 100


class RevocableReads:
    """The live reads under way; a read leaves by itself once its slot is gone."""

    def __init__(self, clock: Clock, check: Callable[[Request], Identity]) -> None:
        self._clock = clock
        self._check = check
        self._requests: WeakKeyDictionary[Slot, Request] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, slot: Slot, request: Request) -> None:
        """Check this read whenever tokens or keys change."""
        self._requests[slot] = request

    def check_all(self) -> None:
        """Tokens or keys have changed."""
        self._check_some(iter(list(self._requests.items())))

    def _check_some(self, reads: Iterator[tuple[Slot, Request]]) -> None:
        checked = 0
        for slot, request in islice(reads, _ROUND_READS):
            self._check_one(slot, request)
            checked += 1
        if checked == _ROUND_READS:
            self._clock.call_soon(self._check_some, reads)

    def _check_one(self, slot: Slot, request: Request) -> None:
        if slot.on_gone is None:
            # It has ended.
            return
        try:
            identity = self._check(request)
        except HoldfastError as error:
            _end(slot, error)
            return
        was, request.identity = request.identity, identity
        expires_at_s = identity.expires_at_s
        if expires_at_s is not None and (was is None or was.expires_at_s != expires_at_s):
            # It started with another end in mind.
            left_s = max(0.0, expires_at_s - self._clock.now_ms() / 1000)
            self._clock.call_later(left_s, self._check_late, ref(slot))

    def _check_late(self, reference: ref[Slot]) -> None:
        slot = reference()
        if slot is not None:
            request = self._requests[slot]
            # If it is too early after all, because the clock was set back, come again.
            request.identity = None
            self._check_one(slot, request)


def _end(slot: Slot, error: HoldfastError) -> None:
    """End a live read as if its client had left, except that the client is told."""
    assert slot.on_gone is not None, "a live read can be left"
    slot.on_gone()
    slot.on_gone = slot.on_resume = None
    if slot.has_begun:
        slot.end()
    else:
        respond_error(slot, error)
