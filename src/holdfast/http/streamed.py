"""An answer whose body comes in pieces, as fast as its client reads and no faster."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.http.errors import answer_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.http.exchange import Slot

_log = logging.getLogger(__name__)


class StreamedAnswer:
    """Sends pieces to a slot; one task has one of these."""

    def __init__(self, slot: Slot, fields: bytes) -> None:
        self._slot = slot
        self._fields = fields
        self._begun = False
        self._resumed = asyncio.Event()

    async def send(self, pieces: AsyncIterator[bytes]) -> None:
        """Send everything; what fails before the first piece is an answer of its own."""
        slot = self._slot
        slot.on_resume = self._resumed.set
        try:
            async for piece in pieces:
                if not self._begun:
                    self._begun = True
                    slot.begin(200, self._fields)
                slot.write(piece)
                while slot.paused:
                    self._resumed.clear()
                    await self._resumed.wait()
        except HoldfastError as error:
            self._fail(error)
            return
        slot.on_resume = slot.on_gone = None
        if not self._begun:
            slot.answer(200, self._fields)
        else:
            slot.end()

    def _fail(self, error: HoldfastError) -> None:
        slot = self._slot
        slot.on_resume = slot.on_gone = None
        if self._begun:
            # The client must not take what it has for the whole.
            _log.error("an answer breaks off: %s", error.message)
            slot.abort()
        else:
            answer_error(slot, error)
