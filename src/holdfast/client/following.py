"""A stream from its snapshot on, for ever: what an application that keeps state reads.

async for item in stream.bootstrap_and_follow():
    if isinstance(item, Snapshot):
        state = load(item)         # start anew from here
    else:
        state = fold(state, item)  # one message further
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from holdfast.client.calls import Calls
from holdfast.client.messages import Assembler, Batch, Lengths, Message
from holdfast.client.payloads import Framing
from holdfast.client.reading import Live, Reading
from holdfast.client.retry import may_repeat
from holdfast.client.snapshots import Bootstrap, Snapshot, open_bootstrap
from holdfast.errors import HoldfastError, OffsetGoneError
from holdfast.protocol.headers import START

Item = Snapshot | Message


async def bootstrap_and_follow(
    calls: Calls, url: str, read_url: str, *, live: Live = True, framing: Framing | None = None
) -> AsyncGenerator[Item, None]:
    """The snapshot, the messages since, and then what comes; again from a snapshot after a 410."""
    failures = 0
    while True:
        at = START
        try:
            async with open_bootstrap(calls, url) as answer:
                yield await answer.snapshot()
                unframed = _Unframed(framing, answer)
                async for message in answer.messages():
                    for each in unframed.feed(message):
                        yield each
                at, closed = unframed.end(answer.next_offset), answer.closed
            if closed or not live:
                return
            async with Reading(calls, read_url, offset=at, live=live, framing=framing) as reading:
                async for message in reading:
                    failures = 0
                    yield message
            return
        except OffsetGoneError as error:
            # A newer snapshot has taken the place of what would have come next.
            failures += 1
            if failures > 1:
                await calls.wait(failures, error)
        except HoldfastError as error:
            # The bootstrap broke off: what it said is said again, from its snapshot on.
            if at != START or not may_repeat(error, repeatable=True):
                raise
            failures += 1
            await calls.wait(failures, error)


class _Unframed:
    """The messages of a bootstrap, each of which is an append, cut into framed ones if they are."""

    def __init__(self, framing: Framing | None, answer: Bootstrap) -> None:
        self._assembler = None if framing is None else Assembler(framing)
        self._lengths: Lengths | None = () if answer.counts_bytes else None
        self._end = answer.snapshot_offset

    def feed(self, message: Message) -> list[Message]:
        """What this append completes."""
        if self._assembler is None:
            return [message]
        append = Batch(
            message.payload, "", message.offset, message.next_offset, lengths=self._lengths
        )
        messages = self._assembler.feed(append)
        self._end = messages[-1].next_offset if messages else self._end
        return messages

    def end(self, next_offset: str) -> str:
        """Where to read on: at the beginning of a message of which only a part was there."""
        if self._assembler is None or not self._assembler.is_within_message:
            return next_offset
        return self._end
