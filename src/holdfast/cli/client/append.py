"""`holdfast append`: arguments, files and stdin into a stream.

Messages go out through an idempotent producer: a repeated request is never stored twice. With
`--producer` that holds across runs as well: the n-th message of the command has the sequence
number n, so a run that was killed can be started again with the same input, and what the server
has is passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output
from holdfast.cli.client.streams import StreamName
from holdfast.cli.progress import progress
from holdfast.client import Appended, Client, Producer, ProducerLimits, Stream
from holdfast.client.payloads import LENGTH_PREFIXED
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError
from holdfast.protocol.content import JSON, media_type

__all__ = ["append"]

STDIN: Final = "-"
Advance = Callable[[int], None]


def append(
    stream: StreamName,
    /,
    *messages: Annotated[str, Parameter(help="Messages, one each.", allow_leading_hyphen=True)],
    file: Annotated[
        list[Path] | None,
        Parameter(
            name=["--file"],
            negative="",
            help="File whose content is one message, or with --lines one each line; - is stdin. "
            "Can be given several times. Without messages and files stdin is read.",
        ),
    ] = None,
    lines: Annotated[
        bool,
        Parameter(
            negative="",
            help="One message a line. On JSON streams the line is JSON text, and empty ones are "
            "passed over; elsewhere its line break is part of it.",
        ),
    ] = False,
    producer: Annotated[
        str | None, Parameter(help="Producer id: the same input is stored once, however often run.")
    ] = None,
    epoch: Annotated[int, Parameter(help="Producer epoch. (default 0)")] = 0,
    claim: Annotated[
        bool, Parameter(negative="", help="Take the producer over if its epoch is stale.")
    ] = False,
    batch: Annotated[
        int | None,
        Parameter(
            help="Messages in one request. (default 1 with --producer, else 1000 on JSON streams)"
        ),
    ] = None,
    framing: Annotated[
        str | None, Parameter(help="length-prefixed: each message behind its length.")
    ] = None,
    close: Annotated[bool, Parameter(negative="", help="Close the stream at the end.")] = False,
    seq: Annotated[str | None, Parameter(help="Stream-Seq of a single message.")] = None,
    if_match: Annotated[
        str | None, Parameter(help="Only if the stream's ETag is this; a single message.")
    ] = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Append messages: arguments, files, or stdin."""
    _check(framing, batch)
    sources = _Sources(messages, [str(each) for each in file or ()], lines=lines)

    async def work(client: Client, output: Output) -> None:
        target = client.stream(stream, framing=framing)  # type: ignore[arg-type] # checked above
        media = media_type(await target.known_content_type())
        if seq is not None or if_match is not None:
            (single,) = sources.single(media)
            answer: Appended | None = await target.append(
                single, seq=seq, if_match=if_match, close=close
            )
            count = 1
        else:
            writer = _writer(target, producer, epoch, batch, media, claims=claim)
            sources.invite(output)
            with progress("appending", sources.total_bytes) as bar:
                answer = await _send(writer, sources.messages(media, bar.advance), close=close)
            count = writer.acknowledged
        offset = "" if answer is None else answer.next_offset
        closed = close or (answer is not None and answer.closed)
        output.say(
            {"stream": stream, "messages": count, "next_offset": offset, "closed": closed},
            f"appended {count} message{'' if count == 1 else 's'} to {stream}"
            + (f", next offset {offset}" if offset else "")
            + (", and closed it" if close else ""),
        )

    return run(server, work)


def _check(framing: str | None, batch: int | None) -> None:
    if framing not in {None, LENGTH_PREFIXED}:
        raise SettingsError(f"--framing must be {LENGTH_PREFIXED}, not {framing!r}")
    if batch is not None and batch < 1:
        raise SettingsError("--batch must be at least 1")


def _writer(
    target: Stream, producer: str | None, epoch: int, batch: int | None, media: str, *, claims: bool
) -> Producer:
    size = batch or (1 if producer is not None or media != JSON else 1000)
    limits = ProducerLimits(
        batch_messages=size,
        # Which message is in which request must not depend on how fast the input comes.
        linger_s=3600.0 if producer is not None else 0.05,
        batch_bytes=4 * 1024 * 1024,
        joins=size > 1,
    )
    name = producer or f"append-{SystemClock().random_u64():016x}"
    return target.producer(name, epoch=epoch, auto_claim=claims, limits=limits)


async def _send(writer: Producer, messages: Iterator[bytes], *, close: bool) -> Appended | None:
    async with writer:
        for message in messages:
            await writer.append(message)
        if close:
            return await writer.close_stream()
        return await writer.flush()


class _Sources:
    """Where the messages come from."""

    def __init__(self, messages: tuple[str, ...], files: list[str], *, lines: bool) -> None:
        self._messages = messages
        self._files = files or ([] if messages else [STDIN])
        self._lines = lines

    @property
    def total_bytes(self) -> int | None:
        """How much there is, if that can be known before."""
        try:
            return sum(Path(each).stat().st_size for each in self._files if each != STDIN) or None
        except OSError:
            return None

    def invite(self, output: Output) -> None:
        """Say what is waited for, if it is a person."""
        if STDIN in self._files and sys.stdin.isatty():
            output.notice("Reading from the terminal; end with Ctrl-D.")

    def single(self, media: str) -> list[bytes]:
        """The only message, or an error."""
        found = list(self.messages(media, lambda _: None))
        if len(found) != 1:
            raise SettingsError(f"--seq and --if-match are for a single message, not {len(found)}")
        return found

    def messages(self, media: str, advance: Advance) -> Iterator[bytes]:
        """All messages, in order."""
        for message in self._messages:
            yield message.encode()
        for name in self._files:
            try:
                if name == STDIN:
                    yield from self._cut(sys.stdin.buffer, media, advance)
                else:
                    with Path(name).open("rb") as file:
                        yield from self._cut(file, media, advance)
            except OSError as error:
                raise HoldfastError(f"{name} cannot be read: {error.strerror}.") from None

    def _cut(self, file: BinaryIO, media: str, advance: Advance) -> Iterator[bytes]:
        if not self._lines:
            content = file.read()
            advance(len(content))
            if content:
                yield content
            return
        # The progress bar is told now and then: once for each line would take longer than sending.
        unseen = 0
        for line in file:
            unseen += len(line)
            if unseen >= 65_536:
                advance(unseen)
                unseen = 0
            message = line.strip() if media == JSON else line
            if message:
                yield message
        advance(unseen)
