"""The work, done with `holdfast.client`."""

from __future__ import annotations

import asyncio
import time

from bench.clients.work import JSON, Tail, Values, append_one_by_one, message, run, tail_all
from holdfast.client import NOW, Client


async def produce(url: str, name: str, messages: int) -> Values:
    """One producer with its default limits, until everything is acknowledged."""
    async with Client(url) as client:
        stream = client.stream(name)
        await stream.create(JSON)
        values = [message(number) for number in range(messages)]
        started_s = time.perf_counter()
        async with stream.producer("bench") as producer:
            for value in values:
                await producer.append(value)
        return {
            "seconds": time.perf_counter() - started_s,
            "stored": float(producer.acknowledged),
        }


async def read_bytes(url: str, name: str) -> Values:
    """From the start to the tail, batch by batch."""
    size_bytes = 0
    async with Client(url) as client:
        started_s = time.perf_counter()
        async for batch in client.stream(name).read().batches():
            size_bytes += len(batch.data)
        return {"seconds": time.perf_counter() - started_s, "bytes": size_bytes}


async def read_items(url: str, name: str) -> Values:
    """From the start to the tail, message by message, each of them parsed."""
    items = 0
    async with Client(url) as client:
        started_s = time.perf_counter()
        async for each in client.stream(name).read():
            items += each.json is not None
        return {"seconds": time.perf_counter() - started_s, "items": items}


async def read_all_items(url: str, name: str) -> Values:
    """All messages at once, parsed."""
    async with Client(url) as client:
        started_s = time.perf_counter()
        items = await client.stream(name).read().read_json()
        return {"seconds": time.perf_counter() - started_s, "items": len(items)}


async def append(url: str, name: str, messages: int) -> Values:
    """Single appends, one after the other."""
    async with Client(url) as client:
        stream = client.stream(name)
        await stream.create(JSON)
        return await append_one_by_one(stream.append, messages)


async def tail(url: str, names: list[str], tails: int, messages: int) -> Values:
    """Live reads from the tail on."""
    async with Client(url) as client:

        async def follow(number: int, state: Tail) -> None:
            async with client.stream(names[number % len(names)]).read(NOW, live=True) as reading:
                async for batch in reading.batches():
                    # The first response says where the tail is; SSE comes after it.
                    state.connected.set()
                    if batch.data and state.take(len(batch.json), messages):
                        break

        async def settled() -> None:
            while await _live_readers(client) < tails:
                await asyncio.sleep(0.02)

        return await tail_all(follow, tails, settled)


async def _live_readers(client: Client) -> float:
    """How many live reads the server has."""
    page = (await client.request("GET", "/metrics")).body.decode()
    (count,) = [
        line.split()[1] for line in page.splitlines() if line.startswith("holdfast_live_readers ")
    ]
    return float(count)


if __name__ == "__main__":
    run({f.__name__: f for f in (produce, read_bytes, read_items, read_all_items, append, tail)})
