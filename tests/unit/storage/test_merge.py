"""Merging: the same bytes and rows in fewer packs, and what is dead is left behind."""

import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import failpoints
from holdfast.errors import (
    ObjectMissingError,
    PackCorruptError,
    StoreError,
    SwapRefusedError,
)
from holdfast.format import pack_builder
from holdfast.format.rows import decode_row, later_row, take_producers
from holdfast.objects import pack_merge
from holdfast.objects.pack_merge import merge_packs
from holdfast.objects.pack_reader import Pack
from holdfast.storage import flush
from holdfast.storage.merge import plan_merge, swap
from tests.memory_directory import memory_directory
from tests.producer_states import stored_producers
from tests.thorough import examples
from tests.unit.storage.histories import (
    History,
    fields_of_row,
    fields_of_stream,
    hot_bytes,
    steps,
    stored_row,
)
from tests.unit.storage.rig import Rig, calls, failing_at


def contents(rig):
    """What must not change: streams, documents, facts, and the bytes and messages needed."""
    dump = rig.dump()
    numbers = [number for number, *_ in dump["streams"]]
    return (
        # Dead bytes of an extent are stored until it is merged.
        [(name, value) for name, value in dump["facts"] if name != "stored_bytes"],
        dump["streams"],
        dump["documents"],
        dump["bytes"],
        {number: rig.messages(number) for number in numbers},
    )


def merge_all(rig, first=0, last=None):
    """Merge packs in use by hand, whatever the plan would be; the new pack's row."""
    sources = [row for row in rig.packs if row.has_delta][first:last]
    made = merge_packs(rig.store, rig.clock, plan_merge(rig.writer, sources))
    swap(rig.writer, [made], [row.name for row in sources], rig.clock.now_ms())
    [row] = [row for row in rig.packs if row.name == made.name]
    return row


class TestBytes:
    def test_merged_bytes_are_the_same_and_lie_together(self, rig):
        one = rig.log.create("b/one", b"a")
        two = rig.log.create("b/two", b"A")
        rig.flush_each(
            *calls(rig.log.append, (one, b"bb"), (two, b"BB"), (one, b"ccc"), (two, b"CCC"))
        )
        before = contents(rig)
        assert len(rig.extents(one)) == 2
        assert rig.merge()
        assert contents(rig) == before
        assert len(rig.packs) == 1
        assert [(each.start, each.length) for each in rig.extents(one)] == [(0, 6)]
        assert [(each.start, each.length) for each in rig.extents(two)] == [(0, 6)]
        assert rig.stored(one) == b"abbccc"
        rig.verify()

    def test_timestamps_and_positions_are_kept(self, rig):
        one = rig.log.create("b/one", b"a")
        for at in range(4):
            rig.log.now_ms += 1000
            rig.log.append(one, b"%d" % at)
            rig.flush()
        before = rig.messages(one)
        assert [at_ms for _, at_ms, _ in before] == [1000, 2000, 3000, 4000, 5000]
        assert [position for _, _, position in before] == [1, 1, 2, 3, 4]
        assert rig.merge()
        assert rig.messages(one) == before

    def test_times_of_merged_packs_are_joined_if_there_are_many(self, rig, monkeypatch):
        one = rig.log.create("b/one", b"a")
        for _ in range(4):
            rig.log.now_ms += 20_000
            rig.log.append(one, b"x")
            rig.flush()
        before = rig.writer.read("SELECT * FROM times")
        assert len(before) == 4
        monkeypatch.setattr(pack_merge, "TIMES_MAX", 3)
        assert rig.merge()
        ((name,),) = rig.writer.read("SELECT name FROM packs WHERE retired_ms IS NULL")
        times = Pack(rig.store, name).delta().meta.times
        assert times == [(1, 2, 1000, 41_000), (3, 4, 61_000, 81_000)]
        assert rig.writer.read("SELECT * FROM times") == before

    def test_extents_that_are_not_adjacent_stay_apart(self, rig, monkeypatch):
        # What lies between them is in a pack that is not merged.
        monkeypatch.setattr(flush, "OWN_PACK_BYTES", 50)
        one = rig.log.create("b/one", b"head")
        rig.flush_each(
            *calls(rig.log.append, (one, b"x"), (one, bytes(60)), (one, b"y"), (one, b"z"))
        )
        before = contents(rig)
        assert rig.merge()
        assert [(each.start, each.length) for each in rig.extents(one)] == [
            (0, 5),
            (5, 60),
            (65, 2),
        ]
        assert contents(rig) == before
        rig.verify()

    @pytest.mark.parametrize("bytes_max", [1, 7, 20])
    def test_extents_coalesce_up_to_their_limit(self, rig, monkeypatch, bytes_max):
        one = rig.log.create("b/one", b"12345")
        rig.flush_each(*calls(rig.log.append, *[(one, b"12345")] * 5))
        monkeypatch.setattr(pack_builder, "EXTENT_BYTES_MAX", bytes_max)
        monkeypatch.setattr(pack_merge, "EXTENT_BYTES_MAX", bytes_max)
        before = contents(rig)
        merge_all(rig)
        lengths = [each.length for each in rig.extents(one)]
        assert sum(lengths) == 30
        assert max(lengths) <= max(bytes_max, 5)
        if bytes_max == 20:
            # The first source has two messages in one extent.
            assert len(lengths) == 2
        assert contents(rig) == before

    @pytest.mark.parametrize("part_bytes", [1, 30, 1 << 20])
    def test_pieces_of_the_upload_do_not_matter(self, rig, monkeypatch, part_bytes):
        monkeypatch.setattr(pack_merge, "_PART_BYTES", part_bytes)
        numbers = [rig.log.create(f"b/{at}", b"x" * at) for at in range(9)]
        rig.flush_each(*calls(rig.log.append, *((number, b"more") for number in numbers)))
        before = contents(rig)
        row = merge_all(rig)
        assert row.size_bytes == rig.memory.size(row.name)
        assert contents(rig) == before
        rig.verify()

    @settings(max_examples=examples(40))
    @given(steps, st.integers(2, 5), st.booleans())
    def test_whatever_was_written_and_however_it_is_merged(self, script, merge_packs, is_late):
        history = History(script)
        with memory_directory() as path, pytest.MonkeyPatch.context() as patch:
            patch.setattr(flush, "OWN_PACK_BYTES", 40)
            rig = Rig(Path(path))
            rig.log = history.log
            rig.start(merge_packs)
            for count in range(1, len(history.cuts) + 1):
                rig.worker._flush.run(history.log.segments[:count])
                while not is_late and rig.merge():
                    pass
            merges = 0
            while rig.merge():
                merges += 1
            assert len([row for row in rig.packs if row.has_delta]) < max(2, merge_packs)
            state = history.state()
            for number, stream in state.by_number.items():
                assert fields_of_row(stored_row(rig.catalog, number)) == fields_of_stream(stream)
                assert rig.stored(number) == hot_bytes(stream)
                assert rig.messages(number) == history.by_number[number].needed_messages()
            rig.verify()
            self._rows_of_packs_are_the_catalogs(rig)
            rig.close()

    @staticmethod
    def _rows_of_packs_are_the_catalogs(rig):
        """The deltas in order add up to the streams and documents of the catalog."""
        rows, documents = {}, {}
        for row in rig.packs:
            delta = rig.open_pack(row).delta()
            for number, encoded in delta.items():
                rows[number] = later_row(rows[number], encoded) if number in rows else encoded
            documents.update(delta.meta.documents)
            for number in delta.meta.removed:
                del rows[number]
        decoded = {number: decode_row(encoded) for number, encoded in rows.items()}
        for number, row in decoded.items():
            assert take_producers(row) == stored_producers(rig.catalog, number)
        stored = rig.writer.read("SELECT number, row FROM streams")
        assert decoded == {number: decode_row(encoded) for number, encoded in stored}
        there = {key: value for key, value in documents.items() if value is not None}
        assert there == dict(rig.writer.read("SELECT key, value FROM documents"))


class TestDead:
    def test_streams_that_are_gone_are_left_behind(self, rig):
        gone = rig.log.create("b/gone", b"soon gone")
        stays = rig.log.create("b/stays", b"stays")
        rig.flush_each(*calls(rig.log.append, (gone, b"x"), (stays, b"y")))
        rig.log.delete(gone)
        rig.flush()
        assert sum(row.dead_bytes for row in rig.packs) == 10
        row = merge_all(rig)
        assert (row.data_bytes, row.dead_bytes, row.rows) == (6, 0, 1)
        assert rig.stored(stays) == b"staysy"
        rig.verify()

    def test_pack_of_which_nothing_lives(self, rig):
        gone = rig.log.create("b/gone", b"soon gone")
        rig.flush()
        rig.log.delete(gone)
        rig.flush()
        row = merge_all(rig)
        assert (row.data_bytes, row.rows, row.messages) == (0, 0, 0)
        rig.verify()

    def test_one_pack_is_rewritten_by_itself(self, rig, monkeypatch):
        from holdfast.storage import merge

        monkeypatch.setattr(merge, "_DEAD_BYTES_MIN", 10)
        gone = rig.log.create("b/gone", bytes(50))
        stays = rig.log.create("b/stays", b"stays")
        rig.flush()
        rig.log.delete(gone)
        rig.flush()
        assert rig.merge()
        assert [(row.data_bytes, row.dead_bytes) for row in rig.packs] == [(5, 0), (0, 0)]
        assert rig.stored(stays) == b"stays"
        assert not rig.merge()
        rig.verify()


class TestDeltas:
    def delta(self, rig, row):
        return rig.open_pack(row).delta()

    def test_last_row_of_each_stream_wins(self, rig):
        one = rig.log.create("b/one", b"a")
        two = rig.log.create("b/two")
        rig.flush_each(*calls(rig.log.append, (one, b"b"), (two, b"c"), (one, b"d")))
        delta = self.delta(rig, merge_all(rig))
        rows = {number: decode_row(encoded) for number, encoded in delta.items()}
        assert {number: row.tail for number, row in rows.items()} == {one: 3, two: 1}
        assert [number for number, _ in delta.items()] == [one, two]

    def test_tombstones_are_kept_only_for_streams_born_before(self, rig):
        old = rig.log.create("b/old", b"x")
        rig.flush()
        young = rig.log.create("b/young", b"y")
        rig.flush()
        rig.log.delete(old)
        rig.log.delete(young)
        rig.flush()
        delta = self.delta(rig, merge_all(rig, 1))
        assert delta.meta.removed == [old]
        assert list(delta.items()) == []
        delta = self.delta(rig, merge_all(rig))
        assert delta.meta.removed == []

    def test_tombstone_does_not_undo_a_name_that_was_taken_again(self, rig):
        old = rig.log.create("b/s", b"x")
        rig.flush()
        rig.log.delete(old)
        new = rig.log.create("b/s", b"y")
        rig.flush()
        delta = self.delta(rig, merge_all(rig))
        assert [number for number, _ in delta.items()] == [new]

    def test_range_is_that_of_all_sources(self, rig):
        one = rig.log.create("b/one")
        rig.flush_each(*calls(rig.log.append, *[(one, b"x")] * 4))
        row = merge_all(rig, 1, 3)
        footer = rig.open_pack(row).footer
        assert (row.after, row.through) == (footer.after, footer.through) == (1, 3)

    def test_companions_in_use_are_kept_and_dead_ones_are_not(self, rig, monkeypatch):
        monkeypatch.setattr(flush, "OWN_PACK_BYTES", 10)
        one = rig.log.create("b/one", bytes(20))
        two = rig.log.create("b/two", bytes(20))
        rig.flush()
        rig.log.append(one, bytes(20))
        rig.log.delete(two)
        rig.flush()
        companions = {
            row.name for row in rig.packs if not row.has_delta and row.dead_bytes < row.data_bytes
        }
        [dead] = [row.name for row in rig.packs if row.dead_bytes]
        rig.worker.collect()
        delta = self.delta(rig, merge_all(rig))
        assert len(companions) == 2
        assert set(delta.meta.companions) == companions
        assert dead not in delta.meta.companions
        assert rig.stored(one) == bytes(40)
        rig.verify()

    def test_supersedes_names_sources_and_what_they_superseded(self, rig):
        one = rig.log.create("b/one")
        rig.flush_each(*calls(rig.log.append, *[(one, b"x")] * 6))
        a, b, c, d, e, f = (row.name for row in rig.packs)
        ab = merge_all(rig, 0, 2)
        assert set(self.delta(rig, ab).meta.supersedes) == {a, b}
        abc = merge_all(rig, 0, 2)
        assert set(self.delta(rig, abc).meta.supersedes) == {a, b, c, ab.name}
        de = merge_all(rig, 1, 3)
        everything = merge_all(rig)
        assert set(self.delta(rig, everything).meta.supersedes) == {
            *(a, b, c, d, e, f),
            *(ab.name, abc.name, de.name),
        }
        assert {row.retired_by for row in rig.retired} == {everything.name}

    def test_what_is_collected_is_not_named_any_longer(self, rig):
        one = rig.log.create("b/one")
        rig.flush_each(*calls(rig.log.append, *[(one, b"x")] * 3))
        a, b, c = (row.name for row in rig.packs)
        ab = merge_all(rig, 0, 2)
        rig.clock.advance(24 * 3600)
        rig.worker.collect()
        assert rig.pack_objects == {ab.name, c}
        abc = merge_all(rig)
        assert set(self.delta(rig, abc).meta.supersedes) == {ab.name, c}
        assert not {a, b} & rig.pack_objects


class TestFailures:
    @pytest.fixture
    def written(self, rig):
        one = rig.log.create("b/one", b"first")
        two = rig.log.create("b/two", b"second")
        rig.flush_each(*calls(rig.log.append, (one, b"a"), (two, b"b"), (one, b"c"), (two, b"d")))
        return rig

    def test_corrupt_source_is_not_merged_and_left_alone_afterwards(self, written):
        rig = written
        before, bad = contents(rig), rig.packs[1]
        rig.store.corrupt(bad.name, 16)
        assert not rig.merge()
        assert contents(rig) == before
        assert rig.orphans == set()
        assert rig.worker.counters.merge_failures == 1
        assert rig.worker.plan_merge() is None
        # Those behind it are merged once there are enough of them.
        one = rig.catalog.find_name("b/one").number
        rig.flush_each(*calls(rig.log.append, *[(one, b"x")] * 2))
        assert rig.merge()
        assert bad.name in {row.name for row in rig.packs}
        assert len(rig.packs) == 3

    @pytest.mark.parametrize("part", ["data_end", "directory_at", "delta_at", "footer_at"])
    def test_damage_anywhere_is_found(self, written, part):
        rig = written
        bad = rig.packs[2]
        footer = rig.open_pack(bad).footer
        at = footer.data_end - 1 if part == "data_end" else getattr(footer, part)
        if part == "directory_at":
            at -= 1  # The message index.
        rig.store.corrupt(bad.name, at)
        plan = rig.worker.plan_merge()
        result = rig.worker.write_merge(plan)
        assert isinstance(result, PackCorruptError)
        assert bad.name in result.message
        assert not rig.worker.finish_merge(result, 0.1)
        assert rig.worker.plan_merge() is None

    def test_source_that_is_missing_is_left_alone_afterwards(self, written):
        rig = written
        bad = rig.packs[0]
        rig.memory.remove(bad.name)
        plan = rig.worker.plan_merge()
        result = rig.worker.write_merge(plan)
        assert isinstance(result, ObjectMissingError)
        assert not rig.worker.finish_merge(result, 0.1)
        assert rig.worker.plan_merge() is None

    def test_restarted_worker_tries_again(self, written):
        rig = written
        rig.store.corrupt(rig.packs[0].name, 16)
        assert not rig.merge()
        rig.store.heal()
        rig.start()
        assert rig.merge()
        rig.verify()

    @pytest.mark.parametrize("operation", ["read", "put_parts"])
    @pytest.mark.parametrize("after_effect", [False, True])
    def test_store_that_fails_is_tried_again(self, written, operation, after_effect):
        rig = written
        before = contents(rig)
        rig.store.fail(operation, after_effect=after_effect)
        assert not rig.merge()
        assert contents(rig) == before
        assert len(rig.orphans) == (operation == "put_parts" and after_effect)
        assert rig.merge()
        assert contents(rig) == before
        assert rig.worker.counters.merge_failures == 1
        rig.verify()

    @pytest.mark.parametrize("name", ["merge.started", "merge.uploading", "merge.uploaded"])
    def test_process_that_ends_before_the_swap_changes_nothing(self, written, monkeypatch, name):
        rig = written
        before = contents(rig)
        monkeypatch.setattr(failpoints, "hook", failing_at(name, OSError("the end")))
        with pytest.raises(OSError, match="the end"):
            rig.merge()
        assert contents(rig) == before
        assert len(rig.orphans) == (name == "merge.uploaded")
        monkeypatch.setattr(failpoints, "hook", None)
        rig.start()
        assert rig.merge()
        assert contents(rig) == before

    def test_process_that_ends_behind_the_swap_has_merged(self, written, monkeypatch):
        rig = written
        before = contents(rig)
        hook = failing_at("merge.committed", OSError("the end"))
        monkeypatch.setattr(failpoints, "hook", hook)
        with pytest.raises(OSError, match="the end"):
            rig.merge()
        monkeypatch.setattr(failpoints, "hook", None)
        assert contents(rig) == before
        assert len(rig.packs) == 1
        rig.start()
        assert not rig.merge()
        rig.verify()


class TestBesideFlushes:
    @pytest.fixture
    def planned(self, rig):
        """A merge whose pack is written and not yet in use."""
        self.one = rig.log.create("b/one", b"first")
        self.two = rig.log.create("b/two", b"second")
        rig.flush_each(
            *calls(
                rig.log.append,
                (self.one, b"a"),
                (self.two, b"b"),
                (self.one, b"c"),
                (self.two, b"d"),
            )
        )
        self.result = rig.worker.write_merge(rig.worker.plan_merge())
        return rig

    def test_flush_meanwhile_is_kept(self, planned):
        planned.log.append(self.one, b"new")
        planned.flush()
        assert planned.worker.finish_merge(self.result, 0.1)
        assert planned.stored(self.one) == b"firstacnew"
        assert [(row.after, row.through) for row in planned.packs] == [(0, 4), (4, 5)]
        planned.verify()

    def test_stream_deleted_meanwhile_is_dead_in_the_new_pack(self, planned):
        planned.log.delete(self.two)
        planned.flush()
        assert planned.worker.finish_merge(self.result, 0.1)
        assert planned.extents(self.two) == []
        assert planned.packs[0].dead_bytes == len(b"secondbd")
        assert planned.stored(self.one) == b"firstac"
        planned.verify()

    def test_stream_deleted_and_made_again_meanwhile(self, planned):
        planned.log.delete(self.two)
        again = planned.log.create("b/two", b"another")
        planned.flush()
        assert planned.worker.finish_merge(self.result, 0.1)
        assert planned.stored(again) == b"another"
        assert planned.extents(self.two) == []
        planned.verify()

    def test_all_streams_deleted_meanwhile(self, planned):
        planned.log.delete(self.one)
        planned.log.delete(self.two)
        planned.flush()
        assert planned.worker.finish_merge(self.result, 0.1)
        assert planned.packs[0].dead_bytes == planned.packs[0].data_bytes
        planned.verify()

    def test_only_one_merge_at_a_time(self, planned):
        assert planned.worker.plan_merge() is None
        assert planned.worker.finish_merge(self.result, 0.1)
        assert planned.worker.merging is None

    def test_source_retired_meanwhile_is_refused(self, planned, caplog):
        sources = planned.packs
        other = merge_all(planned, 0, 2)
        assert not planned.worker.finish_merge(self.result, 0.1)
        # A job was faster, which is no failure.
        assert planned.worker.counters.merge_failures == 0
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
        names = {row.name for row in planned.packs}
        assert names == {other.name, sources[2].name, sources[3].name}
        assert planned.orphans == {self.result.name}
        planned.verify()

    def test_source_retired_before_its_extents_are_read(self, rig):
        # A pack without their bytes must not appear: a rebuild might take it for the latest.
        one = rig.log.create("b/one")
        rig.flush_each(*calls(rig.log.append, *[(one, b"x")] * 4))
        plan = rig.worker.plan_merge()
        merge_all(rig, 0, 2)
        result = rig.worker.write_merge(plan)
        assert isinstance(result, SwapRefusedError)
        assert rig.orphans == set()
        assert not rig.worker.finish_merge(result, 0.1)
        rig.verify()

    def test_counters(self, planned):
        assert planned.worker.finish_merge(self.result, 0.25)
        counters = planned.worker.counters
        assert (counters.merges, counters.merge_failures) == (1, 0)
        assert (counters.merge_us, counters.merged_bytes) == (250_000, self.result.info.size_bytes)
        assert counters.packs == 5

    def test_garbage_waits_for_it(self, planned):
        planned.clock.advance(10 * 24 * 3600)
        planned.worker.collect()
        assert self.result.name in planned.pack_objects
        assert planned.worker.finish_merge(self.result, 0.1)
        assert sum(Pack(planned.memory, self.result.name).verify()) == self.result.info.size_bytes


def test_failed_merge_gives_the_error_that_the_store_gave(rig):
    one = rig.log.create("b/one")
    rig.flush_each(*calls(rig.log.append, *[(one, b"x")] * 4))
    rig.store.fail("put_parts")
    result = rig.worker.write_merge(rig.worker.plan_merge())
    assert isinstance(result, StoreError)
