"""The output of commands: data on stdout, everything else on stderr.

With `--json` stdout has one JSON document a line, and errors are JSON on stderr. JSON from streams
is copied as stored, so that numbers keep their precision.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from holdfast.cli.terminal import failure_line, printable, say
from holdfast.client import Message
from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError
from holdfast.protocol.content import JSON, is_text, media_type

_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
# In JSON text line breaks are only white space between tokens.
_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


class Output:
    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self._quiet = quiet
        self._stdout = sys.stdout.buffer
        self._at_line_start = True
        self.retries = Retries(self.notice, SystemClock())

    @property
    def on_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return sys.stdout.isatty()

    def write(self, data: bytes) -> None:
        """Write and flush data, so that a reader of a pipe sees it at once."""
        if not data:
            return
        try:
            left = memoryview(data)
            while left:
                # With PYTHONUNBUFFERED this is a raw file, which may accept only a part.
                left = left[self._stdout.write(left) :]
            self._stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise HoldfastError(f"stdout cannot be written: {error.strerror}.") from None
        self._at_line_start = data.endswith(b"\n")

    def write_payload(self, data: bytes, content_type: str) -> None:
        """Write data of a stream; raise if it is binary and would go to a terminal."""
        if self.on_terminal and b"\0" in data and not is_text(media_type(content_type)):
            raise HoldfastError(
                "This is binary data, which could garble the terminal. "
                "Redirect it (> FILE), or print it with --json."
            )
        self.write(data)

    def document(self, document: Mapping[str, Any]) -> None:
        self.write(msgspec.json.encode(document) + b"\n")

    def say(self, document: Mapping[str, Any], line: str) -> None:
        """Report what a command changed: a document with `--json`, else a notice."""
        if self.as_json:
            self.document(document)
        else:
            self.notice(line)

    def show(self, document: Mapping[str, Any], text: str) -> None:
        """Print what a command asked for: a document with `--json`, else text."""
        if self.as_json:
            self.document(document)
        else:
            self.write(text.encode() + b"\n")

    def name(self, text: str) -> str:
        """A stream's name, without control characters if it goes to a terminal."""
        return printable(text) if self.on_terminal else text

    def notice(self, line: str) -> None:
        """Print a line for people on stderr, unless `--quiet`."""
        if not self._quiet:
            say(line)

    def failure(self, error: HoldfastError) -> None:
        """Print why the command failed, even with `--quiet`."""
        self.end_line()
        say(failure_line(error.code, error.message, as_json=self.as_json))

    def end_line(self) -> None:
        """On a terminal, start a new line if the data did not end with one."""
        if self.on_terminal and not self._at_line_start:
            self.write(b"\n")

    def flush(self) -> None:
        self.end_line()
        self._stdout.flush()


class Retries:
    """Reports retries as notices, and counts them."""

    def __init__(self, notice: Callable[[str], None], clock: Clock) -> None:
        self._notice = notice
        self._clock = clock
        self._until_s = 0.0
        self._count = 0
        self._said = ""

    def note(self, error: HoldfastError, delay_s: float) -> None:
        """Report a retry; the error is named once if it repeats.

        Concurrent requests fail together, so one notice stands for all of them.
        """
        now_s = self._clock.monotonic_s()
        if error.message == self._said and now_s < self._until_s:
            return
        self._until_s = now_s + delay_s
        said = "" if error.message == self._said else f"{error.message} "
        self._notice(f"{said}Trying again in {delay_s:.1f} s.")
        self._said = error.message
        self._count += 1

    def summary(self) -> str:
        """A sentence to append to the final error."""
        if not self._count:
            return ""
        return f" Tried again {self._count} time{'' if self._count == 1 else 's'}."


def payload_document(message: Message, content_type: str) -> dict[str, Any]:
    """A message as `--json` prints it, with its payload as `json`, `text` or `base64`."""
    document: dict[str, Any] = {"offset": message.offset, "next_offset": message.next_offset}
    return document | payload_field(message.payload, content_type)


def payload_field(payload: bytes, content_type: str) -> dict[str, Any]:
    """A payload under the name of its encoding."""
    media = media_type(content_type)
    try:
        if media == JSON:
            _check_json(payload)
            payload.decode()
            return {"json": msgspec.Raw(one_line(payload).strip())}
        if is_text(media):
            return {"text": payload.decode()}
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # The content of a snapshot need not match its type.
    return {"base64": b64encode(payload).decode()}


def one_line(json_text: bytes) -> bytes:
    return json_text.translate(_BREAKS)


def time_text(at_ms: int | None) -> str:
    """A time in UTC, as people read it."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
