"""Printing responses: their bytes, the data of their events, or frames as JSON documents."""

from __future__ import annotations

import asyncio
import shlex
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Final

from holdfast.cli.client.output import Output
from holdfast.cli.terminal import EXIT_FAILED
from holdfast.client import Frame, FrameReading, Outcome, ResponseReading
from holdfast.errors import (
    ConflictError,
    GoneError,
    HoldfastError,
    NotFoundError,
    UnauthorizedError,
)
from holdfast.protocol.content import JSON, is_text, media_type
from holdfast.protocol.frames import DATA, ERROR, decode_error, decode_start
from holdfast.protocol.frames import START as START_FRAME

# After these errors the response cannot be followed any further with this URL.
_LOST: Final = (NotFoundError, ConflictError, GoneError, UnauthorizedError)
_NAMES: Final = {b"S": "start", b"D": "data", b"C": "complete", b"A": "abort", b"E": "error"}


@dataclass(frozen=True, slots=True)
class ResponseName:
    """How the command line names a response."""

    url: str
    session: str | None
    response_id: int

    def arguments(self) -> str:
        """The arguments that name it; a session id is less secret than a signed URL."""
        stream = (
            shlex.quote(self.url)
            if self.session is None
            else f"--session {shlex.quote(self.session)}"
        )
        return f"{stream} --response {self.response_id}"


async def print_response(
    output: Output,
    reading: ResponseReading,
    name: ResponseName,
    *,
    content_type: str = "",
    sse: bool = False,
) -> int:
    """Print one response until it ends; if that is interrupted, say how to continue."""
    printer = _Printer(output, reading)
    try:
        async with reading:
            await (printer.print_events() if sse else printer.print_body(content_type))
    except (asyncio.CancelledError, HoldfastError) as error:
        if reading.outcome is Outcome.OPEN and not isinstance(error, _LOST):
            _say_how_to_continue(output, name, "--sse" if sse else printer.reached)
        raise
    if not output.as_json:
        output.end_line()
        what = f"response {name.response_id} {reading.outcome.value}"
        output.notice(f"{what}, next offset {reading.offset}")
    return EXIT_FAILED if reading.outcome is Outcome.ABORTED else 0


async def print_frames(output: Output, reading: FrameReading) -> None:
    """Print all frames of a stream, one JSON document a line."""
    types: dict[int, str] = {}
    async with reading:
        async for frame, offset in reading:
            number = frame.response_id
            types[number] = _type_in(frame) or types.get(number, "")
            output.document(_document(frame, offset, types[number]))


class _Printer:
    """Prints one response; `reached` is the flag to continue after what was printed."""

    def __init__(self, output: Output, reading: ResponseReading) -> None:
        self.reached = ""
        self._output = output
        self._reading = reading

    async def print_events(self) -> None:
        """Print the data of events, one a line, or with `--json` each event as a document."""
        output = self._output
        async for event in self._reading.events():
            if output.as_json:
                text = event.data.decode("utf-8", "replace")
                output.document({"event": event.kind, "data": text, "id": event.id})
            else:
                output.write(event.data + b"\n")

    async def print_body(self, content_type: str) -> None:
        """Print the body as it is, or with `--json` its frames."""
        output = self._output
        async for frame, offset in self._reading.frames():
            # Unknown if the read started after the beginning.
            content_type = _type_in(frame) or content_type
            if output.as_json:
                output.document(_document(frame, offset, content_type))
            elif frame.type == DATA:
                output.write_payload(frame.payload, content_type)
            self.reached = f"--from {offset}"


def _type_in(frame: Frame) -> str:
    if frame.type != START_FRAME:
        return ""
    return decode_start(frame.payload).headers.get("content-type", "")


def _document(frame: Frame, offset: str, content_type: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "frame": _NAMES[frame.type],
        "response_id": frame.response_id,
        "next_offset": offset,
    }
    if frame.type == START_FRAME:
        info = decode_start(frame.payload)
        return document | {"status": info.status, "headers": info.headers}
    if frame.type == DATA:
        return document | _data_field(frame.payload, content_type)
    if frame.type == ERROR:
        error = decode_error(frame.payload)
        return document | {"code": error.code, "message": error.message}
    return document


def _data_field(payload: bytes, content_type: str) -> dict[str, str]:
    """A piece of a body as text if it is valid UTF-8, else in base64."""
    media = media_type(content_type)
    try:
        if is_text(media) or media == JSON:
            return {"text": payload.decode()}
    except UnicodeDecodeError:
        pass
    return {"base64": b64encode(payload).decode()}


def _say_how_to_continue(output: Output, name: ResponseName, flags: str) -> None:
    output.end_line()
    follow = f"holdfast proxy follow {name.arguments()} {flags}".rstrip()
    output.notice(f"Response {name.response_id} is still being written. To follow it: {follow}")
    output.notice(f"To stop it: holdfast proxy abort {name.arguments()}")
