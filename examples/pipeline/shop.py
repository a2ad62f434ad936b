"""A shop that writes orders and clicks: each order and each visit is a stream of its own.

`shop.py` writes an hour of trade to the server that HOLDFAST_URL names. `shop.py DATA_DIR` makes up
a past week: it runs a server of its own there, whose clock it sets back.
"""

import asyncio
import math
import os
import random
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.client import Client
from holdfast.clock import SystemClock
from holdfast.node.server import Server
from holdfast.settings import ServerSettings, Settings

DAYS = 7
HOUR_MS = 3_600_000
AT_ONCE = 64
GOODS = ("anchor", "bollard", "cleat", "davit", "fender", "halyard", "shackle", "thimble")
PAGES = ("/", "/search", "/goods", "/goods/reviews", "/basket", "/checkout")
Messages = list[dict[str, object]]


def order(chance: random.Random) -> Messages:
    """The life of an order, as JSON merge patches."""
    lines = {good: chance.randint(1, 5) for good in chance.sample(GOODS, chance.randint(1, 4))}
    patches: Messages = [{"state": "open", "lines": {}}]
    patches += [{"lines": {good: count}} for good, count in lines.items()]
    if chance.random() < 0.2:
        patches.append({"lines": {chance.choice(list(lines)): None}})
    patches += [{"state": "paid", "paid_cents": chance.randint(500, 90_000)}, {"state": "sent"}]
    return patches[: chance.randint(2, len(patches))]


def visit(chance: random.Random) -> Messages:
    """The clicks of a visit; a few visitors click a lot."""
    count = min(int(chance.paretovariate(1.1) * 3), 400)
    return [
        {"page": chance.choice(PAGES), "after_ms": int(chance.expovariate(1 / 4000))}
        for _ in range(count)
    ]


def hour_of_trade(chance: random.Random, hour: int) -> Iterator[tuple[str, Messages]]:
    """The streams of one hour, by name: most of them in the afternoon."""
    run = secrets.token_hex(4)
    traffic = 1.1 - math.cos((hour - 3) / 24 * 2 * math.pi) + chance.random() / 2
    for at in range(round(2 * traffic)):
        yield f"shop-orders/{run}-{at:04d}", order(chance)
    for at in range(round(6 * traffic)):
        yield f"shop-clicks/{run}-{at:04d}", visit(chance)


async def write(client: Client, gate: asyncio.Semaphore, name: str, messages: Messages) -> int:
    """One stream with its messages, each an append of its own."""
    async with gate:
        stream = client.stream(name)
        await stream.create("application/json")
        for message in messages:
            await stream.append(message)
    return len(messages)


async def write_hour(client: Client, chance: random.Random, hour: int) -> int:
    """Write the streams of one hour; returns the number of messages."""
    gate = asyncio.Semaphore(AT_ONCE)
    trade = hour_of_trade(chance, hour)
    return sum(await asyncio.gather(*(write(client, gate, *each) for each in trade)))


class LateClock(SystemClock):
    """The system's clock, set back."""

    late_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() - self.late_ms


async def write_past_week(data_dir: Path) -> int:
    """Write a week of trade, hour by hour, with a server whose clock goes along."""
    chance, clock = random.Random(7), LateClock()
    clock.late_ms = DAYS * 24 * HOUR_MS
    server = Server(Settings(server=ServerSettings(listen="127.0.0.1:0", data_dir=data_dir)), clock)
    await server.start()
    await server.ready()
    messages = 0
    try:
        async with Client(server.url) as client:
            while clock.late_ms > 0:
                hour = clock.now_ms() // HOUR_MS % 24
                messages += await write_hour(client, chance, hour)
                clock.late_ms -= HOUR_MS
    finally:
        await server.stop()
    return messages


async def main() -> None:
    """Write a past week to the directory in the arguments, or an hour to a server."""
    if sys.argv[1:]:
        messages = await write_past_week(Path(sys.argv[1]))
        print(f"a week of trade: {messages:,} messages", file=sys.stderr)
        return
    async with Client(os.environ.get("HOLDFAST_URL", "http://127.0.0.1:4437")) as client:
        messages = await write_hour(client, random.Random(), hour=15)
    print(f"an hour of trade: {messages:,} messages", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main())
