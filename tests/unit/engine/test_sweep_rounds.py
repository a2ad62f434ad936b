"""Sweeps go on in rounds, and come to an end."""

import pytest

from holdfast.engine import lifetimes
from tests.unit.engine.driver import FAILED, Driver

TTL_S = 10


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.setattr(lifetimes, "_SWEEP_STREAMS_MAX", 1)
    driver = Driver()
    calls, call_soon = [], driver.clock.call_soon

    def counted(call, *args):
        calls.append(call)
        assert len(calls) < 1000, "the loop is never idle"
        call_soon(call, *args)

    driver.clock.call_soon = counted
    return driver


@pytest.fixture
def saved(driver):
    """Streams past their deadline, each with a write on its way that came in time."""
    names = ["bucket/a", "bucket/b"]
    for name in names:
        driver.create(name, ttl_s=TTL_S)
    driver.commit()
    driver.clock.advance(TTL_S - 1.5)
    for name in names:
        driver.append(b"x", name)
    driver.clock.advance(3)
    return names


def test_streams_that_pending_writes_have_saved_do_not_keep_the_sweep_going(driver, saved):
    driver.commit()
    assert all(driver.exists(name) for name in saved)


def test_streams_that_were_saved_expire_later(driver, saved):
    driver.commit()
    driver.clock.advance(TTL_S + 2)
    driver.commit()
    assert driver.shard.counters.expirations == len(saved)
    assert driver.shard.state.streams == 0


def test_streams_whose_saving_writes_failed_expire(driver, saved):
    driver.answer(FAILED)
    driver.clock.advance(2)
    driver.commit()
    assert driver.shard.state.streams == 0
