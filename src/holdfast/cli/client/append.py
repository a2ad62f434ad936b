"""`holdfast append`: arguments, files and stdin into a stream.

Messages go out through an idempotent producer: a repeated request is never stored twice. With
`--producer` that holds across runs as well: the n-th message of the command has the sequence
number n, so a run that was killed can be started again with the same input, and what the server
has is passed over.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, run
from holdfast.cli.client.output import Output
from holdfast.cli.client.sources import Sources
from holdfast.cli.client.streams import StreamName
from holdfast.cli.terminal import NO_BAR, Bar, progress
from holdfast.client import Appended, Client, Producer, ProducerLimits, Stream
from holdfast.client.messages import LENGTH_PREFIXED
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError
from holdfast.protocol.content import JSON, media_type

# How often the progress bar is told.
TICK_S: Final = 0.1


def append(
    stream: StreamName,
    /,
    *messages: Annotated[
        str, Parameter(help="Messages, one each. Behind -- they may start with a hyphen.")
    ],
    file: Annotated[
        list[Path] | None,
        Parameter(
            negative="",
            allow_leading_hyphen=True,
            help="File whose content is one message, or with --lines one each line; - is stdin. "
            "Can be given several times. Without messages and files stdin is read.",
        ),
    ] = None,
    lines: Annotated[
        bool,
        Parameter(
            negative="",
            help="One message a line. On JSON streams the line is JSON text, and empty ones are "
            "passed over. Its line break is part of it, except on JSON and framed streams.",
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
            help="Messages in one request. (default 1; without --producer 1000 on JSON and framed "
            "streams)"
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
    guarded = seq is not None or if_match is not None
    _check(framing, batch, epoch, guarded=guarded, producer=producer)
    sources = Sources(
        messages, [str(each) for each in file or ()], lines=lines, framed=framing is not None
    )
    sources.check()

    async def work(client: Client, output: Output) -> None:
        target = client.stream(stream, framing=framing)  # type: ignore[arg-type] # checked above
        media = media_type(await target.known_content_type())
        if not guarded:
            sources.invite(output)
            writer = _writer(target, producer, epoch, batch, media, claims=claim)
            answer = await _Sending(sources, writer, output).send(media, close=close)
            count = writer.acknowledged
        else:
            single = await sources.single(media)
            answer = await target.append(single, seq=seq, if_match=if_match, close=close)
            count = 1
        offset = None if answer is None else answer.next_offset
        closed = close or (answer is not None and answer.closed)
        output.say(
            {"stream": stream, "messages": count, "next_offset": offset, "closed": closed},
            f"appended {_messages(count)} to {stream}"
            + (f", next offset {offset}" if offset else "")
            + (", and closed it" if close else ""),
        )

    return run(server, work)


def _check(
    framing: str | None, batch: int | None, epoch: int, *, guarded: bool, producer: str | None
) -> None:
    if framing not in {None, LENGTH_PREFIXED}:
        raise SettingsError(f"--framing must be {LENGTH_PREFIXED}, not {framing!r}")
    if batch is not None and batch < 1:
        raise SettingsError("--batch must be at least 1")
    if epoch < 0:
        raise SettingsError("--epoch must not be negative")
    if producer == "":
        raise SettingsError("--producer must not be empty")
    if guarded and producer is not None:
        raise SettingsError("--producer does not go together with --seq and --if-match")


def _writer(
    target: Stream, producer: str | None, epoch: int, batch: int | None, media: str, *, claims: bool
) -> Producer:
    has_boundaries = media == JSON or target.framing is not None
    size = batch or (1000 if producer is None and has_boundaries else 1)
    limits = ProducerLimits(
        batch_messages=size,
        # Which message is in which request must not depend on how fast the input comes.
        linger_s=3600.0 if producer is not None else 0.05,
        batch_bytes=4 * 1024 * 1024,
        joins=size > 1,
    )
    name = producer or f"append-{SystemClock().random_u64():016x}"
    return target.producer(name, epoch=epoch, auto_claim=claims, limits=limits)


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def _progress(total_bytes: int | None) -> AbstractContextManager[Bar]:
    """A bar for files; where somebody types, or another program does, there is no end to show."""
    return nullcontext(NO_BAR) if total_bytes is None else progress("appending", total_bytes)


class _Sending:
    """Everything that the sources have, on its way to the stream."""

    def __init__(self, sources: Sources, writer: Producer, output: Output) -> None:
        self._sources = sources
        self._writer = writer
        self._output = output

    async def send(self, media: str, *, close: bool) -> Appended | None:
        """Send it; if that ends early, say how far it came."""
        with _progress(self._sources.total_bytes) as bar:
            ticking = asyncio.ensure_future(self._tick(bar))
            try:
                async with self._writer:
                    await self._put_all(media)
                    if close:
                        return await self._writer.close_stream()
                    return await self._writer.flush()
            except (HoldfastError, asyncio.CancelledError):
                self._say_how_far()
                raise
            finally:
                ticking.cancel()

    async def _put_all(self, media: str) -> None:
        """Hand everything to the producer; what comes before a bad message is stored."""
        async with aclosing(self._sources.messages(media)) as messages:
            try:
                async for message in messages:
                    await self._writer.append(message)
            except HoldfastError:
                with suppress(HoldfastError):
                    await self._writer.flush()
                raise

    def _say_how_far(self) -> None:
        if stored := self._writer.acknowledged:
            more = ", perhaps more" if self._writer.pending_bytes else ""
            self._output.notice(f"stopped after {_messages(stored)}{more}")

    async def _tick(self, bar: Bar) -> None:
        """Show what the server has, rather than what was read."""
        shown = 0
        while True:
            await asyncio.sleep(TICK_S)
            done = self._sources.read_bytes - self._writer.pending_bytes
            bar.advance(max(0, done - shown))
            shown = max(done, shown)
