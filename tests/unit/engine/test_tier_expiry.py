"""Expiry of streams that are not in memory: found by the catalog's index, each once."""

import pytest

from holdfast.engine import lifetimes as lifetimes_module
from holdfast.errors import StreamNotFoundError
from holdfast.format.records import Kind
from tests.unit.engine.driver import FAILED
from tests.unit.engine.tiered import Tiered


@pytest.fixture
def make(tmp_path):
    drivers = []

    def make(**limits):
        drivers.append(Tiered(tmp_path, **limits))
        # Sweeps fall between deadlines.
        drivers[-1].clock.advance(0.5)
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


@pytest.fixture
def looked_up(monkeypatch):
    """The pages that were asked of the catalog's index: (limit, found)."""
    from holdfast.storage.catalog import Catalog

    pages, due = [], Catalog.due

    def counted(self, now_ms, after, limit):
        found = due(self, now_ms, after, limit)
        pages.append((limit, len(found)))
        return found

    monkeypatch.setattr(Catalog, "due", counted)
    return pages


def evict_all(driver):
    """Have every idle stream leave memory."""
    limit, driver.tier._streams_cached_max = driver.tier._streams_cached_max, 0
    for _ in range(1 + len(driver.state.clean)):
        driver.tier._evict()
    driver.tier._streams_cached_max = limit
    assert driver.state.clean == {}


class TestEvicted:
    def test_they_are_removed_once_their_time_is_over(self, make):
        driver = make()
        driver.written("b/1", "b/2", ttl_s=100)
        driver.written("b/3")
        evict_all(driver)
        driver.clock.advance(99)
        driver.commit()
        assert driver.log.batches == []
        driver.clock.advance(2)
        driver.commit()
        assert driver.kinds() == [Kind.EXPIRE, Kind.EXPIRE]
        assert driver.state.streams == 1
        assert driver.shard.counters.expirations == 2
        driver.flush()
        assert driver.catalog.totals()[:3] == (driver.tier.flushed, 1, 1)
        assert driver.catalog.find_name("b/1") is None

    def test_only_those_that_are_due_come_into_memory(self, make):
        driver = make()
        driver.written(*(f"b/{at}" for at in range(50)), ttl_s=1000)
        driver.written("b/due", ttl_s=100)
        evict_all(driver)
        driver.clock.advance(101)
        assert driver.names == {"b/due"}
        assert driver.state.loads == 1

    def test_the_index_is_asked_and_nothing_is_scanned(self, make, looked_up):
        driver = make()
        driver.written(*(f"b/{at}" for at in range(10)), ttl_s=100)
        evict_all(driver)
        looked_up.clear()
        driver.clock.advance(50)
        assert all(found == 0 for _, found in looked_up)
        assert len(looked_up) <= 51
        looked_up.clear()
        driver.clock.advance(51)
        driver.commit()
        assert sum(found for _, found in looked_up) == 10
        looked_up.clear()
        # Though they are in the catalog until the next flush they are not looked at again.
        driver.clock.advance(20)
        assert sum(found for _, found in looked_up) == 0

    def test_who_asks_for_one_that_is_due_finds_nothing(self, make):
        driver = make()
        driver.written("b/1", ttl_s=100)
        evict_all(driver)
        driver.clock.advance(100)
        with pytest.raises(StreamNotFoundError):
            driver.shard.find("b/1")
        ask = driver.append(b"x", name="b/1")
        assert isinstance(driver.committed(ask), StreamNotFoundError)
        assert driver.kinds() == [Kind.EXPIRE]

    def test_write_renews_one_that_had_left(self, make):
        driver = make()
        driver.written("b/1", ttl_s=100)
        evict_all(driver)
        driver.clock.advance(90)
        driver.committed(driver.append(b"y", name="b/1"))
        driver.flush()
        evict_all(driver)
        driver.clock.advance(90)
        driver.commit()
        assert driver.exists("b/1")
        driver.clock.advance(11)
        driver.commit()
        assert driver.expiries() == 1

    def test_streams_that_were_due_while_the_server_was_down(self, make):
        driver = make()
        driver.written("b/1", "b/2", ttl_s=100)
        driver.clock.advance(30)
        driver.create("b/3", ttl_s=20)
        driver.commit()
        driver.close()
        driver.clock.advance(500)
        again = driver.restart()
        again.clock.advance(1)
        again.commit()
        assert again.kinds().count(Kind.EXPIRE) == 3
        assert again.state.streams == 0
        again.close()

    @pytest.mark.parametrize("count", [499, 500, 501, 1300])
    def test_many_are_removed_in_rounds_and_each_once(self, make, count):
        driver = make()
        driver.written(*(f"b/{at}" for at in range(count)), ttl_s=100)
        evict_all(driver)
        driver.clock.advance(101)
        driver.commit()
        assert driver.expiries() == count
        assert driver.state.streams == 0
        assert driver.state.loads == count

    def test_few_places_in_memory_do_not_make_it_look_again_and_again(self, make, looked_up):
        driver = make(streams_cached_max=1)
        driver.written(*(f"b/{at}" for at in range(50)), ttl_s=100)
        looked_up.clear()
        driver.clock.advance(101)
        driver.commit()
        assert driver.expiries() == 50
        assert driver.state.streams == 0
        # Each is loaded for its expiry, and perhaps once more when that is published.
        assert driver.state.loads <= 2 * 50
        assert sum(found for _, found in looked_up) <= 2 * 50


class TestCursor:
    def test_deadline_behind_it_is_found_after_eviction(self, make):
        driver = make()
        driver.written("b/renewed", ttl_s=100)
        evict_all(driver)
        driver.written("b/due", ttl_s=50)
        evict_all(driver)
        stream = driver.shard.find("b/renewed")
        driver.clock.advance(60)
        driver.commit()
        # The index was gone through up to the one that was due.
        assert driver.expiries() == 1
        driver.lifetimes.renew(stream)
        driver.commit()
        driver.flush()
        evict_all(driver)
        driver.clock.advance(101)
        driver.commit()
        assert driver.expiries() == 1
        assert driver.state.streams == 0

    def test_stream_in_memory_when_the_cursor_passed_it(self, make):
        driver = make()
        driver.written("b/1", ttl_s=100)
        evict_all(driver)
        stream = driver.shard.find("b/1")
        driver.clock.advance(95)
        # Renewed in memory only, so the index has it still at its old deadline.
        driver.lifetimes._renewing.add(stream.number)
        driver.lifetimes.renew(stream)
        driver.lifetimes._renewing.clear()
        driver.clock.advance(10)
        driver.commit()
        assert driver.expiries() == 0
        assert driver.exists("b/1")
        driver.clock.advance(100)
        driver.commit()
        assert driver.expiries() == 1

    def test_equal_deadlines(self, make):
        driver = make()
        driver.written("b/1", "b/2", "b/3", ttl_s=100)
        evict_all(driver)
        find = driver.shard.find("b/2")
        driver.clock.advance(50)
        assert find.deadline_ms == driver.catalog.find_name("b/1").deadline_ms
        driver.clock.advance(51)
        driver.commit()
        assert driver.expiries() == 3

    @pytest.mark.parametrize("names", [["b/1"], ["b/1", "b/2", "b/3"]])
    def test_evicted_behind_it_after_the_removal_failed(self, make, names):
        driver = make()
        driver.written(*names, ttl_s=100)
        driver.clock.advance(101)
        driver.answer(FAILED)
        # All are due, the index was gone through, and nobody in memory watches them any more.
        evict_all(driver)
        driver.clock.advance(1)
        driver.commit()
        assert driver.expiries() == len(names)
        assert driver.state.streams == 0

    def test_evicted_while_no_write_is_taken(self, make):
        driver = make()
        driver.written("b/1", "b/2", ttl_s=100)
        driver.clock.advance(99)
        commits = driver.shard.commits
        commits.stalled = True
        driver.clock.advance(5)
        assert driver.expiries() == 0
        evict_all(driver)
        commits.stalled = False
        driver.clock.advance(1)
        driver.commit()
        assert driver.expiries() == 2


class TestFailures:
    def test_removal_that_fails_is_tried_again(self, make):
        driver = make()
        driver.written("b/1", "b/2", ttl_s=100)
        evict_all(driver)
        driver.clock.advance(101)
        for _ in range(3):
            driver.answer(FAILED)
            assert driver.state.streams == 2
            driver.clock.advance(1)
        driver.commit()
        assert driver.expiries() == 2
        assert driver.state.streams == 0

    def test_it_is_tried_again_though_memory_is_short(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2", "b/3", ttl_s=100)
        driver.clock.advance(101)
        for _ in range(3):
            driver.answer(FAILED)
            driver.clock.advance(1)
        driver.commit()
        assert driver.expiries() == 3
        assert driver.state.streams == 0

    def test_write_that_came_in_time_and_failed(self, make):
        driver = make()
        driver.written("b/1", ttl_s=100)
        evict_all(driver)
        driver.clock.advance(99)
        driver.append(b"y", name="b/1")
        driver.clock.advance(4)
        driver.answer(FAILED)
        driver.clock.advance(1)
        driver.commit()
        assert driver.expiries() == 1

    def test_removed_from_the_catalog_meanwhile(self, make):
        driver = make()
        driver.written("b/1", ttl_s=100)
        driver.committed(driver.delete("b/1"))
        driver.clock.advance(101)
        driver.commit()
        assert driver.expiries() == 0
        driver.flush()
        driver.clock.advance(10)
        assert driver.log.batches == []


def test_a_rounds_limit_counts_both_sources(make):
    driver = make()
    names = [f"b/{at}" for at in range(600)]
    driver.written(*names[:300], ttl_s=100)
    evict_all(driver)
    for name in names[300:]:
        driver.create(name, ttl_s=100)
    driver.commit()
    assert lifetimes_module._SWEEP_STREAMS_MAX == 500
    driver.clock.advance(101)
    driver.commit()
    driver.clock.advance(1)
    driver.commit()
    assert driver.expiries() == 600
    assert driver.state.streams == 0
