"""Calls share small pools: as many connections as allowed, used again, and few kept idle."""

from contextlib import AsyncExitStack

import httpcore
import pytest

from holdfast.net.pools import IDLE_POOLS_MAX, POOL_CONNECTIONS, Pools

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Made:
    """What was asked for; the pools connect to nothing here."""

    def __init__(self):
        self.sizes = []

    def __call__(self, size):
        self.sizes.append(size)
        return httpcore.AsyncConnectionPool(max_connections=size)


async def test_calls_one_after_the_other_share_a_pool():
    made = Made()
    pools = Pools(100, made)
    seen = set()
    for _ in range(50):
        async with pools.one() as pool:
            seen.add(pool)
    assert len(seen) == 1
    assert made.sizes == [POOL_CONNECTIONS]


async def test_together_they_have_as_many_connections_as_allowed():
    made = Made()
    pools = Pools(POOL_CONNECTIONS * 2 + 3, made)
    async with AsyncExitStack() as calls:
        for _ in range(100):
            await calls.enter_async_context(pools.one())
    assert made.sizes == [POOL_CONNECTIONS, POOL_CONNECTIONS, 3]


async def test_a_call_that_finds_no_room_takes_the_least_busy():
    pools = Pools(2 * POOL_CONNECTIONS, Made())
    async with AsyncExitStack() as calls:
        taken = [await calls.enter_async_context(pools.one()) for _ in range(4 * POOL_CONNECTIONS)]
    counts = {pool: taken.count(pool) for pool in taken}
    assert set(counts.values()) == {2 * POOL_CONNECTIONS}


async def test_after_a_rush_few_are_kept_and_all_may_come_again():
    made = Made()
    pools = Pools(100 * POOL_CONNECTIONS, made)
    for _ in range(2):
        async with AsyncExitStack() as calls:
            for _ in range(100 * POOL_CONNECTIONS):
                await calls.enter_async_context(pools.one())
    assert len(made.sizes) == 100 + (100 - IDLE_POOLS_MAX)
    async with pools.one():
        pass
    assert len(made.sizes) == 200 - IDLE_POOLS_MAX
