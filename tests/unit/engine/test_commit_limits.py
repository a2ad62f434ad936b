"""The commit loop's limits: how large a batch gets, how much may be pending, when it is idle."""

import pytest

from holdfast.engine.requests import Appended
from holdfast.errors import OverloadedError
from tests.unit.engine.driver import (
    COMMIT_TIMEOUT_S,
    COMMITTED,
    FAILED,
    UNKNOWN,
    Driver,
    appended,
    dump,
)


@pytest.fixture
def driver():
    driver = Driver()
    driver.create(body=b"first")
    driver.commit()
    return driver


class TestLimits:
    def test_batch_closes_at_its_size(self):
        driver = Driver(batch_bytes_max=200)
        driver.create()
        driver.commit()
        asks = [driver.append(b"x" * 60) for _ in range(7)]
        driver.commit()
        assert [ask.outcome.tail for ask in asks] == [60 * n for n in range(1, 8)]
        sizes = [len(batch.body) for batch in driver.log.batches[1:]]
        assert all(size >= 200 for size in sizes[:-1])
        assert all(size < 200 + 60 + 24 for size in sizes)

    def test_append_larger_than_a_batch_is_a_batch(self):
        driver = Driver(batch_bytes_max=100)
        driver.create()
        driver.append(b"x" * 1000)
        driver.append(b"y")
        driver.commit()
        assert driver.read() == b"x" * 1000 + b"y"
        assert driver.restart().read() == driver.read()

    def test_stream_created_when_a_batch_has_just_closed_gets_the_next_number(self):
        driver = Driver(batch_bytes_max=1)
        for n in range(4):
            driver.create(f"b/{n}")
        driver.commit()
        numbers = [driver.shard.find(f"b/{n}").number for n in range(4)]
        assert numbers == [position << 20 for position in (1, 2, 3, 4)]
        assert dump(driver.restart().shard.state) == dump(driver.shard.state)

    def test_too_many_pending_bytes_are_refused_until_they_are_written(self):
        driver = Driver(pending_bytes_max=300)
        driver.create()
        driver.commit()
        accepted = [driver.append(b"x" * 200), driver.append(b"x" * 200)]
        refused = [driver.append(b"x"), driver.create("b/2"), driver.delete()]
        assert [type(ask.outcome) for ask in refused] == [OverloadedError] * 3
        driver.commit()
        assert [ask.outcome.tail for ask in accepted] == [200, 400]
        assert driver.committed(driver.append(b"x")) == appended(401)

    @pytest.mark.parametrize("outcome", [COMMITTED, FAILED])
    def test_pending_bytes_are_given_back_whatever_the_outcome(self, outcome):
        driver = Driver(pending_bytes_max=300)
        driver.create()
        driver.commit()
        for _ in range(20):
            driver.append(b"x" * 200)
            driver.clock.run()
            driver.append(b"x" * 200)
            driver.answer(outcome)
            driver.commit()
        assert isinstance(driver.committed(driver.append(b"x")), Appended)


class TestIdle:
    def test_call_comes_at_once_when_nothing_is_pending(self, driver):
        calls = []
        driver.shard.when_idle(lambda: calls.append(1))
        assert calls == [1]

    @pytest.mark.parametrize("outcome", [COMMITTED, FAILED])
    def test_call_waits_for_everything_pending(self, driver, outcome):
        calls = []
        driver.append(b"x")
        driver.shard.when_idle(lambda: calls.append(1))
        driver.clock.run()
        if outcome is COMMITTED:
            driver.append(b"y")
            driver.answer(COMMITTED)
        assert calls == []
        driver.answer(outcome)
        assert calls == [1]

    def test_call_waits_for_an_unknown_outcome(self, driver):
        calls = []
        driver.append(b"x")
        driver.shard.when_idle(lambda: calls.append(1))
        driver.answer(UNKNOWN, stored=True)
        driver.clock.advance(2 * COMMIT_TIMEOUT_S)
        assert calls == []
        driver.answer(COMMITTED)
        assert calls == [1]

    def test_call_comes_once(self, driver):
        calls = []
        driver.append(b"x")
        driver.shard.when_idle(lambda: calls.append(1))
        driver.commit()
        driver.committed(driver.append(b"y"))
        assert calls == [1]
