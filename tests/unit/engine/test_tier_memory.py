"""What leaves memory and comes back: who may go, who goes first, and that nobody notices."""

import gc

import pytest

from holdfast.engine.stream import Generation
from holdfast.engine.writes import Deleted
from holdfast.errors import StreamNotFoundError
from holdfast.format.records import Kind
from holdfast.protocol.producer import Producer
from tests.unit.engine.driver import COMMITTED, FAILED, JSON, NAME, TEXT, appended, created
from tests.unit.engine.tiered import Tiered


class Watcher:
    """A live reader that does nothing."""

    def wake(self):
        """Nothing to do."""

    def finish(self):
        """Nothing to say."""


@pytest.fixture
def make(tmp_path):
    drivers = []

    def make(**limits):
        drivers.append(Tiered(tmp_path, **limits))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


def find(driver, *names):
    for name in names:
        driver.shard.find(name)


class TestEviction:
    def test_those_that_became_idle_first_go_first(self, make):
        driver = make(streams_cached_max=2)
        driver.written("b/1", "b/2", "b/3", "b/4")
        assert driver.names == {"b/3", "b/4"}
        assert driver.tier.evictions == 2
        driver.written("b/5")
        assert driver.names == {"b/4", "b/5"}

    def test_nothing_goes_while_there_is_room(self, make):
        driver = make(streams_cached_max=4)
        driver.written("b/1", "b/2", "b/3", "b/4")
        assert driver.tier.evictions == 0
        assert list(driver.state.clean) == sorted(driver.state.by_number)

    def test_stream_that_comes_back_takes_the_place_of_another(self, make):
        driver = make(streams_cached_max=2)
        driver.written("b/1", "b/2", "b/3", body=b"123")
        stream = driver.shard.find("b/1")
        assert driver.names == {"b/3", "b/1"}
        assert (stream.tail, stream.base, stream.chunks) == (3, 3, [])
        assert driver.shard.find("b/1") is stream
        assert driver.state.loads == 1

    def test_the_one_just_loaded_is_never_the_one_that_goes(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2", "b/3")
        for name in ("b/1", "b/2", "b/3") * 3:
            assert driver.committed(driver.append(b"y", name=name)).added
            driver.flush()
        for name in ("b/1", "b/2", "b/3"):
            assert driver.data(name) == b"xyyy"
            assert driver.names == {name}

    def test_it_stays_though_all_others_have_to(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2")
        driver.shard.live.add(driver.shard.find("b/1"), Watcher())
        stream = driver.shard.find("b/2")
        assert driver.names == {"b/1", "b/2"}
        assert driver.shard.find("b/2") is stream

    def test_those_used_last_stay(self, make):
        driver = make(streams_cached_max=3)
        driver.written("b/1", "b/2", "b/3", "b/4")
        find(driver, "b/2")
        find(driver, "b/1")
        assert driver.names == {"b/2", "b/1", "b/4"}

    def test_streams_that_change_are_not_idle(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2")
        for name in ("b/1", "b/2"):
            driver.committed(driver.append(b"y", name=name))
        driver.create("b/3", body=b"z")
        driver.commit()
        assert driver.names == {"b/1", "b/2", "b/3"}
        assert driver.state.clean == {}

    def test_streams_with_readers_stay(self, make):
        driver = make(streams_cached_max=2)
        driver.written("b/1", "b/2")
        watcher, stream = Watcher(), driver.shard.find("b/1")
        driver.shard.live.add(stream, watcher)
        driver.written("b/3", "b/4", "b/5")
        assert driver.names == {"b/1", "b/5"}
        driver.shard.live.remove(stream, watcher)
        driver.written("b/6", "b/7")
        assert driver.names == {"b/6", "b/7"}

    def test_streams_with_something_pending_stay(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2")
        ask = driver.append(b"y", name="b/1")
        find(driver, "b/2")
        assert "b/1" in driver.names
        assert driver.committed(ask) == appended(2)
        assert driver.data("b/1") == b"xy"

    def test_streams_whose_removal_is_pending_stay(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2")
        ask = driver.delete("b/1")
        find(driver, "b/2")
        assert "b/1" in driver.names
        assert driver.committed(ask) == Deleted()

    def test_failed_write_lets_it_go(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2")
        driver.append(b"y", name="b/1")
        driver.answer(FAILED)
        find(driver, "b/2")
        assert driver.names == {"b/2"}
        assert driver.data("b/1") == b"x"

    def test_only_so_many_are_passed_over_at_a_time(self, make):
        driver = make(streams_cached_max=20)
        names = [f"b/{at}" for at in range(20)]
        driver.written(*names)
        for name in names[:19]:
            driver.shard.live.add(driver.shard.state.by_name[name], Watcher())
        driver.written("b/new")
        assert len(driver.names) == 21
        driver.written("b/newer")
        driver.written("b/newest")
        assert len(driver.names - set(names[:19])) < 4
        assert set(names[:19]) <= driver.names


class TestUnrecordedRenewals:
    @pytest.fixture
    def renewed(self, make):
        """A stream whose deadline was moved by a read, by too little to be recorded."""
        driver = make(streams_cached_max=1)
        driver.written("b/ttl", ttl_s=100)
        driver.clock.advance(5)
        driver.stream = driver.shard.find("b/ttl")
        driver.lifetimes.renew(driver.stream)
        assert driver.log.under_way is None
        return driver

    def test_it_is_recorded_before_the_stream_may_go(self, renewed):
        deadline_ms = renewed.stream.deadline_ms
        renewed.written("b/other")
        assert {"b/ttl"} <= renewed.names
        renewed.commit()
        assert renewed.kinds() == [Kind.TOUCH]
        assert renewed.stream.recorded_deadline_ms == deadline_ms
        renewed.flush()
        assert renewed.catalog.find_name("b/ttl").deadline_ms == deadline_ms
        renewed.written("b/third")
        assert "b/ttl" not in renewed.names
        assert renewed.shard.find("b/ttl").deadline_ms == deadline_ms

    def test_it_is_recorded_once(self, renewed):
        renewed.written("b/other")
        find(renewed, "b/other")
        for _ in range(3):
            renewed.tier._evict()
        renewed.commit()
        assert renewed.kinds() == [Kind.TOUCH]

    def test_record_that_fails_is_tried_again(self, renewed):
        renewed.written("b/other")
        renewed.answer(FAILED)
        assert "b/ttl" in renewed.names
        renewed.written("b/third")
        assert "b/ttl" in renewed.names
        renewed.commit()
        assert renewed.kinds() == [Kind.TOUCH]

    def test_crash_before_it_is_recorded_loses_the_renewal_only(self, renewed):
        renewed.written("b/other")
        again = renewed.restart()
        assert again.shard.find("b/ttl").tail == 1
        again.close()


class TestComingBack:
    def test_everything_about_a_stream_comes_back(self, make):
        driver = make(streams_cached_max=1)
        driver.create("b/1", JSON, body=b'[1,{"a":2}]', ttl_s=1000)
        producer = Producer(b"p", 3, 0)
        driver.append(b"[3]", name="b/1", media=JSON, producer=producer, seq=b"s1", close=True)
        driver.commit()
        before = driver.shard.find("b/1")
        driver.flush()
        driver.written("b/2")
        assert "b/1" not in driver.names
        after = driver.shard.find("b/1")
        assert after is not before
        for field in (
            "number",
            "meta",
            "media",
            "created_ms",
            "last_write_ms",
            "tail",
            "closed",
            "closer",
            "seq",
            "deadline_ms",
            "recorded_deadline_ms",
        ):
            assert getattr(after, field) == getattr(before, field)
        assert driver.data("b/1") == b'1\x1e{"a":2}\x1e3\x1e'

    def test_duplicates_are_known_though_the_stream_had_left(self, make):
        driver = make(streams_cached_max=1)
        driver.create("b/1")
        driver.committed(driver.produce(0, b"once", name="b/1"))
        driver.flush()
        driver.written("b/2")
        again = driver.produce(0, b"once", name="b/1")
        assert driver.committed(again).added is False
        assert driver.data("b/1") == b"once"

    def test_creation_finds_what_is_in_packs_only(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2")
        again = driver.committed(driver.create("b/1", TEXT))
        assert again == created(False, TEXT, 1, False)
        assert driver.state.streams == 2

    def test_appends_go_on_from_the_tail(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2", body=b"123")
        assert driver.committed(driver.append(b"45", name="b/1")) == appended(5)
        assert driver.data("b/1") == b"12345"
        again = driver.restart()
        assert again.data("b/1") == b"12345"
        again.close()


class TestRemoved:
    @pytest.fixture
    def removed(self, make):
        """A stream that was evicted and then deleted; the catalog does not know yet."""
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2", body=b"old")
        driver.number = driver.catalog.find_name("b/1").number
        assert driver.committed(driver.delete("b/1")) == Deleted()
        return driver

    def test_it_is_gone_though_the_catalog_has_it(self, removed):
        assert removed.catalog.find_name("b/1") is not None
        assert not removed.exists("b/1")
        for ask in (removed.append(b"x", name="b/1"), removed.delete("b/1")):
            assert isinstance(removed.committed(ask), StreamNotFoundError)
        assert removed.state.find_number(removed.number) is None

    def test_it_is_gone_from_the_catalog_once_it_is_flushed(self, removed):
        removed.begin_flush()
        assert not removed.exists("b/1")
        removed.finish_flush()
        assert removed.catalog.find_name("b/1") is None
        assert not removed.exists("b/1")
        assert removed.state.removed == {}
        assert removed.state.removed_numbers == set()

    def test_it_is_gone_after_a_restart(self, removed):
        again = removed.restart()
        assert not again.exists("b/1")
        again.flush()
        assert not again.exists("b/1")
        again.close()

    def test_failed_deletion_leaves_it_there(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2")
        driver.delete("b/1")
        driver.answer(FAILED)
        assert driver.data("b/1") == b"x"

    def test_name_that_is_taken_again_is_another_stream(self, removed):
        removed.committed(removed.create("b/1", body=b"new"))
        assert removed.data("b/1") == b"new"
        assert removed.shard.find("b/1").number != removed.number
        removed.flush()
        removed.written("b/3")
        assert "b/1" not in removed.names
        assert removed.data("b/1") == b"new"

    def test_name_that_is_taken_again_during_the_flush(self, removed):
        removed.begin_flush()
        removed.committed(removed.create("b/1", body=b"new"))
        removed.finish_flush()
        assert removed.data("b/1") == b"new"
        removed.flush()
        assert removed.data("b/1") == b"new"
        assert removed.state.removed == {}

    def test_name_that_is_taken_and_removed_again(self, removed):
        removed.committed(removed.create("b/1", body=b"new"))
        removed.begin_flush()
        removed.committed(removed.delete("b/1"))
        removed.finish_flush()
        assert removed.catalog.find_name("b/1") is not None
        assert not removed.exists("b/1")
        removed.flush()
        assert removed.catalog.find_name("b/1") is None
        assert not removed.exists("b/1")
        assert (removed.state.removed, removed.state.removed_numbers) == ({}, set())

    def test_deletion_during_the_flush_of_the_creation(self, make):
        driver = make()
        driver.create("b/1", body=b"x")
        driver.begin_flush()
        driver.committed(driver.delete("b/1"))
        driver.finish_flush()
        assert driver.catalog.find_name("b/1") is not None
        assert not driver.exists("b/1")
        driver.flush()
        assert driver.catalog.find_name("b/1") is None
        assert driver.catalog.totals().stored_bytes == 0

    def test_stream_that_lived_within_one_flush(self, make):
        driver = make()
        for _ in range(3):
            driver.committed(driver.create("b/1", body=b"x"))
            driver.committed(driver.delete("b/1"))
        driver.flush()
        assert driver.state.removed == {}
        assert driver.catalog.totals().streams == 0


class TestCounts:
    def check(self, driver, streams, stored_bytes):
        assert (driver.state.streams, driver.state.stored_bytes) == (streams, stored_bytes)

    def test_they_are_right_whatever_happens(self, make):
        driver = make(streams_cached_max=1)
        driver.written("b/1", "b/2", "b/3", body=b"123")
        self.check(driver, 3, 9)
        driver.committed(driver.append(b"45", name="b/1"))
        self.check(driver, 3, 11)
        driver.committed(driver.delete("b/2"))
        self.check(driver, 2, 8)
        driver.begin_flush()
        driver.committed(driver.create("b/2", body=b"1"))
        driver.committed(driver.delete("b/3"))
        self.check(driver, 2, 6)
        driver.finish_flush()
        self.check(driver, 2, 6)
        driver = driver.restart()
        self.check(driver, 2, 6)
        driver.flush()
        totals = driver.catalog.totals()
        assert (totals.streams, totals.stored_bytes) == (2, 6)
        driver = driver.restart()
        self.check(driver, 2, 6)
        driver.committed(driver.delete("b/1"))
        driver.committed(driver.delete("b/2"))
        self.check(driver, 0, 0)
        driver.flush()
        self.check(driver, 0, 0)
        driver.close()

    def test_commit_under_way_during_the_cut(self, make):
        driver = make()
        driver.create("b/1", body=b"123")
        driver.commit()
        driver.append(b"45", name="b/1")
        driver.clock.run()
        driver.tier.flush(lambda _: None)
        driver.log.answer(COMMITTED)
        driver.clock.run()
        driver.finish_flush()
        self.check(driver, 1, 5)
        assert driver.catalog.totals().stored_bytes == 3
        assert driver.data("b/1") == b"12345"


def test_name_is_found_by_name_in_both_places(make):
    driver = make(streams_cached_max=1)
    driver.written(NAME, "b/other")
    assert driver.shard.find(NAME).meta.name == NAME
    with pytest.raises(StreamNotFoundError):
        driver.shard.find("b/none")


def _generations():
    return [each for each in gc.get_objects() if isinstance(each, Generation)]


class TestFreed:
    def test_flushed_generations_go_without_the_collector(self, make):
        """The server's collector rests: what refers to itself in a circle would stay for ever."""
        gc.collect()
        others = _generations()
        driver = make(streams_cached_max=1)
        gc.collect()
        gc.disable()
        try:
            driver.written("b/1", "b/2", "b/3")
            driver.committed(driver.delete(name="b/1"))
            driver.flush()
            left = [each for each in _generations() if not any(each is other for other in others)]
            assert left == [driver.state.generation]
        finally:
            gc.enable()
