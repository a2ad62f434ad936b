"""The clock of one life: as the other one, until it ends."""

from holdfast.testing import FakeClock, LifeClock


def test_it_is_the_other_clock():
    clock, same = FakeClock(seed=5), FakeClock(seed=5)
    life = LifeClock(clock)
    assert life.random_int(0, 1000) == same.random_int(0, 1000)
    assert life.random_u64() == same.random_u64()
    clock.advance(1.5)
    assert (life.now_ms(), life.monotonic_s()) == (clock.now_ms(), clock.monotonic_s())


def test_calls_are_made_in_time():
    clock, ran = FakeClock(), []
    life = LifeClock(clock)
    life.call_later(2, ran.append, "later")
    life.call_soon(ran.append, "soon")
    life.call_later(1, ran.append, "never").cancel()
    clock.run()
    assert ran == ["soon"]
    clock.advance(2)
    assert ran == ["soon", "later"]


def test_nothing_is_called_after_the_end():
    clock, ran = FakeClock(), []
    life, other = LifeClock(clock), LifeClock(clock)
    for each in (life, other):
        each.call_soon(ran.append, each)
        each.call_later(1, ran.append, each)
    life.end()
    clock.advance(2)
    assert life.ended
    assert ran == [other, other]
