"""Documents: small durable values, all or none of a change, and who is told when it fails."""

import pytest

from holdfast.errors import CommitFailedError, OverloadedError, UnavailableError
from tests.unit.engine.driver import COMMITTED, FAILED, UNKNOWN, Driver, dump
from tests.unit.engine.tiered import Tiered


@pytest.fixture
def driver():
    driver = Driver()
    driver.told = []
    driver.shard.documents.on_drop.append(lambda: driver.told.append("dropped"))
    return driver


def items(driver, prefix=""):
    return list(driver.shard.documents.items(prefix))


def test_they_are_there_once_they_are_durable(driver):
    ask = driver.documents(a=b"1", b=b"2")
    driver.clock.run()
    assert not ask.answered
    assert items(driver) == []
    driver.answer(COMMITTED)
    assert ask.outcome is None
    assert items(driver) == [("a", b"1"), ("b", b"2")]


def test_changed_and_let_go(driver):
    driver.documents(a=b"1", b=b"2")
    driver.documents(a=b"3", b=None, c=b"")
    driver.commit()
    assert items(driver) == [("a", b"3"), ("c", b"")]


def test_letting_go_of_what_is_not_there_is_harmless(driver):
    driver.documents(a=None)
    driver.commit()
    assert items(driver) == []


def test_they_come_in_the_order_of_their_keys(driver):
    keys = ["sub/b", "sub/a", "key", "sub", "sub/a/1", "z"]
    driver.documents(**dict.fromkeys(keys, b"x"))
    driver.commit()
    assert [key for key, _ in items(driver, "sub/")] == ["sub/a", "sub/a/1", "sub/b"]
    assert [key for key, _ in items(driver)] == sorted(keys)


def test_failed_change_is_none_and_is_told(driver):
    driver.documents(a=b"1")
    driver.commit()
    first, second = driver.documents(a=b"2", b=b"2"), driver.documents(a=None)
    driver.answer(FAILED)
    assert isinstance(first.outcome, CommitFailedError)
    assert isinstance(second.outcome, CommitFailedError)
    assert items(driver) == [("a", b"1")]
    assert driver.told == ["dropped"]


def test_whoever_is_told_is_so_before_the_answers(driver):
    order = []
    driver.shard.documents.on_drop.append(lambda: order.append("dropped"))
    driver.shard.documents.commit({"a": b"1"}, lambda *_: order.append("answered"), None)
    driver.answer(FAILED)
    assert order == ["dropped", "answered"]


def test_unknown_outcome_shows_later(driver):
    ask = driver.documents(a=b"1")
    driver.answer(UNKNOWN)
    assert isinstance(driver.documents(b=b"2").outcome, UnavailableError)
    assert not ask.answered
    driver.log.answer(COMMITTED)
    driver.clock.run()
    assert items(driver) == [("a", b"1")]
    assert driver.told == []


def test_taken_where_memory_is_full(driver):
    driver.shard.commits.full = "there is no room"
    assert isinstance(driver.create().outcome, OverloadedError)
    driver.documents(a=b"1")
    driver.commit()
    assert items(driver) == [("a", b"1")]


def test_after_a_restart(driver):
    driver.documents(a=b"1", b=b"2")
    driver.documents(a=None)
    driver.commit()
    again = driver.restart()
    assert dump(again.shard.state) == dump(driver.shard.state)
    assert items(again) == [("b", b"2")]


def test_from_the_catalog_and_the_log_behind_it(tmp_path):
    driver = Tiered(tmp_path)
    driver.documents(a=b"1", b=b"2")
    driver.create_bucket("bucket")
    driver.flush()
    driver.documents(b=None, c=b"3")
    driver.commit()
    again = driver.restart()
    assert items(again) == [("a", b"1"), ("c", b"3")]
    assert set(again.state.buckets) == {"bucket"}
    again.flush()
    last = again.restart()
    assert last.recovered == 0
    assert items(last) == [("a", b"1"), ("c", b"3")]
    last.close()


def test_change_without_streams_is_flushed_by_age(tmp_path):
    driver = Tiered(tmp_path, flush_age_s=5)
    driver.worker.auto = True
    driver.documents(a=b"1")
    driver.commit()
    driver.clock.advance(10)
    assert driver.catalog.flushed == 1
    assert driver.log.batches == []
    driver.close()
