"""Listings: the published streams of a bucket in order, wherever they are."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory_directory import memory_directory
from tests.thorough import examples
from tests.unit.engine.driver import FAILED, Driver
from tests.unit.engine.tiered import Tiered

NAMES = [f"{bucket}/{name}" for bucket in ("a", "b", "b2") for name in ("x", "xy", "y/1", "ä")]
ACTIONS = ["create"] * 6 + ["fork", "delete", "delete", "delete"] + ["begin", "finish", "evict"]


@pytest.fixture
def driver(tmp_path):
    driver = Tiered(tmp_path)
    yield driver
    driver.close()


def test_hot_cold_and_both(driver):
    driver.written("b/2", "b/4")
    driver.create("b/1")
    driver.create("b/3")
    driver.commit()
    assert driver.listed("b/") == ["b/1", "b/2", "b/3", "b/4"]
    driver.flush()
    assert driver.listed("b/") == ["b/1", "b/2", "b/3", "b/4"]
    assert driver.restart().listed("b/") == ["b/1", "b/2", "b/3", "b/4"]


def test_what_is_pending_or_failed_is_not_there(driver):
    driver.create("b/1")
    driver.clock.run()
    assert driver.listed("b/") == []
    driver.answer(FAILED)
    assert driver.listed("b/") == []


def test_deleted_while_the_catalog_still_has_it(driver):
    driver.written("b/1", "b/2", "b/3")
    driver.delete("b/2")
    driver.commit()
    assert driver.listed("b/") == ["b/1", "b/3"]


def test_deleted_created_and_deleted_again_before_a_flush(driver):
    driver.written("b/1", "b/2")
    for _ in range(2):
        driver.delete("b/2")
        driver.create("b/2")
    driver.commit()
    assert driver.listed("b/") == ["b/1", "b/2"]
    driver.delete("b/2")
    driver.commit()
    assert driver.listed("b/") == ["b/1"]
    driver.flush()
    assert driver.listed("b/") == ["b/1"]


def test_each_stream_once_though_memory_and_catalog_have_it(driver):
    driver.written("b/1")
    driver.delete("b/1")
    driver.create("b/1")
    driver.commit()
    assert driver.listed("b/") == ["b/1"]
    driver.begin_flush()
    driver.worker.inner.handle(driver.worker.asked[0][0])
    assert driver.listed("b/") == ["b/1"]
    driver.finish_flush()
    assert driver.listed("b/") == ["b/1"]


def test_source_that_is_there_for_its_forks_is_not_listed(driver):
    driver.written("b/source")
    driver.fork("b/fork", "b/source")
    driver.delete("b/source")
    driver.commit()
    assert driver.listed("b/") == ["b/fork"]
    driver.flush()
    assert driver.restart().listed("b/") == ["b/fork"]


def test_stream_past_its_deadline_is_not_listed(driver):
    driver.written("b/short", ttl_s=5)
    driver.create("b/hot", ttl_s=5)
    driver.create("b/long", ttl_s=50)
    driver.commit()
    driver.clock.advance(4.9)
    assert driver.listed("b/") == ["b/hot", "b/long", "b/short"]
    driver.clock._elapsed_s += 0.2
    assert driver.listed("b/") == ["b/long"]


def test_it_brings_nothing_into_memory(driver):
    driver.written(*(f"b/{number:03d}" for number in range(50)))
    again = driver.restart()
    assert len(again.listed("b/", page=7)) == 50
    assert again.names == set()


@pytest.mark.parametrize("page", [1, 2, 5, 1000])
def test_prefixes_and_pages(driver, page):
    names = [f"b/{number:02d}" for number in range(20)]
    driver.written(*names[::2])
    for name in names[1::2]:
        driver.create(name)
    driver.commit()
    assert driver.listed("b/", page=page) == names
    assert driver.listed("b/1", page=page) == names[10:]
    assert driver.listed("b/1", "b/04", page=page) == names[10:]
    assert driver.listed("b/", "b/04", page=page) == names[5:]
    assert driver.listed("b/", "b/045", page=page) == names[5:]
    assert driver.listed("b/", "b/19", page=page) == []
    assert driver.listed("b/0", "b/1", page=page) == []
    assert driver.listed("c/", page=page) == []


def test_names_of_all_buckets(driver):
    driver.written("b/1", "bb/1")
    driver.create("a/2")
    driver.create("b/0")
    driver.commit()
    assert list(driver.shard.names("")) == ["a/2", "b/0", "b/1", "bb/1"]
    assert list(driver.shard.names("b")) == ["b/0", "b/1", "bb/1"]
    assert list(driver.shard.names("b/1")) == ["b/1"]


def test_without_storage():
    driver = Driver()
    for name in ("b/2", "b/1", "c/1"):
        driver.create(name)
    driver.commit()
    assert driver.listed("b/") == ["b/1", "b/2"]
    driver.delete("b/1")
    driver.commit()
    assert driver.listed("b/") == ["b/2"]


class Listed:
    """A shard, and the names that a plain set says are there."""

    def __init__(self, path, seed):
        self.chance = random.Random(seed)
        self.driver = Tiered(path, streams_cached_max=2)
        self.alive = set()
        # Sources that are gone, and there for their forks.
        self.kept = set()

    def create(self):
        name = self.chance.choice(NAMES)
        if name not in self.kept:
            self.driver.create(name)
            self.alive.add(name)

    def fork(self):
        free = [name for name in NAMES if name not in self.alive and name not in self.kept]
        if free and self.alive:
            name, source = self.chance.choice(free), self.chance.choice(sorted(self.alive))
            if self.driver.committed(self.driver.fork(name, source)).created:
                self.alive.add(name)

    def delete(self):
        if self.alive:
            name = self.chance.choice(sorted(self.alive))
            self.driver.delete(name)
            self.alive.discard(name)
            self.driver.commit()
            self._look_for_kept()

    def _look_for_kept(self):
        self.kept = {
            name for name in NAMES
            if (stream := self.driver.state.find(name)) is not None and stream.deleted
        }  # fmt: skip

    def begin(self):
        self.driver.commit()
        if not self.driver.tier.flushing and self.driver.state.generation.records:
            self.driver.begin_flush()

    def finish(self):
        if self.driver.worker.asked:
            self.driver.finish_flush()

    def evict(self):
        self.driver.commit()
        for name in NAMES:
            self.driver.state.find(name)

    def check(self):
        self.driver.commit()
        prefix = self.chance.choice(["a/", "b/", "b2/", "b/x", "b/y/", "none/"])
        after = self.chance.choice(["", "b/", *NAMES])
        page = self.chance.choice([1, 2, 3, 1000])
        expected = sorted(each for each in self.alive if each.startswith(prefix) and each > after)
        assert self.driver.listed(prefix, after, page) == expected


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32), st.integers(20, 120))
def test_it_is_the_sorted_list_of_what_is_there(seed, length):
    with memory_directory() as path:
        listed = Listed(Path(path), seed)
        for _ in range(length):
            getattr(listed, listed.chance.choice(ACTIONS))()
            listed.check()
        listed.driver.close()
