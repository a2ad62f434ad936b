"""`holdfast read | tail`: a stream's messages on stdout.

Bytes come as they are. Messages that have boundaries of their own (JSON, or framed by length) come
one a line. With `--json` every message is a document with its offsets.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Final

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output, one_line, payload_document
from holdfast.cli.client.streams import StreamName
from holdfast.cli.terminal import Bar, progress
from holdfast.client import START, Client, Message, Reading, Stream
from holdfast.client.messages import LENGTH_PREFIXED, Assembler
from holdfast.errors import InvalidOffsetError, SettingsError
from holdfast.protocol.content import JSON, media_type

TAIL_MESSAGES: Final = 10

Follow = Annotated[
    bool,
    Parameter(
        name=["--follow", "-f"], negative="", help="Go on as messages come, until it is closed."
    ),
]
ToEnd = Annotated[
    bool,
    Parameter(
        name=["--exit", "-e"], negative="", help="Stop at the end. The default without --follow."
    ),
]
Count = Annotated[int | None, Parameter(help="Stop after so many messages.")]
Framed = Annotated[
    str | None, Parameter(help="length-prefixed: the messages are behind their lengths.")
]


def read(
    stream: StreamName,
    /,
    *,
    from_: Annotated[
        str,
        Parameter(
            name="--from",
            help="Offset to start at: -1 (the start), now, or one from before. (default -1)",
            allow_leading_hyphen=True,
        ),
    ] = START,
    count: Count = None,
    until: Annotated[str | None, Parameter(help="Stop at this offset.")] = None,
    follow: Follow = False,
    exit_: ToEnd = False,
    framing: Framed = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Print a stream from an offset on."""
    _check(count, framing)

    async def work(client: Client, output: Output) -> None:
        source = _source(client, stream, framing)
        live = follow and not exit_
        reading = source.read(from_, live=live)
        with _progress(None if live else await _size(source, from_)) as bar:
            printer = _Printer(output, reading, framing, bar)
            if count is None and until is None and framing is None and not output.as_json:
                await printer.print_batches()
            else:
                await printer.print(count, until)
        output.notice(f"next offset {reading.offset}")

    return run(server, work)


def tail(
    stream: StreamName,
    /,
    *,
    number: Annotated[
        int, Parameter(name=["--number", "-n"], help="So many last messages. (default 10)")
    ] = TAIL_MESSAGES,
    follow: Follow = False,
    exit_: ToEnd = False,
    framing: Framed = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Print the last messages of a stream, and with -f those that come."""
    if number < 0:
        raise SettingsError("--number must not be negative")
    _check(None, framing)

    async def work(client: Client, output: Output) -> None:
        source = _source(client, stream, framing)
        live = follow and not exit_
        start: dict[str, Any] = {"last": number} if number else {"offset": "now"}
        reading = source.read(**start, live=live)
        printer = _Printer(output, reading, framing, None)
        if framing is None:
            await printer.print(None, None)
        else:
            await printer.print_last(number)
        output.notice(f"next offset {reading.offset}")

    return run(server, work)


def _check(count: int | None, framing: str | None) -> None:
    if count is not None and count < 0:
        raise SettingsError("--count must not be negative")
    if framing not in {None, LENGTH_PREFIXED}:
        raise SettingsError(f"--framing must be {LENGTH_PREFIXED}, not {framing!r}")


def _source(client: Client, stream: str, framing: str | None) -> Stream:
    return client.stream(stream, framing=framing)  # type: ignore[arg-type] # checked above


async def _size(source: Stream, start: str) -> int | None:
    """How many bytes there are to come, if somebody wants to know and offsets count them.

    The bar is for data that goes to a file. On the terminal the data itself shows how it goes, and
    so may the output of a program behind a pipe.
    """
    if not sys.stderr.isatty() or not stat.S_ISREG(os.fstat(1).st_mode):
        return None
    head = await source.head()
    begin = "0" if start == START else start
    if not (head.next_offset.isdigit() and begin.isdigit()):
        return None
    return max(0, int(head.next_offset) - int(begin))


def _progress(total_bytes: int | None) -> AbstractContextManager[Bar | None]:
    return nullcontext() if total_bytes is None else progress("reading", total_bytes)


class _Printer:
    """Prints a reading."""

    def __init__(
        self, output: Output, reading: Reading, framing: str | None, bar: Bar | None
    ) -> None:
        self._output = output
        self._reading = reading
        self._framed = framing is not None
        self._bar = bar

    async def print(self, count: int | None, until: str | None) -> None:
        """All of it, or up to a number of messages or an offset."""
        if count == 0:
            return
        async with self._reading as reading:
            left = count
            async for messages in reading.message_lists():
                _check_until(until, messages[0].next_offset)
                wanted = _up_to(messages[:left], until)
                self._print(wanted)
                if len(wanted) < len(messages):
                    reading.offset = messages[len(wanted)].offset
                    return
                left = None if left is None else left - len(wanted)
                if left == 0 or _is_reached(wanted, until):
                    return

    async def print_last(self, number: int) -> None:
        """The last messages where an append, which is what servers count, may hold several."""
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
        """Whole answers, which is fastest where only the bytes count."""
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
        if self._bar is not None:
            self._bar.advance(sum(map(len, payloads)) + (len(payloads) if media == JSON else 0))


def _check_until(until: str | None, offset: str) -> None:
    """Refuse what is no offset, where that can be seen: compared with one it means nothing."""
    if until is None or not offset.isdigit():
        return
    if not (until.isdigit() and len(until) == len(offset)):
        raise InvalidOffsetError(
            f"--until {until!r} is no offset: give back a next_offset, such as {offset}."
        )


def _up_to(messages: list[Message], until: str | None) -> list[Message]:
    if until is None:
        return messages
    # Offsets sort as text: that is what the protocol promises of them.
    return [message for message in messages if message.next_offset <= until]


def _is_reached(messages: list[Message], until: str | None) -> bool:
    return until is not None and bool(messages) and messages[-1].next_offset >= until
