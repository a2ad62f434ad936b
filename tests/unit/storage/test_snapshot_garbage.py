"""Snapshots that nobody has any more are removed, late; those that somebody may have never are."""

import pytest

from holdfast import failpoints
from holdfast.errors import StoreError
from holdfast.storage import garbage
from holdfast.storage.commands import PinPacks
from holdfast.testing import FakeClock
from tests.unit.storage.rig import DAY_S, failing_at, snapshot_of

HOUR_S = 3600
OLD, NEW, OTHER = "snapshots/1/old", "snapshots/1/new", "snapshots/2/other"
BODY = b"a snapshot"


class Bodies:
    """A rig whose log has the clock's time, with a stream of ten bytes."""

    def __init__(self, rig):
        self.rig = rig
        self.log = rig.log
        self.one = self.write(lambda: rig.log.create("b/one", bytes(10)))

    def write(self, write):
        self.log.now_ms = self.rig.clock.now_ms()
        return write()

    def upload(self, name):
        self.rig.memory.put(name, BODY)

    def publish(self, name, offset=5, number=None):
        snapshot = snapshot_of(name, offset, BODY)
        self.write(lambda: self.log.snapshot(number or self.one, snapshot))

    def fork(self, name="b/fork", source=None, source_name="b/one"):
        return self.write(lambda: self.log.fork(name, source or self.one, source_name, 10))

    def delete(self, number):
        self.write(lambda: self.log.delete(number))

    def flush(self):
        """Flush, with something new in it in any case."""
        self.write(lambda: self.log.append(self.one, b"x"))
        self.rig.flush()

    def wait(self, seconds):
        self.rig.clock.advance(seconds)

    def left(self):
        """Collect garbage; the snapshots that are left."""
        self.rig.worker.collect()
        return {name for name in self.rig.memory.objects if name.startswith("snapshots/")}

    @property
    def dropped(self):
        return self.rig.writer.read("SELECT name, size_bytes, dropped_ms FROM dropped_snapshots")


@pytest.fixture
def bodies(rig):
    return Bodies(rig)


@pytest.fixture
def replaced(bodies):
    """A snapshot that another has just replaced."""
    bodies.upload(OLD)
    bodies.publish(OLD)
    bodies.flush()
    bodies.wait(10 * DAY_S)
    bodies.upload(NEW)
    bodies.publish(NEW, 7)
    bodies.flush()
    return bodies


class TestReplaced:
    def test_old_one_stays_for_the_grace_period(self, replaced):
        assert replaced.dropped == [(OLD, len(BODY), replaced.rig.clock.now_ms())]
        assert replaced.left() == {OLD, NEW}
        replaced.wait(DAY_S - 0.001)
        assert replaced.left() == {OLD, NEW}
        replaced.wait(0.001)
        assert replaced.left() == {NEW}
        assert replaced.dropped == []

    def test_one_in_use_stays_for_ever(self, replaced):
        for _ in range(3):
            replaced.wait(1000 * DAY_S)
            replaced.flush()
            assert replaced.left() == {NEW}

    def test_it_goes_though_nothing_is_written_any_more(self, replaced):
        replaced.wait(2 * DAY_S)
        assert replaced.left() == {NEW}

    def test_grace_counts_from_the_flush_however_old_the_object_is(self, bodies):
        bodies.upload(OLD)
        bodies.publish(OLD)
        bodies.flush()
        bodies.publish(NEW, 6)
        bodies.wait(10 * DAY_S)
        bodies.flush()
        assert OLD in bodies.left()

    def test_one_that_was_published_and_replaced_between_two_flushes(self, bodies):
        bodies.upload(OLD)
        bodies.publish(OLD)
        bodies.publish(NEW, 6)
        bodies.flush()
        assert [name for name, _, _ in bodies.dropped] == [OLD]
        bodies.wait(DAY_S)
        assert bodies.left() == set()

    def test_counted(self, replaced):
        replaced.wait(DAY_S)
        replaced.left()
        assert replaced.rig.worker.counters.objects_removed == 1
        assert replaced.rig.worker.counters.removed_bytes == len(BODY)

    def test_many_are_removed_in_several_collections(self, bodies, monkeypatch):
        monkeypatch.setattr(garbage, "REMOVED_MAX", 3)
        names = [f"snapshots/1/{number}" for number in range(8)]
        for offset, name in enumerate(names):
            bodies.upload(name)
            bodies.publish(name, offset)
        bodies.flush()
        bodies.wait(DAY_S)
        assert [bodies.rig.worker.collect() for _ in range(3)] == [True, True, False]
        assert bodies.left() == {names[-1]}
        assert bodies.dropped == []


class TestDeletedStreams:
    def test_snapshot_goes_with_its_stream(self, bodies):
        bodies.upload(OLD)
        other = bodies.write(lambda: bodies.log.create("b/other", bytes(10)))
        bodies.publish(OLD, number=other)
        bodies.flush()
        bodies.delete(other)
        bodies.flush()
        assert bodies.left() == {OLD}
        bodies.wait(DAY_S)
        assert bodies.left() == set()

    def test_fork_keeps_the_snapshot_that_it_took_over(self, bodies):
        bodies.upload(OLD)
        bodies.publish(OLD)
        fork = bodies.fork()
        bodies.publish(NEW, 8)
        bodies.flush()
        bodies.wait(10 * DAY_S)
        bodies.flush()
        assert bodies.left() == {OLD}
        bodies.delete(fork)
        bodies.flush()
        assert [name for name, _, _ in bodies.dropped] == [OLD]
        bodies.wait(DAY_S)
        assert bodies.left() == set()

    def test_last_of_several_forks_decides(self, bodies):
        bodies.upload(OLD)
        bodies.publish(OLD)
        forks = [bodies.fork("b/f1"), bodies.fork("b/f2")]
        forks.append(bodies.fork("b/f3", forks[0], "b/f1"))
        bodies.flush()
        bodies.publish(NEW, 8)
        for fork in forks:
            assert bodies.left() == {OLD}
            bodies.delete(fork)
            bodies.flush()
            bodies.wait(2 * DAY_S)
        assert bodies.left() == set()

    def test_deleted_source_keeps_its_snapshot_while_it_has_forks(self, bodies):
        bodies.upload(OLD)
        other = bodies.write(lambda: bodies.log.create("b/other", bytes(10)))
        bodies.publish(OLD, number=other)
        fork = bodies.fork(source=other, source_name="b/other")
        bodies.delete(other)
        bodies.flush()
        bodies.wait(2 * DAY_S)
        assert bodies.left() == {OLD}
        bodies.delete(fork)
        bodies.flush()
        bodies.wait(DAY_S)
        assert bodies.left() == set()


class TestPins:
    def pin(self, bodies, ttl_s):
        bodies.rig.worker.handle(PinPacks("backup", ttl_s))

    def test_pin_from_before_holds_back_what_went_out_of_use_since(self, bodies):
        bodies.upload(OLD)
        bodies.publish(OLD)
        bodies.flush()
        bodies.wait(10 * DAY_S)
        self.pin(bodies, 10 * DAY_S)
        bodies.wait(1)
        bodies.publish(NEW, 6)
        bodies.flush()
        bodies.wait(5 * DAY_S)
        assert bodies.left() == {OLD}
        bodies.wait(5 * DAY_S)
        assert bodies.left() == set()

    def test_pin_from_after_does_not(self, replaced):
        replaced.wait(1)
        self.pin(replaced, 10 * DAY_S)
        replaced.wait(DAY_S)
        assert replaced.left() == {NEW}

    def test_lifted_pin(self, replaced):
        self.pin(replaced, 10 * DAY_S)
        replaced.wait(2 * DAY_S)
        assert replaced.left() == {OLD, NEW}
        self.pin(replaced, 0)
        assert replaced.left() == {NEW}


class TestOrphans:
    def test_one_that_was_never_published(self, bodies):
        bodies.upload(OTHER)
        bodies.wait(DAY_S - 0.001)
        assert bodies.left() == {OTHER}
        bodies.wait(0.001)
        assert bodies.left() == set()

    def test_one_that_the_server_holds_stays_for_ever(self, bodies):
        """It is under way, or its record is not flushed yet."""
        bodies.upload(OTHER)
        bodies.rig.held.add(OTHER)
        bodies.wait(100 * DAY_S)
        bodies.flush()
        assert bodies.left() == {OTHER}
        bodies.publish(OTHER)
        bodies.flush()
        bodies.rig.held.clear()
        bodies.wait(100 * DAY_S)
        assert bodies.left() == {OTHER}

    def test_server_is_asked_about_those_that_nobody_knows(self, bodies):
        asked = []
        bodies.rig.worker._sweep._held_of = lambda names: asked.append(names) or ()
        bodies.upload(OLD)
        bodies.publish(OLD)
        bodies.flush()
        bodies.wait(DAY_S)
        assert bodies.left() == {OLD}
        assert asked == []
        bodies.upload(OTHER)
        bodies.wait(DAY_S)
        assert bodies.left() == {OLD}
        assert asked == [[OTHER]]

    @pytest.mark.parametrize("behind_s", [-10 * DAY_S, 10 * DAY_S])
    def test_their_age_is_measured_by_the_clock_of_the_store(self, bodies, behind_s):
        clock = bodies.rig.clock
        bodies.rig.memory._clock = FakeClock(start_ms=clock.now_ms() - behind_s * 1000)
        bodies.upload(OTHER)
        for seconds, left in ((DAY_S - 1, {OTHER}), (1, set())):
            bodies.wait(seconds)
            bodies.rig.memory._clock.advance(seconds)
            assert bodies.left() == left

    def test_pin_protects_those_that_are_younger(self, bodies):
        bodies.rig.worker.handle(PinPacks("backup", 100 * DAY_S))
        bodies.wait(1)
        bodies.upload(OTHER)
        bodies.wait(10 * DAY_S)
        bodies.flush()
        assert bodies.left() == {OTHER}

    def test_some_are_looked_at_in_each_collection_and_all_in_the_end(self, bodies, monkeypatch):
        monkeypatch.setattr(garbage, "SWEEP_OBJECTS_MAX", 2)
        for number in range(5):
            bodies.upload(f"snapshots/1/{number}")
        bodies.wait(2 * DAY_S)
        bodies.flush()
        assert [len(bodies.left()) for _ in range(4)] == [3, 1, 0, 0]
        bodies.upload(OTHER)
        bodies.wait(2 * DAY_S)
        bodies.flush()
        assert bodies.left() == set()

    def test_while_a_merge_is_written_too(self, bodies):
        bodies.upload(OTHER)
        bodies.wait(2 * DAY_S)
        for _ in range(4):
            bodies.flush()
        assert bodies.rig.worker.plan_merge() is not None
        assert bodies.left() == set()


class TestFailures:
    def test_process_that_ends_between_object_and_row(self, replaced, monkeypatch):
        replaced.wait(DAY_S)
        monkeypatch.setattr(failpoints, "hook", failing_at("garbage.removed", OSError("the end")))
        with pytest.raises(OSError, match="the end"):
            replaced.left()
        monkeypatch.setattr(failpoints, "hook", None)
        assert len(replaced.dropped) == 1
        assert OLD not in replaced.rig.memory.objects
        assert replaced.left() == {NEW}
        assert replaced.dropped == []

    @pytest.mark.parametrize("operation", ["remove", "list"])
    def test_store_that_fails_is_asked_again(self, replaced, operation):
        replaced.upload(OTHER)
        replaced.wait(2 * DAY_S)
        replaced.flush()
        replaced.rig.store.fail(operation)
        with pytest.raises(StoreError):
            replaced.left()
        assert replaced.left() == {NEW}

    def test_flush_that_fails_drops_nothing(self, bodies):
        bodies.upload(OLD)
        bodies.publish(OLD)
        bodies.flush()
        bodies.publish(NEW, 6)
        bodies.rig.store.fail("put")
        with pytest.raises(StoreError):
            bodies.flush()
        assert bodies.dropped == []
        bodies.rig.flush()
        assert [name for name, _, _ in bodies.dropped] == [OLD]
