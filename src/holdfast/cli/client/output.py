"""What commands print: data on stdout, everything else on stderr.

With `--json` stdout has one JSON document a line, and an error is a JSON document on stderr. JSON
that a stream holds is in it as it is stored: a number is not made smaller by passing through here.
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
# In JSON text a line break is white space between tokens, never data.
_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


class Output:
    """Where a command's words and data go."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self._quiet = quiet
        self._stdout = sys.stdout.buffer
        self._at_line_start = True
        self.retries = Retries(self.notice, SystemClock())

    @property
    def on_terminal(self) -> bool:
        """Whether somebody looks at the data itself."""
        return sys.stdout.isatty()

    def write(self, data: bytes) -> None:
        """Data as it is, at once: whoever reads a pipe sees it when it comes."""
        if not data:
            return
        try:
            left = memoryview(data)
            while left:
                # With PYTHONUNBUFFERED it is the file itself, which may take a part only.
                left = left[self._stdout.write(left) :]
            self._stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise HoldfastError(f"stdout cannot be written: {error.strerror}.") from None
        self._at_line_start = data.endswith(b"\n")

    def write_payload(self, data: bytes, content_type: str) -> None:
        """Data of a stream, unless it would upset the terminal that it goes to."""
        if self.on_terminal and b"\0" in data and not is_text(media_type(content_type)):
            raise HoldfastError(
                "This is binary data, which could upset the terminal. "
                "Send it elsewhere (> FILE), or print it with --json."
            )
        self.write(data)

    def document(self, document: Mapping[str, Any]) -> None:
        """One JSON document on a line of its own."""
        self.write(msgspec.json.encode(document) + b"\n")

    def say(self, document: Mapping[str, Any], line: str) -> None:
        """The result of a command that changes something: a document, or a notice."""
        if self.as_json:
            self.document(document)
        else:
            self.notice(line)

    def show(self, document: Mapping[str, Any], text: str) -> None:
        """The result of a command that asks for something."""
        if self.as_json:
            self.document(document)
        else:
            self.write(text.encode() + b"\n")

    def name(self, text: str) -> str:
        """What somebody called a stream, which a terminal must not obey; elsewhere as it is."""
        return printable(text) if self.on_terminal else text

    def notice(self, line: str) -> None:
        """Something for people, on stderr."""
        if not self._quiet:
            say(line)

    def failure(self, error: HoldfastError) -> None:
        """Why the command failed; never quiet."""
        self.end_line()
        say(failure_line(error.code, error.message, as_json=self.as_json))

    def end_line(self) -> None:
        """On a terminal, let what comes next start on a line of its own."""
        if self.on_terminal and not self._at_line_start:
            self.write(b"\n")

    def flush(self) -> None:
        """Everything out."""
        self.end_line()
        self._stdout.flush()


class Retries:
    """Says that something is tried again, and in the end how often it was."""

    def __init__(self, notice: Callable[[str], None], clock: Clock) -> None:
        self._notice = notice
        self._clock = clock
        self._until_s = 0.0
        self._count = 0
        self._said = ""

    def note(self, error: HoldfastError, delay_s: float) -> None:
        """Something went wrong, and is tried again soon; the same trouble is told once.

        Requests that are under way together fail together: one of them speaks for all.
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
        """A sentence to put behind the error that it ended with."""
        if not self._count:
            return ""
        return f" Tried again {self._count} time{'' if self._count == 1 else 's'}."


def payload_document(message: Message, content_type: str) -> dict[str, Any]:
    """A message as `--json` prints it: `json`, `text` or `base64`, whichever it is."""
    document: dict[str, Any] = {"offset": message.offset, "next_offset": message.next_offset}
    return document | payload_field(message.payload, content_type)


def payload_field(payload: bytes, content_type: str) -> dict[str, Any]:
    """The bytes under the name that says how they are written."""
    media = media_type(content_type)
    try:
        if media == JSON:
            _check_json(payload)
            payload.decode()
            return {"json": msgspec.Raw(one_line(payload).strip())}
        if is_text(media):
            return {"text": payload.decode()}
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # A snapshot can be anything, whatever its type says.
    return {"base64": b64encode(payload).decode()}


def one_line(json_text: bytes) -> bytes:
    """JSON text without line breaks, and otherwise as it is."""
    return json_text.translate(_BREAKS)


def time_text(at_ms: int | None) -> str:
    """A time for people, in UTC."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
