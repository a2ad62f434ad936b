"""`holdfast append`: append arguments, files or stdin to a stream.

Messages are sent by an idempotent producer: a repeated request is never stored twice. With
`--producer` that holds across runs as well: the n-th message has the sequence number n, so a run
that was killed can be repeated with the same input, and stored messages are skipped.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from holdfast.cli.client.connection import StreamName, check_framing_flag, client_command
from holdfast.cli.client.output import Output
from holdfast.cli.client.sources import Sources
from holdfast.cli.terminal import Advance, progress
from holdfast.client import Appended, Client, Producer, ProducerLimits, Stream
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError
from holdfast.protocol.content import media_type

# How often the progress bar is updated.
TICK_S: Final = 0.1


@client_command
async def append(
    client: Client,
    output: Output,
    stream: StreamName,
    /,
    *messages: Annotated[
        str, Parameter(help="Messages, one each. After -- they may start with a hyphen.")
    ],
    file: Annotated[
        list[Path] | None,
        Parameter(
            negative="",
            allow_leading_hyphen=True,
            help="File with one message, or with --lines one a line; - is stdin. Repeatable. "
            "Without messages and files stdin is read.",
        ),
    ] = None,
    lines: Annotated[
        bool,
        Parameter(
            negative="",
            help="One message a line. On JSON streams a line is JSON text, and empty lines are "
            "skipped. The line break is part of the message, except on JSON and framed streams.",
        ),
    ] = False,
    producer: Annotated[
        str | None, Parameter(help="Producer id: input that was stored before is not stored again.")
    ] = None,
    epoch: Annotated[int, Parameter(help="Producer epoch. (default 0)")] = 0,
    claim: Annotated[
        bool, Parameter(negative="", help="Claim the next epoch if this one is stale.")
    ] = False,
    batch: Annotated[
        int | None,
        Parameter(
            help="Messages in one request, which become one message on byte streams without "
            "framing. (default up to 1000, which stay apart; with --producer 1)"
        ),
    ] = None,
    framing: Annotated[
        str | None, Parameter(help="length-prefixed: each message follows its length.")
    ] = None,
    close: Annotated[bool, Parameter(negative="", help="Close the stream at the end.")] = False,
    seq: Annotated[str | None, Parameter(help="Stream-Seq of a single message.")] = None,
    if_match: Annotated[
        str | None, Parameter(help="Append a single message only if the stream has this ETag.")
    ] = None,
) -> None:
    """Append messages: arguments, files, or stdin."""
    is_conditional = seq is not None or if_match is not None
    check_framing_flag(framing)
    _check(batch, epoch, producer, is_conditional=is_conditional)
    sources = Sources(
        messages, [str(each) for each in file or ()], lines=lines, framed=framing is not None
    )
    sources.check()
    target = client.stream(stream, framing=framing)  # type: ignore[arg-type] # checked above
    media = media_type(await target.known_content_type())
    if not is_conditional:
        sources.invite(output)
        writer = _writer(target, producer, epoch, batch, claims=claim)
        result = await _send(sources, writer, output, media, close=close)
        count = writer.acknowledged
    else:
        single = await sources.single(media)
        result = await target.append(single, seq=seq, if_match=if_match, close=close)
        count = 1
    offset = None if result is None else result.next_offset
    closed = close or (result is not None and result.closed)
    output.say(
        {"stream": stream, "messages": count, "next_offset": offset, "closed": closed},
        f"appended {_messages(count)} to {stream}"
        + (f", next offset {offset}" if offset else "")
        + (", and closed it" if close else ""),
    )


def _check(batch: int | None, epoch: int, producer: str | None, *, is_conditional: bool) -> None:
    if batch is not None and batch < 1:
        raise SettingsError("--batch must be at least 1")
    if epoch < 0:
        raise SettingsError("--epoch must not be negative")
    if producer == "":
        raise SettingsError("--producer must not be empty")
    if is_conditional and producer is not None:
        raise SettingsError("--producer cannot be combined with --seq and --if-match")


def _writer(
    target: Stream, producer: str | None, epoch: int, batch: int | None, *, claims: bool
) -> Producer:
    size = batch or (1000 if producer is None else 1)
    limits = ProducerLimits(
        batch_messages=size,
        # The split into requests must not depend on how fast the input arrives.
        linger_s=3600.0 if producer is not None else 0.05,
        batch_bytes=4 * 1024 * 1024,
        joins=batch is not None,
        lists_lengths=True,
    )
    name = producer or f"append-{SystemClock().random_u64():016x}"
    return target.producer(name, epoch=epoch, auto_claim=claims, limits=limits)


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


async def _send(
    sources: Sources, writer: Producer, output: Output, media: str, *, close: bool
) -> Appended | None:
    """Send everything; if that fails, report how far it came."""
    total_bytes = sources.total_bytes
    # The end of input that is not a file is unknown.
    with progress("appending", total_bytes, enabled=total_bytes is not None) as advance:
        ticking = asyncio.ensure_future(_tick(sources, writer, advance))
        try:
            async with writer:
                await _put_all(sources, writer, media)
                return await (writer.close_stream() if close else writer.flush())
        except (HoldfastError, asyncio.CancelledError):
            if stored := writer.acknowledged:
                more = ", perhaps more" if writer.pending_bytes else ""
                output.notice(f"stopped after {_messages(stored)}{more}")
            raise
        finally:
            ticking.cancel()


async def _put_all(sources: Sources, writer: Producer, media: str) -> None:
    """Pass everything to the producer; messages before an invalid one are stored."""
    async with aclosing(sources.messages(media)) as messages:
        try:
            async for message in messages:
                await writer.append(message)
        except HoldfastError:
            with suppress(HoldfastError):
                await writer.flush()
            raise


async def _tick(sources: Sources, writer: Producer, advance: Advance) -> None:
    """Show how much is stored, rather than how much was read."""
    shown = 0
    while True:
        await asyncio.sleep(TICK_S)
        done = sources.read_bytes - writer.pending_bytes
        advance(max(0, done - shown))
        shown = max(done, shown)
