"""Flushing: sealed log becomes packs and rows, and whatever fails on the way changes nothing."""

import pytest

from holdfast import failpoints
from holdfast.errors import CatalogError, LogCorruptError, StoreError
from holdfast.format.pack_builder import pack_name
from holdfast.format.records import Kind, Record, encode
from holdfast.format.segments import SegmentHeader, encode_batch, encode_header
from holdfast.storage import flush
from holdfast.storage.flush import SegmentRef
from tests.simulation.files import KilledError
from tests.unit.storage.rig import Rig, failing_at

OWN_BYTES = 100


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(flush, "OWN_PACK_BYTES", OWN_BYTES)


def write_some(log, rounds=3):
    """A few streams over a few batches, some of which end."""
    first = log.create("b/first", b"first")
    large = log.create("b/large", bytes(OWN_BYTES))
    gone = log.create("b/gone", b"soon gone", ttl_s=10)
    log.create("b/empty")
    log.commit()
    for at in range(rounds):
        log.append(first, b"more %d" % at)
        log.append(large, b"and more")
        log.commit()
    log.delete(gone)
    log.touch(large, 12345)
    log.commit()
    return first, large


class TestPacks:
    def test_everything_of_a_range_is_in_one_pack(self, rig):
        first, large = write_some(rig.log)
        rig.flush()
        [row] = rig.packs
        assert (row.after, row.through, row.has_delta, row.rows) == (0, 5, 1, 3)
        assert row.data_bytes == len(b"first" + 3 * b"more 0") + OWN_BYTES + 24
        assert row.messages == 8
        assert rig.stored(first) == b"firstmore 0more 1more 2"
        assert rig.catalog.find_number(large).deadline_ms == 12345
        rig.verify()

    def test_pack_carries_the_rows_as_of_its_end_and_who_is_gone(self, rig):
        _, large = write_some(rig.log)
        rig.flush()
        rig.log.delete(large)
        again = rig.log.create("b/large", b"x")
        rig.flush()
        one, two = (rig.open_pack(row).delta() for row in rig.packs)
        assert one.meta.removed == []
        assert len(list(one.items())) == 3
        assert two.meta.removed == [large]
        [(number, encoded)] = two.items()
        assert number == again
        assert rig.writer.read("SELECT row FROM streams WHERE number = ?", (again,)) == [(encoded,)]
        assert two.meta.created_ms == rig.clock.now_ms()

    def test_range_without_bytes_is_a_pack_too(self, rig):
        number = rig.log.create("b/s", ttl_s=5)
        rig.flush()
        rig.log.touch(number, 99)
        rig.flush()
        rig.log.delete(number)
        rig.flush()
        assert [(row.after, row.through, row.data_bytes) for row in rig.packs] == [
            (0, 1, 0),
            (1, 2, 0),
            (2, 3, 0),
        ]
        rig.verify()

    def test_packs_name_tells_range_and_attempt(self, rig):
        write_some(rig.log)
        rig.flush()
        [row] = rig.packs
        assert row.name == pack_name(0, 5, int(row.salt, 16))
        assert row.name.startswith("packs/0000000000000000-0000000000000005-")

    def test_what_was_done_is_counted(self, rig):
        write_some(rig.log)
        rig.log.seal()
        done = rig.worker._flush.run(rig.log.segments)
        [row] = rig.packs
        assert done == (5, 1, row.size_bytes, row.data_bytes, 3)

    @pytest.mark.usefixtures("small_limits")
    def test_stream_with_many_bytes_gets_a_pack_of_its_own(self, rig):
        first, large = write_some(rig.log)
        rig.flush()
        companion, main = sorted(rig.packs, key=lambda row: row.has_delta)
        assert (companion.has_delta, companion.rows, companion.dead_bytes) == (0, 0, 0)
        assert companion.data_bytes == len(rig.stored(large)) == OWN_BYTES + 24
        assert main.rows == 3
        assert main.data_bytes == len(rig.stored(first))
        delta = rig.open_pack(main).delta()
        assert delta.meta.companions == [companion.name]
        assert len(list(delta.items())) == 3
        assert not rig.open_pack(companion).delta().meta.has_delta
        assert list(rig.open_pack(companion).delta().items()) == []
        rig.verify()

    @pytest.mark.usefixtures("small_limits")
    def test_limit_is_the_bytes_in_one_range(self, rig):
        number = rig.log.create("b/s", bytes(OWN_BYTES))
        rig.flush()
        rig.log.append(number, bytes(OWN_BYTES + 1))
        rig.flush()
        assert [row.has_delta for row in rig.packs] == [1, 0, 1]


class TestRanges:
    @pytest.mark.parametrize("range_bytes", [1, 300, 700, 10_000])
    def test_long_log_is_flushed_in_parts(self, rig, monkeypatch, tmp_path, range_bytes):
        path = tmp_path / "other"
        path.mkdir()
        other = Rig(path)
        for log in (rig.log, other.log):
            first = log.create("b/first")
            for at in range(6):
                log.append(first, b"%d" % at * 40)
                log.create(f"b/{at}", b"x")
                log.seal()
        rig.flush()
        monkeypatch.setattr(flush, "RANGE_BYTES_MAX", range_bytes)
        other.flush()
        assert (len(other.packs) == 1) == (range_bytes == 10_000)
        if range_bytes == 1:
            assert [(row.after, row.through) for row in other.packs] == [
                (at, at + 1) for at in range(6)
            ]
        assert other.dump()["bytes"] == rig.dump()["bytes"]
        assert other.dump()["streams"] == rig.dump()["streams"]
        assert other.dump()["facts"] == rig.dump()["facts"]
        other.verify()
        other.close()

    def test_segment_with_many_streams_is_flushed_in_parts(self, rig, monkeypatch):
        monkeypatch.setattr(flush, "RANGE_BYTES_MAX", 10_000)
        numbers = []
        for at in range(40):
            numbers.append(rig.log.create(f"b/{at}", b"%d" % at))
            rig.log.commit()
        rig.flush()
        assert len(rig.log.segments) == 1
        # Streams count more than their few bytes.
        assert len(rig.packs) == 5
        assert max(row.rows for row in rig.packs) == 8
        assert [rig.stored(number) for number in numbers] == [b"%d" % at for at in range(40)]
        rig.verify()

    def test_merges_keep_up_with_a_flush_of_many_packs(self, rig, monkeypatch):
        monkeypatch.setattr(flush, "RANGE_BYTES_MAX", 1)
        rig.start(merge_packs=4, between_ranges=rig.merge)
        number = rig.log.create("b/s", b"x")
        for _ in range(40):
            rig.log.append(number, b"x")
            rig.log.commit()
        rig.flush()
        assert rig.worker.counters.packs - rig.worker.counters.merges == 40
        assert len(rig.packs) < 8
        assert rig.stored(number) == b"x" * 41
        rig.verify()

    def test_failure_in_a_later_range_keeps_the_earlier_ones(self, rig, monkeypatch):
        monkeypatch.setattr(flush, "RANGE_BYTES_MAX", 1)
        number = rig.log.create("b/s", b"one")
        rig.log.seal()
        rig.log.append(number, b"two")
        rig.log.seal()
        failures = iter([False, True])
        put = rig.memory.put

        def fail_second(name, data):
            if next(failures, False):
                raise StoreError("no")
            put(name, data)

        monkeypatch.setattr(rig.memory, "put", fail_second)
        with pytest.raises(StoreError):
            rig.flush()
        assert rig.worker.flushed == 1
        assert rig.stored(number) == b"one"
        rig.flush()
        assert rig.worker.flushed == 2
        assert rig.stored(number) == b"onetwo"
        rig.verify()

    def test_stream_that_ends_in_a_later_range(self, rig, monkeypatch):
        monkeypatch.setattr(flush, "RANGE_BYTES_MAX", 1)
        number = rig.log.create("b/s", b"one")
        rig.log.seal()
        rig.log.delete(number)
        again = rig.log.create("b/s", b"two")
        rig.log.seal()
        rig.flush()
        assert rig.catalog.find_name("b/s").number == again
        assert rig.extents(number) == []
        assert [row.dead_bytes for row in rig.packs] == [3, 0]
        rig.verify()


class TestRetries:
    @pytest.fixture
    def expected(self, tmp_path, small_limits):
        """What the catalog says after a flush without trouble."""
        path = tmp_path / "expected"
        path.mkdir()
        rig = Rig(path)
        write_some(rig.log)
        rig.flush()
        dump = rig.dump()
        rig.close()
        return dump

    @pytest.mark.parametrize("after_effect", [False, True])
    @pytest.mark.parametrize("sound_puts", [0, 1])
    def test_failed_put_leaves_only_what_it_stored_unheard(
        self, rig, expected, after_effect, sound_puts
    ):
        write_some(rig.log)
        before = rig.dump()
        puts = rig.memory.put
        for failure in range(3):
            count = 0

            def put(name, data):
                nonlocal count
                count += 1
                if count > sound_puts:
                    if after_effect:
                        puts(name, data)
                    raise StoreError("no answer")
                puts(name, data)

            rig.memory.put = put
            with pytest.raises(StoreError):
                rig.flush()
            assert rig.dump() == before
            assert len(rig.orphans) == (failure + 1) * after_effect
        rig.memory.put = puts
        rig.flush()
        assert rig.dump() == expected
        assert len(rig.orphans) == 3 * after_effect
        rig.verify()

    def test_store_that_fails_as_the_fault_store_does(self, rig, expected):
        write_some(rig.log)
        rig.store.fail("put")
        rig.store.fail("put", after_effect=True)
        for _ in range(2):
            with pytest.raises(StoreError):
                rig.flush()
        rig.flush()
        assert rig.dump() == expected
        assert len(rig.orphans) == 1

    @pytest.mark.parametrize("name", ["flush.started", "flush.gathered", "flush.uploaded"])
    def test_process_that_ends_before_the_commit_changes_nothing(
        self, rig, expected, monkeypatch, name
    ):
        write_some(rig.log)
        before = rig.dump()
        monkeypatch.setattr(failpoints, "hook", failing_at(name, KilledError("the end")))
        with pytest.raises(KilledError, match="the end"):
            rig.flush()
        assert rig.dump() == before
        monkeypatch.setattr(failpoints, "hook", None)
        rig.start()
        rig.flush()
        assert rig.dump() == expected
        assert len(rig.orphans) == (2 if name == "flush.uploaded" else 0)

    def test_process_that_ends_behind_the_commit_has_flushed(self, rig, expected, monkeypatch):
        write_some(rig.log)
        hook = failing_at("flush.committed", OSError("the end"))
        monkeypatch.setattr(failpoints, "hook", hook)
        with pytest.raises(OSError, match="the end"):
            rig.flush()
        monkeypatch.setattr(failpoints, "hook", None)
        assert rig.dump() == expected
        objects = rig.pack_objects
        rig.flush()
        assert rig.dump() == expected
        assert rig.pack_objects == objects

    def test_flushing_the_same_again_is_harmless(self, rig, expected):
        write_some(rig.log)
        rig.flush()
        objects = rig.pack_objects
        for _ in range(2):
            rig.flush()
        assert rig.dump() == expected
        assert rig.pack_objects == objects

    def test_segment_that_is_partly_flushed_goes_on_where_it_stopped(self, rig):
        first = rig.log.create("b/s", b"one")
        rig.log.commit()
        rig.flush()
        # The cut fell into a segment, which went on to grow.
        rig.log.append(first, b"two")
        rig.log.commit()
        whole = b"".join(
            [
                encode_header(SegmentHeader(1, 1, 0, 0)),
                encode_batch(1, 1, rig.log.body(1)),
                encode_batch(1, 2, rig.log.body(2)),
            ]
        )
        rig.log.files["whole"] = whole
        done = rig.worker._flush.run([SegmentRef("whole", len(whole), 2)])
        assert done.through == 2
        assert rig.stored(first) == b"onetwo"
        rig.verify()

    def test_nothing_to_flush(self, rig):
        before = rig.dump()
        assert rig.worker._flush.run([]) == (0, 0, 0, 0, 0)
        assert rig.dump() == before

    def test_flush_that_does_not_continue_the_catalog_is_refused(self, rig):
        write_some(rig.log)
        rig.flush()
        before = rig.dump()
        with pytest.raises(CatalogError, match="does not continue"):
            rig.writer.commit_flush(
                3, 9, [], [], [], {}, created=0, added_bytes=0, dropped={}, last_ms=0, now_ms=0
            )
        assert rig.dump() == before


class TestRefusals:
    @pytest.fixture
    def written(self, rig):
        """Three segments that are sealed and not flushed."""
        number = rig.log.create("b/s", b"one")
        rig.log.seal()
        for body in (b"two", b"three"):
            rig.log.append(number, body)
            rig.log.commit()
            rig.log.append(number, body)
            rig.log.seal()
        return rig

    def refused(self, rig, segments, match):
        before = rig.dump()
        with pytest.raises(LogCorruptError, match=match):
            rig.worker._flush.run(segments)
        assert rig.dump() == before
        assert rig.pack_objects == set()

    def test_gap_at_the_start(self, written):
        self.refused(written, written.log.segments[1:], "position 2 where 1 is needed")

    def test_gap_between_segments(self, written):
        first, _, third = written.log.segments
        self.refused(written, [first, third], "position 4 where 2 is needed")

    def test_segments_out_of_order(self, written):
        first, second, third = written.log.segments
        self.refused(written, [second, first, third], "position 2 where 1 is needed")

    def test_every_flipped_byte_is_noticed(self, written):
        segment = written.log.segments[1]
        sound = written.log.files[segment.path]
        for at in range(segment.end):
            damaged = bytearray(sound)
            damaged[at] ^= 0xFF
            written.log.files[segment.path] = bytes(damaged)
            with pytest.raises(LogCorruptError, match=segment.path):
                written.worker._flush.run(written.log.segments)
        assert written.pack_objects == set()
        assert written.worker.flushed == 0

    def test_segment_shorter_than_its_end(self, written):
        segment = written.log.segments[1]
        sound = written.log.files[segment.path]
        for size in range(segment.end):
            written.log.files[segment.path] = sound[:size]
            with pytest.raises(LogCorruptError, match=segment.path):
                written.worker._flush.run(written.log.segments)
        assert written.pack_objects == set()

    def test_end_inside_a_batch(self, written):
        first, second, _ = written.log.segments
        short = SegmentRef(second.path, second.end - 1, second.last_position)
        self.refused(written, [first, short], second.path)

    def test_what_lies_behind_the_end_does_not_matter(self, written):
        segment = written.log.segments[-1]
        data = written.log.files[segment.path][: segment.end]
        written.log.files[segment.path] = data + b"HFB\x01 garbage"
        written.flush()
        assert written.worker.flushed == 5

    def test_segment_of_an_unknown_version(self, written, monkeypatch):
        from holdfast.format import segments

        path = written.log.segments[0].path
        monkeypatch.setattr(segments, "FORMAT_VERSION", 2)
        written.log.files[path] = encode_header(SegmentHeader(1, 1, 0, 0)).ljust(5000, b"\0")
        monkeypatch.undo()
        self.refused(written, written.log.segments, f"{path} is damaged: segment format 2")

    def test_records_that_no_server_writes(self, rig):
        body = encode(Record(Kind.APPEND, 77, 0, b"x"))
        for bad, match in ((body, "stream 4d"), (body[:-1], "does not fit")):
            data = encode_header(SegmentHeader(1, 1, 0, 0)) + encode_batch(1, 1, bad)
            rig.log.files["bad"] = data
            self.refused(rig, [SegmentRef("bad", len(data), 1)], match)
