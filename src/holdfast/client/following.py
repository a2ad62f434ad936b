"""A stream from its snapshot on, for ever: what an application that keeps state reads.

async for item in stream.bootstrap_and_follow():
    if isinstance(item, Snapshot):
        state = load(item)         # start anew from here
    else:
        state = fold(state, item)  # one message further
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from holdfast.client.calls import Calls
from holdfast.client.messages import Message
from holdfast.client.reading import Live, Reading
from holdfast.client.retry import may_repeat
from holdfast.client.snapshots import Snapshot, open_bootstrap
from holdfast.errors import HoldfastError, OffsetGoneError
from holdfast.protocol.offsets import START

Item = Snapshot | Message


async def bootstrap_and_follow(
    calls: Calls, url: str, read_url: str, *, live: Live = True
) -> AsyncGenerator[Item, None]:
    """The snapshot, the messages since, and then what comes; again from a snapshot after a 410."""
    failures = 0
    while True:
        at = START
        try:
            async with open_bootstrap(calls, url) as answer:
                yield await answer.snapshot()
                async for message in answer.messages():
                    yield message
                at, closed = answer.next_offset, answer.closed
            failures = 0
            if closed or not live:
                return
            async with aclosing(_follow(calls, read_url, at, live)) as messages:
                async for message in messages:
                    yield message
            return
        except OffsetGoneError:
            # A newer snapshot has taken the place of what would have come next.
            continue
        except HoldfastError as error:
            # The bootstrap broke off: what it said is said again, from its snapshot on.
            if at != START or not may_repeat(error, repeatable=True):
                raise
            failures += 1
            await calls.wait(failures, error)


async def _follow(calls: Calls, url: str, at: str, live: Live) -> AsyncGenerator[Message, None]:
    async with Reading(calls, url, offset=at, live=live) as reading:
        async for message in reading:
            yield message
