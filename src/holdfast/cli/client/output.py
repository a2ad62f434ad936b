"""What commands print: data on stdout, everything else on stderr.

With `--json` stdout has one JSON document a line, and an error is a JSON document on stderr.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from holdfast.client import Message
from holdfast.errors import HoldfastError
from holdfast.protocol.content import JSON, is_text, media_type

__all__ = ["Output", "payload_document", "time_text"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class Output:
    """Where a command's words and data go."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self._quiet = quiet
        self._stdout = sys.stdout.buffer
        self._at_line_start = True

    @property
    def on_terminal(self) -> bool:
        """Whether somebody looks at the data itself."""
        return sys.stdout.isatty()

    def write(self, data: bytes) -> None:
        """Data as it is, at once: whoever reads a pipe sees it when it comes."""
        if data:
            self._stdout.write(data)
            self._stdout.flush()
            self._at_line_start = data.endswith(b"\n")

    def document(self, document: Mapping[str, Any]) -> None:
        """One JSON document on a line of its own."""
        self.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")

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

    def notice(self, line: str) -> None:
        """Something for people, on stderr."""
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)

    def failure(self, error: HoldfastError) -> None:
        """Why the command failed; never quiet."""
        self.end_line()
        message = " ".join(error.message.split())
        if self.as_json:
            said = {"error": {"code": error.code, "message": message}}
            print(json.dumps(said, ensure_ascii=False), file=sys.stderr, flush=True)
        else:
            print("holdfast:", message, file=sys.stderr, flush=True)

    def end_line(self) -> None:
        """On a terminal, let what comes next start on a line of its own."""
        if self.on_terminal and not self._at_line_start:
            self.write(b"\n")

    def flush(self) -> None:
        """Everything out."""
        self.end_line()
        self._stdout.flush()


def payload_document(message: Message, content_type: str) -> dict[str, Any]:
    """A message as `--json` prints it: `json`, `text` or `base64`, whichever it is."""
    document: dict[str, Any] = {"offset": message.offset, "next_offset": message.next_offset}
    return document | payload_field(message.payload, content_type)


def payload_field(payload: bytes, content_type: str) -> dict[str, Any]:
    """The bytes under the name that says how they are written."""
    media = media_type(content_type)
    if media == JSON:
        return {"json": msgspec.json.decode(payload)}
    if is_text(media):
        try:
            return {"text": payload.decode()}
        except UnicodeDecodeError:
            pass
    return {"base64": b64encode(payload).decode()}


def time_text(at_ms: int | None) -> str:
    """A time for people, in UTC."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def size_text(size: float) -> str:
    """A size for people."""
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
