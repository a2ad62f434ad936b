"""When operations are due, and that none is left out."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.bench.loads import LoadSchedule, Pacer
from holdfast.clock import SystemClock


def taken(schedule, now_s):
    due = []
    while (at_s := schedule.take(now_s)) is not None:
        due.append(at_s)
    return due


def test_nothing_is_due_before_its_time():
    schedule = LoadSchedule(10.0, 20.0, per_s=2)
    assert taken(schedule, 9.9) == []
    assert taken(schedule, 10.0) == [10.0]
    assert taken(schedule, 10.4) == []
    assert taken(schedule, 10.5) == [10.5]


def test_a_stall_leaves_nothing_out():
    """Coordinated omission: whoever comes late finds all that was due meanwhile, with its time."""
    schedule = LoadSchedule(0.0, 10.0, per_s=4)
    assert taken(schedule, 0.0) == [0.0]
    assert taken(schedule, 1.0) == [0.25, 0.5, 0.75, 1.0]


def test_nothing_is_due_from_the_end_on():
    schedule = LoadSchedule(0.0, 1.0, per_s=4)
    assert taken(schedule, 100.0) == [0.0, 0.25, 0.5, 0.75]
    assert schedule.unsent(100.0) == 0


def test_what_was_not_taken_is_unsent():
    schedule = LoadSchedule(0.0, 10.0, per_s=4)
    schedule.take(5.0)
    assert schedule.unsent(1.0) == 3
    assert schedule.unsent(100.0) == 39


@given(
    shares=st.integers(1, 7),
    per_s=st.floats(0.5, 5000),
    length_s=st.floats(0.01, 1.0),
)
def test_the_shares_make_up_the_whole(shares, per_s, length_s):
    whole = taken(LoadSchedule(5.0, 5.0 + length_s, per_s), 100.0)
    parts = [
        at_s
        for share in range(shares)
        for at_s in taken(LoadSchedule(5.0, 5.0 + length_s, per_s, share, shares), 100.0)
    ]
    # The very last one may fall on either side of the end, by the last bit of a float.
    assert abs(len(parts) - len(whole)) <= 1
    for one, other in zip(sorted(parts), whole, strict=False):
        assert one == pytest.approx(other)


def test_the_pacer_fires_in_the_loop_until_it_is_stopped():
    async def fired():
        clock = SystemClock()
        calls = []
        loop = asyncio.get_running_loop()
        enough = asyncio.Event()

        def fire():
            assert asyncio.get_running_loop() is loop
            calls.append(clock.monotonic_s())
            if len(calls) == 5:
                enough.set()

        pacer = Pacer(clock, fire)
        start_s = clock.monotonic_s() + 0.01
        pacer.start(start_s, 0.001)
        async with asyncio.timeout(10):
            await enough.wait()
        pacer.stop()
        return start_s, calls

    start_s, calls = asyncio.run(fired())
    assert all(call_s >= start_s + number * 0.001 for number, call_s in enumerate(calls[:5]))
