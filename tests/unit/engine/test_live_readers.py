"""Live readers: woken when their stream changes, in rounds, and told goodbye at the end."""

import pytest

from holdfast.engine.stream import WAKES_PER_ROUND
from holdfast.testing import FakeClock
from tests.unit.engine.driver import COMMITTED, FAILED, NAME, UNKNOWN, Driver


class Reader:
    """Counts what happens to it, and may do something when it is woken."""

    def __init__(self, on_wake=None):
        self.wakes = 0
        self.finished = 0
        self.on_wake = on_wake

    def wake(self):
        self.wakes += 1
        if self.on_wake is not None:
            self.on_wake()

    def finish(self):
        self.finished += 1


@pytest.fixture
def driver():
    driver = Driver()
    driver.create()
    driver.create("b/other")
    driver.commit()
    return driver


def watch(driver, count=1, name=NAME):
    stream = driver.shard.find(name)
    readers = [Reader() for _ in range(count)]
    for reader in readers:
        driver.shard.live.add(stream, reader)
    return readers


def test_reader_is_woken_by_its_stream_only(driver):
    (mine,) = watch(driver)
    (others,) = watch(driver, name="b/other")
    driver.committed(driver.append(b"x"))
    assert (mine.wakes, others.wakes) == (1, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda driver: driver.append(b"x"),
        lambda driver: driver.append(close=True),
        lambda driver: driver.delete(),
    ],
    ids=["append", "close", "delete"],
)
def test_reader_is_woken_once_a_change_is_durable(driver, change):
    (reader,) = watch(driver)
    change(driver)
    driver.clock.run()
    assert reader.wakes == 0
    driver.answer(COMMITTED)
    assert reader.wakes == 1


def test_reader_is_woken_when_its_stream_expires():
    driver = Driver()
    driver.create(ttl_s=10)
    driver.commit()
    (reader,) = watch(driver)
    driver.clock.advance(11)
    driver.commit()
    assert reader.wakes == 1


def test_reader_is_woken_once_for_a_batch(driver):
    (reader,) = watch(driver)
    for _ in range(10):
        driver.append(b"x")
    driver.commit()
    assert reader.wakes == 1


def test_reader_is_not_woken_by_what_was_not_stored(driver):
    (reader,) = watch(driver)
    driver.append(b"x")
    driver.answer(FAILED)
    driver.append(b"x")
    driver.answer(UNKNOWN, stored=False)
    driver.answer(FAILED)
    assert reader.wakes == 0


def test_answers_go_out_before_readers_are_woken(driver):
    order = []
    (reader,) = watch(driver)
    ask = driver.append(b"x")
    reader.on_wake = lambda: order.append(ask.answered)
    driver.commit()
    assert order == [True]


def test_woken_reader_sees_the_new_bytes(driver):
    seen = []
    (reader,) = watch(driver)
    reader.on_wake = lambda: seen.append(driver.read())
    driver.committed(driver.append(b"x"))
    driver.committed(driver.append(b"y"))
    assert seen == [b"x", b"xy"]


def test_removed_reader_is_left_alone(driver):
    stream = driver.shard.find(NAME)
    first, second = watch(driver, 2)
    driver.shard.live.remove(stream, first)
    driver.shard.live.remove(stream, first)
    driver.committed(driver.append(b"x"))
    assert (first.wakes, second.wakes) == (0, 1)
    assert len(driver.shard.live) == 1


def test_stream_without_readers_holds_nothing_for_them(driver):
    stream = driver.shard.find(NAME)
    readers = watch(driver, 3)
    for reader in readers:
        driver.shard.live.remove(stream, reader)
    assert stream.readers is None
    assert len(driver.shard.live) == 0


def test_reader_may_leave_when_it_is_woken(driver):
    stream = driver.shard.find(NAME)
    readers = watch(driver, 5)
    for reader in readers:
        reader.on_wake = lambda reader=reader: driver.shard.live.remove(stream, reader)
    driver.committed(driver.append(b"x"))
    driver.committed(driver.append(b"y"))
    assert [reader.wakes for reader in readers] == [1] * 5
    assert len(driver.shard.live) == 0


def test_reader_may_remove_another_that_has_not_been_woken_yet(driver):
    stream = driver.shard.find(NAME)
    first, second = watch(driver, 2)
    first.on_wake = lambda: driver.shard.live.remove(stream, second)
    driver.committed(driver.append(b"x"))
    assert (first.wakes, second.wakes) == (1, 0)


def test_everyone_says_goodbye_at_the_end(driver):
    stream = driver.shard.find(NAME)
    readers = watch(driver, 3) + watch(driver, 2, "b/other")
    readers[0].finish = lambda: driver.shard.live.remove(stream, readers[0])
    driver.shard.live.finish_all()
    assert [reader.finished for reader in readers[1:]] == [1] * 4
    assert len(driver.shard.live) == 4


class TestRounds:
    COUNT = 2 * WAKES_PER_ROUND + 10

    def rounds(self, driver, readers):
        """How many readers have been woken, after each round of the loop."""
        woken = [sum(reader.wakes for reader in readers)]
        for _ in range(10):
            self.one_round(driver.clock)
            woken.append(sum(reader.wakes for reader in readers))
        return [count for at, count in enumerate(woken) if at == 0 or count != woken[at - 1]]

    def one_round(self, clock: FakeClock):
        """Run what is due now, but not what that makes due."""
        due = [entry for entry in clock._heap if entry.at_s <= clock._elapsed_s]
        for entry in sorted(due):
            clock._heap.remove(entry)
            if not entry.cancelled:
                entry.call(*entry.args)
        clock._heap.sort()

    def change(self, driver):
        driver.append(b"x")
        driver.clock.run()
        driver.log.answer(COMMITTED)

    def test_loop_gets_a_turn_after_every_round(self, driver):
        readers = watch(driver, self.COUNT)
        self.change(driver)
        assert self.rounds(driver, readers) == [
            WAKES_PER_ROUND,
            2 * WAKES_PER_ROUND,
            self.COUNT,
        ]

    def test_change_during_a_pass_wakes_everyone_again(self, driver):
        readers = watch(driver, self.COUNT)
        self.change(driver)
        stream = driver.shard.find(NAME)
        stream.readers.wake()
        stream.readers.wake()
        driver.clock.run()
        assert {reader.wakes for reader in readers} == {2}

    def test_reader_that_joins_during_a_pass_is_woken_by_the_next_change(self, driver):
        watch(driver, self.COUNT)
        self.change(driver)
        (late,) = watch(driver)
        driver.clock.run()
        assert late.wakes == 0
        self.change(driver)
        driver.clock.run()
        assert late.wakes == 1

    def test_reader_that_leaves_during_a_pass_is_not_woken(self, driver):
        readers = watch(driver, self.COUNT)
        self.change(driver)
        driver.shard.live.remove(driver.shard.find(NAME), readers[-1])
        driver.clock.run()
        assert readers[-1].wakes == 0
        assert readers[-2].wakes == 1

    def test_everyone_may_leave_during_a_pass(self, driver):
        stream = driver.shard.find(NAME)
        readers = watch(driver, self.COUNT)
        self.change(driver)
        for reader in readers:
            driver.shard.live.remove(stream, reader)
        (late,) = watch(driver)
        driver.clock.run()
        self.change(driver)
        driver.clock.run()
        assert late.wakes == 1
