"""Watchers: whoever is told of batches can neither stop the log nor hide a batch from others."""

import logging

import pytest

from holdfast.errors import StoreError
from tests.unit.engine.driver import COMMITTED, Driver, created


@pytest.fixture
def driver():
    """Each write is a batch of its own."""
    return Driver(batch_bytes_max=1)


class Watcher:
    """Keeps the positions it hears of; `fails` at the first."""

    def __init__(self, *, fails=None):
        self.heard = []
        self._fails = fails

    def __call__(self, batch, entries):
        assert batch.position == entries.position
        self.heard.append(batch.position)
        if self._fails is not None:
            fails, self._fails = self._fails, None
            raise fails


@pytest.mark.parametrize("error", [StoreError("no catalog"), ValueError("a defect")])
def test_one_that_raises_stops_nothing(driver, error, caplog):
    bad, good = Watcher(fails=error), Watcher()
    driver.shard.watchers += [bad, good]
    asks = [driver.create(f"b/{number}") for number in range(3)]
    with caplog.at_level(logging.ERROR):
        driver.commit()
    assert [ask.outcome.created for ask in asks] == [True] * 3
    assert good.heard == bad.heard == [1, 2, 3]
    assert "a watcher failed" in caplog.text
    later = driver.create("b/later")
    assert driver.committed(later) == created(True, "text/plain", 0, closed=False)
    assert good.heard[-1] == 4


def test_one_that_raises_does_not_reach_the_log(driver):
    driver.shard.watchers.append(Watcher(fails=ValueError("a defect")))
    driver.create("b/one")
    waiting = driver.create("b/two")
    driver.clock.run()
    driver.log.answer(COMMITTED)
    driver.clock.run()
    # The next batch is on its way.
    assert driver.log.under_way is not None
    driver.log.answer(COMMITTED)
    assert waiting.answered


def test_one_that_leaves_hides_nothing_from_the_next(driver):
    watchers = driver.shard.watchers
    last = Watcher()

    def leaves(_batch, _entries):
        watchers.remove(leaves)

    watchers += [leaves, last]
    driver.create("b/one")
    driver.create("b/two")
    driver.commit()
    assert last.heard == [1, 2]
    assert watchers == [last]


def test_one_that_comes_is_told_from_the_next_batch_on(driver):
    watchers = driver.shard.watchers
    new = Watcher()

    def brings_another(batch, _entries):
        if batch.position == 1:
            watchers.append(new)

    watchers.append(brings_another)
    driver.create("b/one")
    driver.create("b/two")
    driver.commit()
    assert new.heard == [2]


class FailingReaders:
    """A defect in what wakes the readers of a stream."""

    def wake(self):
        raise ValueError("a defect")


def test_writes_go_on_whatever_fails_while_a_batch_is_published(driver):
    driver.create("b/one")
    driver.create("b/two")
    driver.commit()
    driver.shard.find("b/one").readers = FailingReaders()
    driver.append(b"x", name="b/one")
    later = driver.append(b"y", name="b/two")
    driver.clock.run()
    with pytest.raises(ValueError, match="a defect"):
        driver.log.answer(COMMITTED)
    driver.commit()
    assert later.answered
