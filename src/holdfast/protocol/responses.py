"""Responses in a proxy stream: which frames belong to which, and how each of them ended.

Start (S) → Data (D)* → Complete (C) | Abort (A) | Error (E), once for each response. Frames that
come in another order are those of a damaged stream, or of one that was read from its middle.
"""

from __future__ import annotations

from enum import Enum

from holdfast.errors import BadAnswerError
from holdfast.protocol.frames import (
    ABORT,
    COMPLETE,
    ERROR,
    START,
    TERMINAL,
    Frame,
)


class Outcome(Enum):
    """How a response ended."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    FAILED = "failed"
    # Not at all, so far.
    OPEN = "open"


OUTCOMES = {COMPLETE: Outcome.COMPLETE, ABORT: Outcome.ABORTED, ERROR: Outcome.FAILED}


class ResponseOrder:
    """Checks that every response begins once, ends once, and has its data in between.

    `is_whole` is for a stream that is read from its very start; otherwise responses may be met in
    their middle.
    """

    def __init__(self, *, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self.open: set[int] = set()
        self._ended: set[int] = set()

    def take(self, frame: Frame) -> None:
        """Take note of a frame; raises if it must not be where it is."""
        response_id = frame.response_id
        if frame.type == START:
            if response_id in self.open or response_id in self._ended:
                raise BadAnswerError(f"Response {response_id} has two Start frames.")
            self.open.add(response_id)
        elif response_id in self._ended:
            raise BadAnswerError(f"Response {response_id} has a frame behind its end.")
        elif response_id not in self.open and self._is_whole:
            raise BadAnswerError(f"Response {response_id} has a frame before its Start frame.")
        if frame.type in TERMINAL:
            self.open.discard(response_id)
            self._ended.add(response_id)
