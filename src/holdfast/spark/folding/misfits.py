"""What does not fit a fold."""

from __future__ import annotations


class MisfitError(Exception):
    """A message, or a snapshot, that the fold cannot take.

    `index` says which of the messages that were given it is.
    """

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.index = index
