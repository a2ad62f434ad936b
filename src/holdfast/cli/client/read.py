"""`holdfast read | tail`: print a stream's messages on stdout.

Bytes are printed as they are, JSON and framed messages one a line. With `--json` every message is a
document with its offsets.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Annotated, Any, Final

from cyclopts import Parameter

from holdfast.cli.client.connection import StreamName, check_framing_flag, client_command
from holdfast.cli.client.output import Output, one_line, payload_document
from holdfast.cli.terminal import Advance, progress
from holdfast.client import START, Client, Message, Reading, Stream
from holdfast.client.messages import Assembler
from holdfast.errors import InvalidOffsetError, SettingsError
from holdfast.protocol.content import JSON, media_type

TAIL_MESSAGES: Final = 10

Follow = Annotated[
    bool,
    Parameter(
        name=["--follow", "-f"],
        negative="",
        help="Continue as messages arrive, until it is closed.",
    ),
]
ToEnd = Annotated[
    bool,
    Parameter(
        name=["--exit", "-e"], negative="", help="Stop at the end. The default without --follow."
    ),
]
Framed = Annotated[str | None, Parameter(help="length-prefixed: each message follows its length.")]


@client_command
async def read(
    client: Client,
    output: Output,
    stream: StreamName,
    /,
    *,
    from_: Annotated[
        str,
        Parameter(
            name="--from",
            help="Offset to start at: -1 (the start), now, or an earlier one. (default -1)",
            allow_leading_hyphen=True,
        ),
    ] = START,
    count: Annotated[int | None, Parameter(help="Stop after this many messages.")] = None,
    until: Annotated[str | None, Parameter(help="Stop at this offset.")] = None,
    follow: Follow = False,
    exit_: ToEnd = False,
    framing: Framed = None,
) -> None:
    """Print a stream from an offset on."""
    if count is not None and count < 0:
        raise SettingsError("--count must not be negative")
    source = _source(client, stream, framing)
    live = follow and not exit_
    reading = source.read(from_, live=live)
    total_bytes = None if live else await _size(source, from_)
    with progress("reading", total_bytes, enabled=total_bytes is not None) as advance:
        printer = _Printer(output, reading, framing, advance)
        if count is None and until is None and framing is None and not output.as_json:
            await printer.print_batches()
        else:
            await printer.print(count, until)
    output.notice(f"next offset {reading.offset}")


@client_command
async def tail(
    client: Client,
    output: Output,
    stream: StreamName,
    /,
    *,
    number: Annotated[
        int, Parameter(name=["--number", "-n"], help="Number of last messages. (default 10)")
    ] = TAIL_MESSAGES,
    follow: Follow = False,
    exit_: ToEnd = False,
    framing: Framed = None,
) -> None:
    """Print the last messages of a stream, and with -f every later one."""
    if number < 0:
        raise SettingsError("--number must not be negative")
    source = _source(client, stream, framing)
    start: dict[str, Any] = {"last": number} if number else {"offset": "now"}
    reading = source.read(**start, live=follow and not exit_)
    printer = _Printer(output, reading, framing)
    if framing is None:
        await printer.print(None, None)
    else:
        await printer.print_last(number)
    output.notice(f"next offset {reading.offset}")


def _source(client: Client, stream: str, framing: str | None) -> Stream:
    check_framing_flag(framing)
    return client.stream(stream, framing=framing)  # type: ignore[arg-type] # checked


async def _size(source: Stream, start: str) -> int | None:
    """How many bytes there are to read, if a progress bar is useful and offsets count bytes.

    It is useful only if the data goes to a file: on a terminal the data itself shows the progress.
    """
    if not sys.stderr.isatty() or not stat.S_ISREG(os.fstat(1).st_mode):
        return None
    head = await source.head()
    begin = "0" if start == START else start
    if not (head.next_offset.isdigit() and begin.isdigit()):
        return None
    return max(0, int(head.next_offset) - int(begin))


class _Printer:
    def __init__(
        self,
        output: Output,
        reading: Reading,
        framing: str | None,
        advance: Advance | None = None,
    ) -> None:
        self._output = output
        self._reading = reading
        self._framed = framing is not None
        self._advance = advance

    async def print(self, count: int | None, until: str | None) -> None:
        """Print messages, up to a count or an offset."""
        if count == 0:
            return
        async with self._reading as reading:
            left = count
            async for messages in reading.message_lists():
                until = _padded(until, messages[0].next_offset)
                wanted = _up_to(messages[:left], until)
                self._print(wanted)
                if len(wanted) < len(messages):
                    reading.offset = messages[len(wanted)].offset
                    return
                left = None if left is None else left - len(wanted)
                if left == 0 or _is_reached(wanted, until):
                    return

    async def print_last(self, number: int) -> None:
        """Print the last framed messages: servers count appends, which may hold several."""
        held: list[Message] | None = []
        async with self._reading as reading:
            async for messages in reading.message_lists():
                if held is None:
                    self._print(messages)
                    continue
                held = (held + messages)[-number:] if number else messages
                if reading.up_to_date:
                    self._print(held)
                    held = None
        self._print(held or [])

    async def print_batches(self) -> None:
        """Print whole responses, which is fastest if message boundaries do not matter."""
        assembler = Assembler(None)
        async with self._reading as reading:
            async for batch in reading.batches():
                self._print(assembler.feed(batch))

    def _print(self, messages: list[Message]) -> None:
        content_type = self._reading.content_type
        media = media_type(content_type)
        payloads = [message.payload for message in messages]
        if self._output.as_json:
            for message in messages:
                self._output.document(payload_document(message, content_type))
        elif media == JSON:
            self._output.write(b"".join([one_line(payload) + b"\n" for payload in payloads]))
        else:
            end = b"\n" if self._framed else b""
            self._output.write_payload(b"".join([each + end for each in payloads]), content_type)
        if self._advance is not None:
            self._advance(sum(map(len, payloads)) + (len(payloads) if media == JSON else 0))


def _padded(until: str | None, offset: str) -> str | None:
    """`until` as this stream's offsets are printed; raises if it is certainly not one."""
    if until is None or not offset.isdigit():
        return until
    if not (until.isascii() and until.isdigit() and len(until) <= len(offset)):
        raise InvalidOffsetError(
            f"--until {until!r} is not an offset: pass a next_offset, such as {offset}."
        )
    return until.zfill(len(offset))


def _up_to(messages: list[Message], until: str | None) -> list[Message]:
    if until is None:
        return messages
    # The protocol guarantees that offsets sort as text.
    return [message for message in messages if message.next_offset <= until]


def _is_reached(messages: list[Message], until: str | None) -> bool:
    return until is not None and bool(messages) and messages[-1].next_offset >= until
