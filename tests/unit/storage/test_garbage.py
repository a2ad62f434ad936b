"""Garbage: nothing is removed early, nothing that somebody may read, and in the end all of it."""

import pytest

from holdfast import failpoints
from holdfast.errors import StoreError
from holdfast.storage import flush
from holdfast.storage.commands import CollectGarbage, PinPacks
from holdfast.storage.garbage import UNFINISHED_MS_MAX, Collected, OrphanSweep, collect
from holdfast.testing import FakeClock
from tests.unit.storage.rig import DAY_S, calls, failing_at

HOUR_S = 3600


@pytest.fixture
def merged(rig):
    """Four packs that were merged into one, just now."""
    rig.one = rig.log.create("b/one")
    rig.flush_each(*calls(rig.log.append, *[(rig.one, b"x")] * 4))
    rig.old = {row.name for row in rig.packs}
    rig.clock.advance(HOUR_S)
    assert rig.merge()
    [row] = rig.packs
    rig.new = row.name
    return rig


def gone(rig):
    """Which of the old packs are gone; all or nothing."""
    rig.worker.handle(CollectGarbage())
    assert rig.new in rig.pack_objects
    rig.verify()
    left = rig.pack_objects & rig.old
    assert left in (set(), rig.old)
    assert {row.name for row in rig.retired} == left
    return not left


class TestGrace:
    def test_packs_out_of_use_stay_for_the_grace_period(self, merged):
        assert not gone(merged)
        merged.clock.advance(DAY_S - 0.001)
        assert not gone(merged)
        merged.clock.advance(0.001)
        assert gone(merged)

    def test_what_was_removed_is_counted(self, merged):
        sizes = sum(row.size_bytes for row in merged.retired)
        merged.clock.advance(DAY_S)
        given = merged.writer, merged.store, merged.clock.now_ms(), 1000
        sweep = OrphanSweep(merged.store, merged.held.intersection)
        assert collect(*given, sweep) == Collected(4, sizes)
        assert collect(*given, sweep) == Collected(0, 0)

    def test_no_grace_at_all(self, merged):
        merged.start(garbage_grace_s=0)
        assert gone(merged)

    def test_packs_in_use_stay_for_ever(self, merged):
        merged.clock.advance(1000 * DAY_S)
        assert gone(merged)
        merged.clock.advance(1000 * DAY_S)
        merged.worker.collect()
        assert merged.pack_objects == {merged.new}

    def test_counters(self, merged):
        sizes = sum(row.size_bytes for row in merged.retired)
        merged.clock.advance(DAY_S)
        assert gone(merged)
        assert merged.worker.counters.objects_removed == 4
        assert merged.worker.counters.removed_bytes == sizes


class TestPins:
    def pin(self, rig, ttl_s, name="reader"):
        rig.worker.handle(PinPacks(name, ttl_s))

    def test_pin_from_before_holds_back_what_went_out_of_use_since(self, rig):
        one = rig.log.create("b/one")
        rig.flush_each(*calls(rig.log.append, *[(one, b"x")] * 4))
        rig.old = {row.name for row in rig.packs}
        self.pin(rig, 10 * DAY_S)
        rig.clock.advance(HOUR_S)
        assert rig.merge()
        rig.new = rig.packs[0].name
        rig.clock.advance(5 * DAY_S)
        assert not gone(rig)
        rig.clock.advance(5 * DAY_S)
        assert gone(rig)

    def test_pin_of_the_same_moment_holds_it_back(self, merged):
        self.pin(merged, 10 * DAY_S)
        merged.clock.advance(5 * DAY_S)
        assert not gone(merged)

    def test_pin_from_after_does_not(self, merged):
        merged.clock.advance(1)
        self.pin(merged, 10 * DAY_S)
        merged.clock.advance(DAY_S)
        assert gone(merged)

    def test_lifted_pin(self, merged):
        self.pin(merged, 10 * DAY_S)
        merged.clock.advance(2 * DAY_S)
        assert not gone(merged)
        self.pin(merged, 0)
        assert gone(merged)

    def test_lifting_what_is_not_there_is_harmless(self, merged):
        self.pin(merged, 0, "nobody")
        merged.clock.advance(DAY_S)
        assert gone(merged)

    def test_renewed_pin_protects_what_it_did_from_the_start(self, merged):
        self.pin(merged, 2 * DAY_S)
        merged.clock.advance(DAY_S)
        self.pin(merged, 2 * DAY_S)
        merged.clock.advance(1.9 * DAY_S)
        assert not gone(merged)
        merged.clock.advance(0.2 * DAY_S)
        assert gone(merged)

    def test_oldest_of_several_decides(self, merged):
        self.pin(merged, 3 * DAY_S, "old")
        merged.clock.advance(HOUR_S)
        self.pin(merged, 10 * DAY_S, "young")
        merged.clock.advance(2 * DAY_S)
        assert not gone(merged)
        merged.clock.advance(DAY_S)
        assert gone(merged)

    def test_pin_protects_orphans_that_are_younger(self, merged):
        self.pin(merged, 10 * DAY_S)
        merged.clock.advance(1)
        merged.memory.put("packs/upload.pack", b"a job's, to be swapped in later")
        merged.clock.advance(5 * DAY_S)
        merged.worker.collect()
        assert "packs/upload.pack" in merged.pack_objects


class TestOrphans:
    def test_they_are_removed_once_they_are_old(self, rig):
        rig.log.create("b/one", b"x")
        rig.store.fail("put", after_effect=True)
        with pytest.raises(StoreError):
            rig.flush()
        [orphan] = rig.orphans
        rig.flush()
        rig.clock.advance(DAY_S - 1)
        rig.worker.collect()
        assert rig.orphans == {orphan}
        rig.clock.advance(1)
        rig.worker.collect()
        assert rig.orphans == set()
        assert len(rig.pack_objects) == 1
        rig.verify()

    def test_those_of_one_range_go_together(self, rig):
        """A rebuild takes the one with the delta, and would miss its companions."""
        companion, main = "packs/0-1-aa.pack", "packs/0-1-bb.pack"
        rig.memory.put(companion, b"x")
        rig.clock.advance(10)
        rig.memory.put(main, b"x")
        rig.memory.put("packs/1-2-cc.pack", b"x")
        rig.clock.advance(DAY_S - 5)
        rig.worker.collect()
        assert companion in rig.pack_objects
        rig.clock.advance(5)
        rig.worker.collect()
        assert rig.pack_objects == set()

    @pytest.mark.parametrize("behind_s", [-10 * DAY_S, 10 * DAY_S])
    def test_their_age_is_measured_by_the_clock_of_the_store(self, rig, behind_s):
        """A job uploads packs, and swaps them in when all are there."""
        rig.memory._clock = FakeClock(start_ms=rig.clock.now_ms() - behind_s * 1000)
        rig.memory.put("packs/0-1-aa.pack", b"x")
        for seconds, left in ((DAY_S - 1, {"packs/0-1-aa.pack"}), (1, set())):
            rig.clock.advance(seconds)
            rig.memory._clock.advance(seconds)
            rig.worker.collect()
            assert rig.pack_objects == left

    def test_other_objects_are_none_of_its_business(self, rig):
        for name in ("holdfast.json", "backups/1/packs/a.pack", "catalog/1", "packs2/x"):
            rig.memory.put(name, b"x")
        rig.clock.advance(10 * DAY_S)
        rig.worker.collect()
        assert len(rig.memory.objects) == 4

    def test_unfinished_uploads_are_removed_as_late(self, rig, monkeypatch):
        asked = []
        monkeypatch.setattr(rig.memory, "remove_unfinished", lambda ms: asked.append(ms) or 3)
        rig.clock.advance(DAY_S)
        rig.worker.collect()
        assert asked == [rig.clock.now_ms() - DAY_S * 1000]
        assert rig.worker.counters.objects_removed == 3

    def test_uploads_under_way_stay_without_a_grace_period(self, rig, monkeypatch):
        """The server uploads snapshots while the storage process collects."""
        asked = []
        monkeypatch.setattr(rig.memory, "remove_unfinished", lambda ms: asked.append(ms) or 0)
        rig.start(garbage_grace_s=0)
        rig.worker.collect()
        assert asked == [rig.clock.now_ms() - UNFINISHED_MS_MAX]


class TestCompanions:
    @pytest.fixture
    def written(self, rig, monkeypatch):
        monkeypatch.setattr(flush, "OWN_PACK_BYTES", 10)
        rig.one = rig.log.create("b/one", bytes(20))
        rig.two = rig.log.create("b/two", bytes(20))
        rig.flush()
        return rig

    def test_dead_one_is_retired_and_then_removed(self, written):
        written.log.delete(written.one)
        written.flush()
        written.worker.collect()
        [retired] = written.retired
        assert (retired.has_delta, retired.retired_by) == (0, "")
        assert retired.name in written.pack_objects
        written.clock.advance(DAY_S)
        written.worker.collect()
        assert retired.name not in written.pack_objects
        assert written.stored(written.two) == bytes(20)
        written.verify()

    def test_one_that_lives_stays(self, written):
        written.worker.collect()
        assert written.retired == []

    def test_pack_with_the_delta_stays_though_all_is_dead(self, rig):
        one = rig.log.create("b/one", b"x")
        rig.flush()
        rig.log.delete(one)
        rig.flush()
        rig.worker.collect()
        assert rig.retired == []


class TestFailures:
    def test_store_that_fails_leaves_the_row_for_the_next_time(self, merged):
        merged.clock.advance(DAY_S)
        merged.store.fail("remove")
        with pytest.raises(StoreError):
            merged.worker.collect()
        assert len(merged.retired) == 4
        assert gone(merged)

    def test_process_that_ends_between_object_and_row(self, merged, monkeypatch):
        merged.clock.advance(DAY_S)
        hook = failing_at("garbage.removed", OSError("the end"))
        monkeypatch.setattr(failpoints, "hook", hook)
        with pytest.raises(OSError, match="the end"):
            merged.worker.collect()
        monkeypatch.setattr(failpoints, "hook", None)
        assert len(merged.retired) == 4
        assert len(merged.pack_objects & merged.old) == 3
        assert gone(merged)

    def test_listing_that_fails_is_tried_again(self, merged):
        merged.clock.advance(DAY_S)
        merged.store.fail("list")
        with pytest.raises(StoreError):
            merged.worker.collect()
        assert gone(merged)
