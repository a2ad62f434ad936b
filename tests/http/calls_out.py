"""Calls to servers on loopback, for tests of the outbound transport."""

import asyncio
from contextlib import asynccontextmanager

from holdfast.net.outbound import Outbound
from holdfast.net.targets import AnyTarget


def run(scenario, *, loop_factory=None):
    """Run a coroutine to its end, or not for ever."""

    async def limited():
        async with asyncio.timeout(20):
            await scenario

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(limited())


@asynccontextmanager
async def calling(policy=None, **options):
    """A transport that is closed in the end; to any target, unless told otherwise."""
    outbound = Outbound(policy or AnyTarget(), **options)
    try:
        yield outbound
    finally:
        await outbound.aclose()


async def until(condition):
    """Wait for a condition; `run` limits how long."""
    while not condition():
        await asyncio.sleep(0.005)


async def collected(outbound, method, url, headers=None, body=b"", **limits):
    """An answer's status and its pieces."""
    limits.setdefault("silence_s", 5)
    async with outbound.stream(method, url, headers or {}, body, **limits) as answer:
        return answer.status, [chunk async for chunk in answer.chunks()]
