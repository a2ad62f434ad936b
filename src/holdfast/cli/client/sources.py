"""The messages of `holdfast append`: arguments, files, stdin.

Rules:

- Reading stdin does not block the event loop: messages are sent meanwhile, and Ctrl-C works.
- On JSON and framed streams the line break is not part of the message. Elsewhere it is, so that
  nothing of the input is lost.
- JSON text is checked here, message by message, so that errors can name the line, and the text
  `1,2` does not become two messages.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import HoldfastError, InvalidJsonError, SettingsError
from holdfast.protocol.content import JSON

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.cli.client.output import Output


STDIN: Final = "-"
PIECE_BYTES: Final = 256 * 1024
_check_value: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Sources:
    """The messages of one command, in order: its arguments, then its files."""

    def __init__(
        self, messages: tuple[str, ...], files: list[str], *, lines: bool, framed: bool
    ) -> None:
        if "" in messages and not framed:
            raise SettingsError("a message is empty: there is nothing to append")
        if files.count(STDIN) > 1:
            raise SettingsError("stdin (-) can be read only once")
        self._messages = messages
        self._files = files or ([] if messages else [STDIN])
        self._lines = lines
        self._framed = framed
        # How much of the input was read so far.
        self.read_bytes = 0

    @property
    def total_bytes(self) -> int | None:
        """The size of the input, if it is known in advance."""
        try:
            found = [os.stat(0 if each == STDIN else each) for each in self._files]  # noqa: PTH116
        except OSError:
            return None
        if not all(stat.S_ISREG(each.st_mode) for each in found):
            return None
        return sum(each.st_size for each in found) or None

    def check(self) -> None:
        """Raise if a file cannot be read, before anything is sent."""
        for name in self._files:
            with _reading(name):
                _check_file(name)

    def invite(self, output: Output) -> None:
        """Tell a person at a terminal that input is expected."""
        if STDIN in self._files and os.isatty(0):
            output.notice("Reading from the terminal; end with Ctrl-D.")

    async def single(self, media: str) -> bytes:
        found = [message async for message in self.messages(media)]
        if len(found) != 1:
            raise SettingsError(f"--seq and --if-match are for a single message, not {len(found)}")
        return found[0]

    async def messages(self, media: str) -> AsyncGenerator[bytes, None]:
        for number, text in enumerate(self._messages, 1):
            message = text.encode()
            if media == JSON:
                _check_json(message, f"message {number}")
            yield message
        for name in self._files:
            with _reading(name):
                descriptor = _open(name)
                try:
                    async for message in self._cut(name, descriptor, media):
                        yield message
                finally:
                    os.close(descriptor)

    async def _cut(self, name: str, descriptor: int, media: str) -> AsyncIterator[bytes]:
        place = "stdin" if name == STDIN else name
        if not self._lines:
            content = b"".join([piece async for piece in self._pieces(descriptor)])
            if media == JSON and content.strip():
                _check_json(content, place)
                yield content
            elif content and media != JSON:
                yield content
            return
        number = 0
        async for line in _lines_of(self._pieces(descriptor)):
            number += 1
            message = self._message(line, media)
            if media == JSON and message:
                _check_json(message, f"line {number} of {place}")
            if message or (self._framed and media != JSON):
                yield message

    def _message(self, line: bytes, media: str) -> bytes:
        if media == JSON:
            return line.strip()
        return line.removesuffix(b"\n").removesuffix(b"\r") if self._framed else line

    async def _pieces(self, descriptor: int) -> AsyncIterator[bytes]:
        while True:
            await _readable(descriptor)
            piece = os.read(descriptor, PIECE_BYTES)
            self.read_bytes += len(piece)
            if not piece:
                return
            yield piece


def _open(name: str) -> int:
    """A new descriptor, also for stdin, so that closing it does no harm."""
    return os.dup(0) if name == STDIN else os.open(name, os.O_RDONLY | os.O_CLOEXEC)


def _check_file(name: str) -> None:
    """Raise what opening the file would raise, without opening it: that could end a pipe."""
    if name == STDIN:
        if sys.stdin is None:
            raise HoldfastError("There is no stdin to read from.")
    elif not os.access(name, os.R_OK):
        # Raises the more exact error if there is no such file.
        Path(name).stat()
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    elif Path(name).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = "stdin" if name == STDIN else name
        raise HoldfastError(f"{place} cannot be read: {error.strerror}.") from None


async def _readable(descriptor: int) -> None:
    """Wait until there is data to read, or the end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        loop.add_reader(descriptor, wake)
    except PermissionError:
        # Regular files are always readable; let other tasks run.
        await asyncio.sleep(0)
        return
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def _lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines with their line breaks; the last may have none."""
    held: list[bytes] = []
    async for piece in pieces:
        # At LF only: a CR inside a line is data.
        first, *others = piece.split(b"\n")
        held.append(first)
        for part in others:
            yield b"".join((*held, b"\n"))
            held = [part]
    if any(held):
        yield b"".join(held)


def _check_json(text: bytes, place: str) -> None:
    try:
        if not text.isascii():
            text.decode()
        _check_value(text)
    except UnicodeDecodeError as error:
        raise InvalidJsonError(f"{place} is not UTF-8: {error}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidJsonError(f"{place} is not JSON: {error}.") from None
