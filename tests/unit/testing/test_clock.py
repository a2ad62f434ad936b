"""The clock in a hurry: nobody waits, and everything that was to be waited for is written down."""

import asyncio

from holdfast.testing import FakeClock, HurriedClock


def test_timers_run_in_the_next_round_in_the_order_they_were_set():
    async def scenario():
        clock, ran = HurriedClock(), []
        clock.call_later(3600, ran.append, "an hour")
        clock.call_later(1, ran.append, "a second")
        clock.call_soon(ran.append, "soon")
        assert ran == []
        await asyncio.sleep(0)
        assert ran == ["an hour", "a second", "soon"]
        assert clock.delays_s == [3600, 1]

    asyncio.run(scenario())


def test_time_moves_on_when_a_timer_runs():
    async def scenario():
        clock, seen = HurriedClock(), []
        started_ms = clock.now_ms()
        clock.call_later(2.5, lambda: seen.append(clock.monotonic_s()))
        assert clock.monotonic_s() == 0
        await asyncio.sleep(0)
        assert seen == [2.5]
        assert clock.now_ms() == started_ms + 2500

    asyncio.run(scenario())


def test_cancelled_timer_does_not_run_but_was_asked_for():
    async def scenario():
        clock, ran = HurriedClock(), []
        clock.call_later(5, ran.append, "never").cancel()
        await asyncio.sleep(0)
        assert ran == []
        assert clock.delays_s == [5]
        assert clock.monotonic_s() == 0

    asyncio.run(scenario())


def test_chance_is_that_of_the_seed():
    clock, same = HurriedClock(seed=7), FakeClock(seed=7)
    assert clock.random_int(0, 10**9) == same.random_int(0, 10**9)
    assert clock.random_u64() == same.random_u64()
    assert clock.random_bytes(8) == same.random_bytes(8)
