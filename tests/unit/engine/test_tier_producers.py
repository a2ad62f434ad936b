"""Producers in the catalog: they leave memory with a flush, and are known all the same."""

import pytest

from holdfast.errors import ProducerFencedError, ProducerGapError, QuotaExceededError
from tests.unit.engine.driver import COMMITTED, NAME
from tests.unit.engine.tiered import Tiered

IDLE_S = 100


@pytest.fixture
def make(tmp_path):
    drivers = []

    def make(**options):
        drivers.append(Tiered(tmp_path, **options))
        drivers[-1].create()
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


def produced(driver, producer_id, seq=0, epoch=0, body=b"x"):
    """The outcome of an append, once it is durable."""
    ask = driver.produce(seq, body, epoch, producer_id)
    driver.commit()
    return ask.outcome


def in_memory(driver):
    stream = driver.state.by_name[NAME]
    return {*(stream.producers or ()), *(stream.cut_producers or ())}


def check_known(driver, producer_id, epoch, seq):
    """What a stream says to a producer whose last pair is this one."""
    again = produced(driver, producer_id, seq, epoch)
    assert (again.added, again.producer) == (False, (epoch, seq, 0, b""))
    assert produced(driver, producer_id, seq + 2, epoch).expected == seq + 1
    if epoch:
        assert isinstance(produced(driver, producer_id, 0, epoch - 1), ProducerFencedError)


def test_flushed_producers_leave_memory_and_are_known(make):
    driver = make()
    for at in range(4):
        produced(driver, b"p%d" % at, epoch=at)
    produced(driver, b"p1", 1, 1)
    driver.flush()
    assert in_memory(driver) == set()
    check_known(driver, b"p3", 3, 0)
    check_known(driver, b"p1", 1, 1)
    assert in_memory(driver) == set()
    assert produced(driver, b"p1", 2, 1).added
    assert in_memory(driver) == {b"p1"}
    assert isinstance(produced(driver, b"new", 1), ProducerGapError)


def test_they_are_known_to_a_stream_that_left_memory_and_after_a_restart(make):
    driver = make(streams_cached_max=1)
    produced(driver, b"p", 0, 2)
    driver.written("b/another")
    assert NAME not in driver.names
    check_known(driver, b"p", 2, 0)
    again = driver.restart()
    try:
        check_known(again, b"p", 2, 0)
        # What the log has is known without the catalog, and comes before it.
        produced(again, b"p", 1, 2)
        third = again.restart()
        try:
            check_known(third, b"p", 2, 1)
        finally:
            third.close()
    finally:
        again.close()


def test_writes_during_a_flush_stay_in_memory(make):
    driver = make()
    produced(driver, b"p")
    produced(driver, b"q")
    driver.begin_flush()
    produced(driver, b"p", 1)
    assert in_memory(driver) == {b"p", b"q"}
    check_known(driver, b"q", 0, 0)
    driver.finish_flush()
    assert in_memory(driver) == {b"p"}
    check_known(driver, b"q", 0, 0)
    check_known(driver, b"p", 0, 1)


def test_they_leave_the_overlay_of_a_stream_that_always_has_a_write_pending(make):
    driver = make()
    driver.commit()
    driver.produce(0, producer_id=b"p0")
    for at in range(1, 6):
        driver.clock.run()
        driver.produce(0, producer_id=b"p%d" % at)
        driver.answer(COMMITTED)
        driver.tier.flush(lambda _: None)
        driver.clock.run()
        driver.finish_flush()
        # One is published and still in memory, or only pending.
        assert len(driver.shard.staged(NAME).producers) <= 2
    driver.commit()
    assert in_memory(driver) == {b"p5"}
    for at in range(6):
        check_known(driver, b"p%d" % at, 0, 0)


def test_a_flush_that_fails_or_is_not_heard_of_loses_none(make):
    driver = make()
    produced(driver, b"p")
    driver.begin_flush()
    driver.worker.fail(after_effect=True)
    produced(driver, b"p", 1)
    assert in_memory(driver) == {b"p"}
    check_known(driver, b"p", 0, 1)
    driver.clock.advance(1)
    driver.finish_flush()
    check_known(driver, b"p", 0, 1)


def test_only_a_stream_with_stored_producers_looks_them_up(make, monkeypatch):
    driver = make()
    asked = []
    find = driver.catalog.find_producer
    monkeypatch.setattr(
        driver.catalog, "find_producer", lambda *which: asked.append(which) or find(*which)
    )
    for at in range(3):
        produced(driver, b"p%d" % at)
    assert asked == []
    driver.create("b/plain")
    driver.append(b"x", name="b/plain")
    driver.flush()
    number = driver.shard.find("b/plain").number
    for seq in range(3):
        driver.committed(driver.produce(seq, name="b/plain"))
        driver.committed(driver.produce(0, name="b/plain", producer_id=b"q%d" % seq))
    assert asked == [(number, b"p")]


class TestLimit:
    def test_further_producers_are_refused(self, make):
        driver = make(producers_max=3)
        for at in range(3):
            assert produced(driver, b"p%d" % at).added
        refused = produced(driver, b"p3")
        assert isinstance(refused, QuotaExceededError)
        assert "The stream has 3 producers, which is the limit" in refused.message
        assert produced(driver, b"p1", 1).added
        driver.committed(driver.append())
        assert isinstance(produced(driver, b"p3", 1), ProducerGapError)

    def test_stored_ones_count(self, make):
        driver = make(producers_max=3)
        produced(driver, b"p0")
        produced(driver, b"p1")
        driver.flush()
        # One that is in memory and in the catalog counts once.
        assert produced(driver, b"p1", 1).added
        assert produced(driver, b"p2").added
        assert isinstance(produced(driver, b"p3"), QuotaExceededError)
        driver.flush()
        assert isinstance(produced(driver, b"p3"), QuotaExceededError)
        assert produced(driver, b"p0", 1).added

    def test_room_is_made_by_those_that_were_idle_for_long(self, make):
        driver = make(producers_max=2, producer_idle_s=IDLE_S)
        produced(driver, b"p0")
        driver.clock.advance(IDLE_S / 2)
        produced(driver, b"p1")
        driver.flush()
        driver.clock.advance(IDLE_S / 2)
        assert isinstance(produced(driver, b"p2"), QuotaExceededError)
        driver.clock.advance(1)
        # The first one may be forgotten, and is with the flush of this append.
        assert produced(driver, b"p2").added
        check_known(driver, b"p0", 0, 0)
        driver.flush()
        assert isinstance(produced(driver, b"p0", 1), ProducerGapError)
        check_known(driver, b"p1", 0, 0)
        assert isinstance(produced(driver, b"p3"), QuotaExceededError)


def test_one_that_writes_again_in_time_is_not_forgotten(make):
    driver = make(producers_max=1, producer_idle_s=IDLE_S)
    produced(driver, b"p")
    driver.flush()
    driver.clock.advance(2 * IDLE_S)
    # Nothing was flushed meanwhile, so it is still known.
    assert produced(driver, b"p", 1).added
    driver.flush()
    check_known(driver, b"p", 0, 1)


def test_a_stream_created_again_knows_none_of_them(make):
    driver = make()
    produced(driver, b"p", 0, 5)
    driver.flush()
    driver.delete()
    driver.create()
    assert produced(driver, b"p", 0, 0).added
    driver.flush()
    check_known(driver, b"p", 0, 0)
    assert driver.writer.read("SELECT epoch FROM producers") == [(0,)]
