"""The simulation's clock ends with a life; its worker runs jobs in order, in the clock's time."""

from itertools import pairwise

import pytest

from holdfast.testing import FakeClock
from tests.simulation.timing import ClockWorker, LifeClock


@pytest.fixture
def clock():
    return FakeClock(seed=3)


@pytest.fixture
def worker(clock):
    worker = ClockWorker(clock)
    worker.start()
    return worker


def test_jobs_take_time_and_keep_their_order(clock, worker):
    ran = []
    for number in range(5):
        worker.put(lambda number: ran.append((number, clock.monotonic_s())), number)
    clock.run()
    assert ran == []
    clock.advance(1)
    assert [number for number, _ in ran] == list(range(5))
    times = [0.0, *(at_s for _, at_s in ran)]
    for before, after in pairwise(times):
        assert 0.0001 < after - before < 0.01


def test_job_put_by_a_job_comes_after_those_before_it(clock, worker):
    ran = []

    def first():
        worker.put(ran.append, "put by first")
        ran.append("first")

    worker.put(first)
    worker.put(ran.append, "second")
    clock.advance(1)
    assert ran == ["first", "second", "put by first"]


def test_nothing_runs_before_the_start(clock):
    worker, ran = ClockWorker(clock), []
    worker.put(ran.append, 1)
    clock.advance(1)
    assert ran == []
    worker.start()
    clock.advance(1)
    assert ran == [1]


def test_later_is_later(clock, worker):
    ran = []
    worker.later(0.5, ran.append, "later")
    worker.put(ran.append, "now")
    clock.advance(0.4)
    assert ran == ["now"]
    clock.advance(0.2)
    assert ran == ["now", "later"]


def test_stopping_runs_everything_at_once_and_nothing_twice(clock, worker):
    ran = []
    worker.later(0.5, ran.append, "later")
    worker.put(ran.append, "now")
    worker.stop()
    assert ran == ["now", "later"]
    clock.advance(10)
    worker.stop()
    assert ran == ["now", "later"]


def test_killing_runs_nothing_more(clock, worker):
    ran = []
    worker.later(0.5, ran.append, "later")
    worker.put(ran.append, "now")
    worker.kill()
    worker.put(ran.append, "after")
    clock.advance(10)
    worker.stop()
    assert ran == []


def test_same_seed_gives_the_same_times():
    def times(seed):
        clock = FakeClock(seed=seed)
        worker, ran = ClockWorker(clock), []
        worker.start()
        for _ in range(5):
            worker.put(lambda: ran.append(clock.monotonic_s()))
        clock.advance(1)
        return ran

    assert times(1) == times(1) != times(2)


def test_life_has_the_time_and_chance_of_the_other_clock():
    clock, same = FakeClock(seed=5), FakeClock(seed=5)
    life = LifeClock(clock)
    assert life.random_int(0, 1000) == same.random_int(0, 1000)
    assert life.random_u64() == same.random_u64()
    clock.advance(1.5)
    assert (life.now_ms(), life.monotonic_s()) == (clock.now_ms(), clock.monotonic_s())


def test_calls_of_a_life_are_made_in_time():
    clock, ran = FakeClock(), []
    life = LifeClock(clock)
    life.call_later(2, ran.append, "later")
    life.call_soon(ran.append, "soon")
    life.call_later(1, ran.append, "never").cancel()
    clock.run()
    assert ran == ["soon"]
    clock.advance(2)
    assert ran == ["soon", "later"]


def test_nothing_is_called_after_the_end_of_a_life():
    clock, ran = FakeClock(), []
    life, other = LifeClock(clock), LifeClock(clock)
    for each in (life, other):
        each.call_soon(ran.append, each)
        each.call_later(1, ran.append, each)
    life.end()
    clock.advance(2)
    assert life.ended
    assert ran == [other, other]
