"""Swaps: packs are replaced only by what holds exactly the same, and only while they are in use."""

from random import Random

import msgspec
import pytest

from holdfast.errors import SwapRefusedError
from holdfast.format.pack_builder import PackBuilder
from holdfast.format.packs import BLOCK_BYTES, PackMeta
from holdfast.objects.pack_merge import merge_packs
from holdfast.objects.pack_reader import Pack
from holdfast.storage import flush
from holdfast.storage import merge as merge_module
from holdfast.storage.commands import CollectGarbage, SwapPacks
from holdfast.storage.merge import plan_merge, swap, verified_packs
from tests.unit.storage.rig import DAY_S, calls, snapshot_of


@pytest.fixture
def written(rig):
    """Two streams in four packs."""
    rig.one = rig.log.create("b/one", b"first")
    rig.two = rig.log.create("b/two", b"second")
    rig.flush_each(
        *calls(
            rig.log.append, (rig.one, b"aa"), (rig.two, b"bb"), (rig.one, b"cc"), (rig.two, b"dd")
        )
    )
    rig.names = [row.name for row in rig.packs]
    return rig


def written_merge(rig, first=0, last=None):
    return merge_packs(rig.store, rig.clock, plan_merge(rig.writer, rig.packs[first:last]))


def without(pack, stream):
    extents = [extent for extent in pack.extents if extent.stream != stream]
    return pack._replace(extents=extents)


def changed(pack, **info):
    return pack._replace(info=msgspec.structs.replace(pack.info, **info))


def refused(rig, added, removed, match):
    before = rig.dump()
    with pytest.raises(SwapRefusedError, match=match):
        swap(rig.writer, added, removed, 5)
    assert rig.dump() == before
    assert rig.retired == []


class TestTrimmed:
    """Streams that a snapshot has trimmed: only bytes from its offset on are needed."""

    @pytest.fixture
    def trimmed(self, rig):
        """Three packs with three messages of four bytes each."""
        rig.one = rig.log.create("b/one")
        for _ in range(3):
            for text in (b"aaaa", b"bbbb", b"cccc"):
                rig.log.append(rig.one, text)
            rig.flush()
        rig.names = [row.name for row in rig.packs]
        return rig

    def trim(self, rig, offset=16):
        rig.log.snapshot(rig.one, snapshot_of("snapshots/one", offset))
        rig.flush()

    def test_before_the_plan(self, trimmed):
        self.trim(trimmed)
        assert trimmed.catalog.totals().stored_bytes == 24
        made = written_merge(trimmed, 0, 3)
        assert [(each.start, each.end) for each in made.extents] == [(16, 36)]
        swap(trimmed.writer, [made], trimmed.names, 5)
        assert trimmed.stored(trimmed.one) == b"bbbbcccc" + b"aaaabbbbcccc"
        assert trimmed.catalog.totals().stored_bytes == 20
        trimmed.verify()

    def test_between_the_plan_and_the_swap(self, trimmed):
        """What comes has more than is needed, which is stored again until the next merge."""
        made = written_merge(trimmed, 0, 3)
        self.trim(trimmed)
        assert trimmed.catalog.totals().stored_bytes == 24
        swap(trimmed.writer, [made], trimmed.names, 5)
        assert trimmed.catalog.totals().stored_bytes == 36
        assert trimmed.stored(trimmed.one) == b"bbbbcccc" + b"aaaabbbbcccc"
        trimmed.verify()

    def test_all_of_it_between_the_plan_and_the_swap(self, trimmed):
        made = written_merge(trimmed, 0, 3)
        self.trim(trimmed, 36)
        swap(trimmed.writer, [made], trimmed.names, 5)
        assert trimmed.catalog.totals().stored_bytes == 0
        assert trimmed.extents(trimmed.one) == []
        trimmed.verify()

    def test_start_inside_a_message(self, trimmed):
        self.trim(trimmed, 18)
        made = written_merge(trimmed, 0, 3)
        assert [(each.start, each.end) for each in made.extents] == [(16, 36)]

    def test_kept_for_a_fork(self, trimmed):
        trimmed.log.fork("b/fork", trimmed.one, "b/one", 36)
        self.trim(trimmed)
        made = written_merge(trimmed, 0, 3)
        assert [(each.start, each.end) for each in made.extents] == [(0, 36)]
        [extent] = made.extents
        clipped = made._replace(extents=[extent._replace(start=16, length=20)])
        refused(trimmed, [clipped], trimmed.names, "bytes 0 to 36 .* and bytes 16 to 36 in those")

    def test_byte_that_is_needed_is_not_lost(self, trimmed):
        self.trim(trimmed)
        made = written_merge(trimmed, 0, 3)
        [extent] = made.extents
        for wrong in (extent._replace(start=17, length=19), extent._replace(length=19)):
            refused(trimmed, [made._replace(extents=[wrong])], trimmed.names, "Stream")


class TestRefused:
    def test_nothing_to_remove(self, written):
        refused(written, [], [], "no pack named")
        refused(written, [written_merge(written)], [], "no pack named")

    def test_pack_that_is_not_known(self, written):
        added = [written_merge(written)]
        refused(written, added, [*written.names, "packs/unknown"], "Not in use any more: packs/unk")

    def test_pack_that_is_retired(self, written):
        one, other = written_merge(written), written_merge(written)
        swap(written.writer, [one], written.names, 5)
        before = written.dump()
        with pytest.raises(SwapRefusedError, match=written.names[2]):
            swap(written.writer, [other], written.names, 6)
        assert written.dump() == before

    def test_pack_that_is_known_already(self, written):
        made = written_merge(written)
        refused(written, [changed(made, name=written.names[0])], written.names, "known already")
        swap(written.writer, [made], written.names, 5)
        with pytest.raises(SwapRefusedError, match="known already"):
            swap(written.writer, [made], [made.name], 6)

    def test_same_pack_twice(self, written):
        made = written_merge(written)
        refused(written, [made, changed(made, has_delta=False)], written.names, "known already")

    def test_missing_bytes(self, written):
        made = written_merge(written)
        refused(written, [without(made, written.one)], written.names, f"Stream {written.one:x}")
        [extent] = [each for each in made.extents if each.stream == written.two]
        for wrong in (
            extent._replace(length=extent.length - 1),
            extent._replace(start=1, length=extent.length - 1),
            extent._replace(start=1),
            extent._replace(length=extent.length + 1),
        ):
            bad = without(made, written.two)
            bad = bad._replace(extents=[*bad.extents, wrong])
            refused(written, [bad], written.names, f"Stream {written.two:x}")

    def test_doubled_bytes(self, written):
        made = written_merge(written)
        first, *rest = made.extents
        doubled = made._replace(extents=[first, first, *rest])
        refused(written, [doubled], written.names, f"Stream {written.one:x}")
        inside = first._replace(start=2, length=3)
        overlapping = made._replace(extents=[first, inside, *rest])
        refused(written, [overlapping], written.names, f"Stream {written.one:x}")

    def test_doubled_bytes_that_are_dead(self, written):
        made = written_merge(written)
        written.log.delete(written.one)
        written.flush()
        first, *rest = made.extents
        doubled = made._replace(extents=[first, first, *rest])
        assert first.stream == written.one
        refused(written, [doubled], written.names, f"Stream {written.one:x} has no bytes")
        swap(written.writer, [made], written.names, 5)
        written.verify()

    def test_bytes_doubled_over_two_packs(self, written):
        made = written_merge(written)
        other = changed(made, name="packs/other", has_delta=False)
        refused(written, [made, other], written.names, "Stream")

    def test_bytes_that_were_elsewhere(self, written):
        made = written_merge(written, 0, 2)
        last = written_merge(written, 3, 4)
        bad = made._replace(extents=sorted([*made.extents, *last.extents]))
        refused(written, [bad], written.names[:2], "Stream")

    def test_bytes_of_a_stream_that_had_none_there(self, written):
        made = written_merge(written, 2, 3)
        [stray, *_] = written_merge(written, 3, 4).extents
        stray = stray._replace(start=0)
        refused(
            written,
            [made._replace(extents=sorted([*made.extents, stray]))],
            written.names[2:3],
            f"Stream {written.two:x} has no bytes in the packs that are to go",
        )

    def test_packs_that_are_no_neighbours(self, written):
        made = written_merge(written)
        refused(written, [made], [written.names[0], written.names[2]], "not neighbours")

    @pytest.mark.parametrize("range_of", [(0, 3), (1, 4), (0, 5)])
    def test_another_range_of_the_log(self, written, range_of):
        after, through = range_of
        made = changed(written_merge(written), after=after, through=through)
        refused(written, [made], written.names, "have deltas for")

    def test_delta_that_is_missing_or_too_much(self, written):
        made = written_merge(written)
        refused(written, [changed(made, has_delta=False)], written.names, "have deltas for")
        other = changed(made, name="packs/other")._replace(extents=[])
        refused(written, [made, other], written.names, "have deltas for")

    def test_removal_of_what_lives(self, written, monkeypatch):
        monkeypatch.setattr(flush, "OWN_PACK_BYTES", 10)
        written.log.append(written.one, bytes(20))
        written.flush()
        [companion] = [row.name for row in written.packs if not row.has_delta]
        refused(written, [], [companion], f"Stream {written.one:x}")


class TestDone:
    def test_live_bytes_are_in_the_new_pack_and_the_old_ones_are_retired(self, written):
        made = written_merge(written)
        swap(written.writer, [made], written.names, 5)
        assert [row.name for row in written.packs] == [made.name]
        assert {(row.name, row.retired_ms, row.retired_by) for row in written.retired} == {
            (name, 5, made.name) for name in written.names
        }
        assert written.stored(written.one) == b"firstaacc"
        assert written.catalog.flushed == 4
        written.verify()

    def test_part_of_the_log(self, written):
        made = written_merge(written, 1, 3)
        swap(written.writer, [made], written.names[1:3], 5)
        assert [row.name for row in written.packs] == [
            written.names[0],
            made.name,
            written.names[3],
        ]
        assert written.stored(written.one) == b"firstaacc"
        written.verify()

    def test_stream_deleted_meanwhile_is_dead_in_what_comes(self, written):
        made = written_merge(written)
        written.log.delete(written.one)
        written.flush()
        swap(written.writer, [made], written.names, 5)
        assert written.packs[0].dead_bytes == len(b"firstaacc")
        assert written.extents(written.one) == []
        written.verify()

    def test_several_packs_may_come(self, written):
        made = written_merge(written)
        halves = self._split(written, made)
        swap(written.writer, halves, written.names, 5)
        assert written.stored(written.one) == b"firstaacc"
        assert written.stored(written.two) == b"secondbbdd"
        assert {row.retired_by for row in written.retired} == {halves[0].name}
        written.verify()

    @staticmethod
    def _split(rig, made):
        """The same as two packs: one with the delta, one without."""
        delta = Pack(rig.memory, made.name).delta()
        packs = []
        for number, has_delta in ((rig.one, True), (rig.two, False)):
            builder = PackBuilder(7 + has_delta, made.info.after, made.info.through)
            out = bytearray(builder.header())
            [extent] = [each for each in made.extents if each.stream == number]
            data = rig.memory.read(made.name, extent.data_at, extent.length)
            index = Pack(rig.memory, made.name).index()
            part = index.part(extent.message_at, extent.message_at + extent.messages)
            builder.add(number, 0, data, part)
            out += data
            meta = PackMeta(5, has_delta=has_delta)
            for part in builder.finish(meta, delta.items() if has_delta else []):
                out += part
            name = f"packs/split-{has_delta}.pack"
            rig.memory.put(name, out)
            packs.append(Pack(rig.memory, name).describe())
        return packs


class TestCommand:
    def test_packs_are_read_and_swapped(self, written):
        made = written_merge(written)
        written.worker.handle(SwapPacks([made.name], written.names))
        assert [row.name for row in written.packs] == [made.name]
        assert written.retired[0].retired_ms == written.clock.now_ms()
        assert written.worker.counters.swaps == 1
        written.verify()

    def test_what_is_read_is_what_the_builder_knew(self, written, tmp_path):
        made = written_merge(written)
        [found] = verified_packs(written.memory, [made.name], tmp_path)
        assert found.info == made.info
        assert list(found.extents) == list(made.extents)

    def test_pack_with_the_delta_comes_first(self, written, tmp_path):
        made = written_merge(written)
        halves = TestDone._split(written, made)
        names = [pack.name for pack in halves]
        found = verified_packs(written.memory, names[::-1], tmp_path)
        assert [pack.name for pack in found] == names

    def test_damaged_pack_is_refused(self, written):
        made = written_merge(written)
        before = written.dump()
        footer = Pack(written.memory, made.name).footer
        for at in (
            0,
            16,
            footer.lengths_at,
            footer.directory_at,
            footer.delta_at,
            footer.footer_at,
        ):
            written.store.corrupt(made.name, at)
            with pytest.raises(SwapRefusedError, match=made.name):
                written.worker.handle(SwapPacks([made.name], written.names))
            written.store.heal()
        assert written.dump() == before
        assert written.worker.counters.swaps == 0

    def test_of_a_large_pack_only_lists_and_some_blocks_are_read(self, rig, monkeypatch):
        monkeypatch.setattr(merge_module, "SPOT_BYTES_MAX", 4 * BLOCK_BYTES)
        chance = Random(1)
        numbers = [rig.log.create(f"b/{at}") for at in range(40)]
        for _ in range(2):
            for number in numbers:
                rig.log.append(number, chance.randbytes(3 * BLOCK_BYTES // 4))
            rig.flush()
        made, names = written_merge(rig), [row.name for row in rig.packs]
        command = SwapPacks([made.name], names)
        blocks_read, bytes_read = set(), 0
        read = rig.memory.read

        def counted(name, at=0, size=None):
            nonlocal bytes_read
            data = read(name, at, size)
            bytes_read += len(data)
            if name == made.name and at < made.info.data_bytes:
                blocks_read.add(at)
            return data

        monkeypatch.setattr(rig.memory, "read", counted)
        assert not isinstance(rig.worker.verify_swap(command), SwapRefusedError)
        assert made.info.data_bytes == 60 * BLOCK_BYTES
        # Neither the header nor the tail, which has the lists, is one of the blocks.
        assert bytes_read < 6 * BLOCK_BYTES
        blocks_read -= {0, made.info.size_bytes - BLOCK_BYTES}
        assert len(blocks_read) == 4
        assert max(blocks_read) - min(blocks_read) > made.info.data_bytes // 2
        for at in sorted(blocks_read):
            rig.store.corrupt(made.name, at)
            refusal = rig.worker.verify_swap(command)
            assert isinstance(refusal, SwapRefusedError)
            assert "does not match its checksum" in refusal.message
            rig.store.heal()
        rig.worker.handle(command)
        rig.verify()

    def test_pack_that_was_never_uploaded(self, written):
        with pytest.raises(SwapRefusedError, match=r"packs/no\.pack"):
            written.worker.handle(SwapPacks(["packs/no.pack"], written.names))


def test_pack_collected_while_it_was_verified_is_not_put_into_use(rig):
    number = rig.log.create("bucket/s", b"bytes")
    rig.flush()
    (old,) = rig.packs
    new = merge_packs(rig.memory, rig.clock, plan_merge(rig.writer, [old]))
    rig.clock.advance(2 * DAY_S)
    command = SwapPacks([new.name], [old.name])
    verified = rig.worker.verify_swap(command)
    rig.worker.handle(CollectGarbage())
    assert new.name not in rig.memory.objects
    with pytest.raises(SwapRefusedError):
        rig.worker.finish_swap(command, verified)
    assert rig.packs == [old]
    assert rig.stored(number) == b"bytes"
