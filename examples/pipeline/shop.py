"""A shop that writes orders and clicks: each order and each visit is a stream of its own."""

import asyncio
import os
import random
import secrets
import sys

from holdfast.client import Client

ORDERS = 300
VISITS = 1000
AT_ONCE = 64
GOODS = ("anchor", "bollard", "cleat", "davit", "fender", "halyard", "shackle", "thimble")
PAGES = ("/", "/search", "/goods", "/goods/reviews", "/basket", "/checkout")


def order(chance: random.Random) -> list[dict[str, object]]:
    """The life of an order, as JSON merge patches."""
    lines = {good: chance.randint(1, 5) for good in chance.sample(GOODS, chance.randint(1, 4))}
    patches: list[dict[str, object]] = [{"state": "open", "lines": {}}]
    patches += [{"lines": {good: count}} for good, count in lines.items()]
    if chance.random() < 0.2:
        patches.append({"lines": {chance.choice(list(lines)): None}})
    patches += [{"state": "paid", "paid_cents": chance.randint(500, 90_000)}, {"state": "sent"}]
    return patches[: chance.randint(2, len(patches))]


def visit(chance: random.Random) -> list[dict[str, object]]:
    """The clicks of a visit; a few visitors cannot get enough."""
    count = min(int(chance.paretovariate(1.1) * 3), 400)
    return [
        {"page": chance.choice(PAGES), "after_ms": int(chance.expovariate(1 / 4000))}
        for _ in range(count)
    ]


async def write(
    client: Client, gate: asyncio.Semaphore, name: str, messages: list[dict[str, object]]
) -> None:
    """One stream with its messages, each an append of its own."""
    async with gate:
        stream = client.stream(name)
        await stream.create("application/json")
        for message in messages:
            await stream.append(message)


async def main() -> None:
    """Write everything, to the server that HOLDFAST_URL names."""
    chance, run = random.Random(7), secrets.token_hex(3)
    orders = {f"shop-orders/{run}-{at:04d}": order(chance) for at in range(ORDERS)}
    visits = {f"shop-clicks/{run}-{at:04d}": visit(chance) for at in range(VISITS)}
    gate = asyncio.Semaphore(AT_ONCE)
    async with Client(os.environ.get("HOLDFAST_URL", "http://127.0.0.1:4437")) as client:
        await asyncio.gather(
            *(write(client, gate, name, messages) for name, messages in (orders | visits).items())
        )
    total = sum(map(len, orders.values())) + sum(map(len, visits.values()))
    print(f"{len(orders)} orders and {len(visits)} visits, {total} messages", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main())
