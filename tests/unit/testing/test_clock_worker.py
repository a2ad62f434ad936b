"""The worker without a thread: jobs in order, one at a time, in the clock's time."""

from itertools import pairwise

import pytest

from holdfast.testing import ClockWorker, FakeClock


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
