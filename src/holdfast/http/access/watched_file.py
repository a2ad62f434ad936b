"""A file that is read again when it changes, so that tokens can be revoked without a restart."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from holdfast.errors import SettingsError

_log = logging.getLogger(__name__)
FILE_BYTES_MAX: Final = 33_554_432
T = TypeVar("T")
# What tells two states of a file apart; None if there is none.
_Stamp = tuple[int, int, int] | None


class WatchedFile(Generic[T]):
    """The parsed content of a file; a broken or missing one leaves the last good content."""

    def __init__(self, path: Path, parse: Callable[[bytes], T]) -> None:
        self._path = path
        self._parse = parse
        self._stamp = self._look()
        try:
            self.value = self._read()
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path} cannot be used: {_reason(error)}") from None

    def poll(self) -> bool:
        """Read the file again if it has changed; whether there is new content. Blocks on disk."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        # Before reading: should the file change meanwhile, the next poll sees another stamp.
        self._stamp = stamp
        try:
            self.value = self._read()
        except (OSError, ValueError) as error:
            _log.error(
                "%s has changed and cannot be used; what it held before still holds: %s",
                self._path,
                _reason(error),
            )
            return False
        _log.info("%s has changed and was read again", self._path)
        return True

    def _look(self) -> _Stamp:
        try:
            found = os.stat(self._path)  # noqa: PTH116 (as good, and one call less)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        with self._path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {FILE_BYTES_MAX} bytes")
        return self._parse(content)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
