"""The work, done with `durable-streams` from PyPI as its own documentation shows.

It has no producer: what batches there is `append`, which sends together what was asked for while a
request was under way.
"""

from __future__ import annotations

import asyncio
import time

import httpx
from durable_streams import AsyncDurableStream, astream

from bench.clients.work import JSON, Tail, Values, append_one_by_one, message, run, tail_all

# As many as our producer has in a batch of its default size. With 20,000 it is slower.
AT_ONCE = 5000
TIMEOUT_S = 60.0


async def produce(url: str, name: str, messages: int) -> Values:
    """Many appends at once, again and again, until everything is acknowledged."""
    async with await AsyncDurableStream.create(_url(url, name), content_type=JSON) as stream:
        values = [message(number) for number in range(messages)]
        started_s = time.perf_counter()
        stored = 0
        for first in range(0, messages, AT_ONCE):
            share = values[first : first + AT_ONCE]
            stored += len(await asyncio.gather(*(stream.append(value) for value in share)))
        return {"seconds": time.perf_counter() - started_s, "stored": float(stored)}


async def read_bytes(url: str, name: str) -> Values:
    """From the start to the tail, chunk by chunk."""
    size_bytes = 0
    started_s = time.perf_counter()
    async with astream(_url(url, name), live=False) as response:
        async for chunk in response:
            size_bytes += len(chunk)
    return {"seconds": time.perf_counter() - started_s, "bytes": size_bytes}


async def read_items(url: str, name: str) -> Values:
    """From the start to the tail, message by message, each of them parsed."""
    items = 0
    started_s = time.perf_counter()
    async with astream(_url(url, name), live=False) as response:
        async for each in response.iter_json():
            items += each is not None
    return {"seconds": time.perf_counter() - started_s, "items": items}


async def read_all_items(url: str, name: str) -> Values:
    """All messages at once, parsed: with `live=False` this would end behind the first response."""
    started_s = time.perf_counter()
    async with astream(_url(url, name)) as response:
        items = await response.read_json()
    return {"seconds": time.perf_counter() - started_s, "items": len(items)}


async def append(url: str, name: str, messages: int) -> Values:
    """Single appends, one after the other."""
    async with await AsyncDurableStream.create(_url(url, name), content_type=JSON) as stream:
        return await append_one_by_one(stream.append, messages)


async def tail(url: str, names: list[str], tails: int, messages: int) -> Values:
    """SSE from the tail on, over one httpx client for all: one each takes much longer to start."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=TIMEOUT_S) as client:

        async def follow(number: int, state: Tail) -> None:
            where = _url(url, names[number % len(names)])
            async with astream(where, offset="now", live="sse", client=client) as response:
                state.connected.set()
                async for items in response.iter_json_batches():
                    if state.take(len(items), messages):
                        break

        return await tail_all(follow, tails)


def _url(url: str, name: str) -> str:
    return f"{url}/v1/stream/{name}"


if __name__ == "__main__":
    run({f.__name__: f for f in (produce, read_bytes, read_items, read_all_items, append, tail)})
