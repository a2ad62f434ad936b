"""The file log's segments: rotation, trimming, leftovers, and what is missing."""

from itertools import pairwise
from struct import pack

import pytest
from xxhash import xxh3_64_intdigest

from holdfast.errors import LogCorruptError, UnknownFormatError
from holdfast.format.segments import (
    FRAME_BYTES,
    HEADER_BYTES,
    SegmentHeader,
    decode_header,
    encode_batch,
    encode_header,
)
from holdfast.log.interface import CommitOutcome, ReplayedBatch
from tests.log.implementations import FileImplementation, batches

BODIES = [b"%d" % n * 100 for n in range(10)]


@pytest.fixture
def small(tmp_path):
    """A log whose segments hold two such batches each."""
    implementation = FileImplementation(tmp_path, segment_bytes=350)
    yield implementation
    implementation.close()


def header_of(path):
    return decode_header(path.read_bytes())


class TestRotation:
    def test_full_segment_is_followed_by_another(self, small):
        log = small.open()
        log.commit(*batches(*BODIES))
        assert len(small.segments()) == 5
        assert small.reopen().replayed == batches(*BODIES)

    def test_every_header_names_its_predecessor_and_its_end(self, small):
        small.open().commit(*batches(*BODIES))
        paths = small.segments()
        for before, path in pairwise(paths):
            header = header_of(path)
            assert header.predecessor == int(before.stem)
            assert header.predecessor_end == before.stat().st_size

    def test_salts_are_all_different(self, small):
        small.open().commit(*batches(*BODIES))
        assert len({header_of(path).salt for path in small.segments()}) == 5

    def test_batch_larger_than_a_segment_gets_one_of_its_own(self, small):
        log = small.open()
        expected = batches(b"a", b"x" * 5000, b"b")
        log.commit(*expected)
        assert small.reopen().replayed == expected

    def test_restart_opens_a_segment_and_removes_an_empty_one(self, small):
        small.open().commit(*batches(b"a"))
        for _ in range(5):
            small.reopen()
            assert len(small.segments()) == 2
        small.close()
        assert small.replay() == batches(b"a")

    def test_stats_count_the_files(self, small):
        log = small.open()
        log.commit(*batches(*BODIES))
        stats = log.log.stats()
        assert stats.segments == len(small.segments())
        assert stats.size_bytes == sum(path.stat().st_size for path in small.segments())


class TestZerosAhead:
    """Segments are filled with zeros ahead of their batches; none of them are left at the end."""

    @pytest.fixture
    def zeroed(self, tmp_path):
        implementation = FileImplementation(tmp_path, segment_bytes=350, zero_ahead_bytes=1000)
        yield implementation
        implementation.close()

    def check_sealed(self, implementation):
        paths = implementation.segments()
        for before, path in pairwise(paths):
            assert header_of(path).predecessor_end == before.stat().st_size
        return paths[-1]

    def test_sealed_segment_ends_with_its_data(self, zeroed):
        zeroed.open().commit(*batches(*BODIES))
        last = self.check_sealed(zeroed)
        assert last.stat().st_size > 350

    def test_it_does_after_a_restart(self, zeroed):
        zeroed.open().commit(*batches(*BODIES))
        for position in (11, 12):
            again = zeroed.reopen()
            self.check_sealed(zeroed)
            again.commit(ReplayedBatch(position, b"next"))
        self.check_sealed(zeroed)
        expected = [*batches(*BODIES), ReplayedBatch(11, b"next"), ReplayedBatch(12, b"next")]
        assert zeroed.reopen().replayed == expected

    def test_it_does_after_a_failure(self, zeroed):
        log = zeroed.open()
        log.commit(*batches(b"a"))
        zeroed.fail_next()
        assert log.outcome(2, b"lost") is CommitOutcome.FAILED
        log.commit(ReplayedBatch(2, b"b"))
        self.check_sealed(zeroed)
        assert zeroed.reopen().replayed == batches(b"a", b"b")


class TestTrim:
    def test_whole_segments_go_and_the_rest_stays(self, small):
        log = small.open()
        log.commit(*batches(*BODIES))
        log.log.trim(5)
        log.close()
        assert [header_of(path).first_position for path in small.segments()] == [5, 7, 9]
        assert small.replay(after=5) == batches(*BODIES)[5:]

    def test_segment_being_written_is_never_removed(self, small):
        log = small.open()
        log.commit(*batches(*BODIES))
        log.log.trim(10**9)
        log.commit(ReplayedBatch(11, b"next"))
        log.close()
        assert small.replay(after=10)[-1:] == [ReplayedBatch(11, b"next")]

    def test_trimmed_log_does_not_pass_for_a_whole_one(self, small):
        log = small.open()
        log.commit(*batches(*BODIES))
        log.log.trim(5)
        log.close()
        with pytest.raises(LogCorruptError, match=r"starts at position 5, .* after 0 is needed"):
            small.replay()

    def test_position_survives_when_everything_was_trimmed(self, small):
        log = small.open()
        log.commit(*batches(*BODIES))
        small.reopen().log.trim(10)
        again = small.reopen(after=10)
        assert again.replayed == []
        again.commit(ReplayedBatch(11, b"next"))
        assert small.reopen(after=10).replayed == [ReplayedBatch(11, b"next")]


class TestLeftovers:
    def test_unfinished_segment_is_no_part_of_the_log(self, small):
        small.open().commit(*batches(*BODIES[:3]))
        small.close()
        whole = encode_header(SegmentHeader(1, 4, 2, 100))
        for leftover in (b"", whole[:1], whole[:63], bytes(64), bytes(5000)):
            path = small.directory / "0000000099.seg"
            path.write_bytes(leftover)
            assert small.replay() == batches(*BODIES[:3])

    def test_leftovers_are_removed_at_start(self, small):
        small.open().commit(*batches(*BODIES[:3]))
        small.close()
        leftover = small.directory / "0000000099.seg"
        leftover.write_bytes(b"")
        log = small.open()
        assert not leftover.exists()
        log.commit(ReplayedBatch(4, b"next"))
        assert small.reopen().replayed == [*batches(*BODIES[:3]), ReplayedBatch(4, b"next")]

    def test_segment_that_the_chain_passes_by_is_ignored_and_removed(self, small):
        small.open().commit(*batches(*BODIES[:2]))
        small.close()
        orphan = small.directory / "0000000005.seg"
        first = small.segments()[0]
        end = first.stat().st_size
        header = SegmentHeader(77, 3, int(first.stem), end)
        orphan.write_bytes(encode_header(header) + encode_batch(77, 3, b"disowned"))
        successor = small.directory / "0000000006.seg"
        successor.write_bytes(encode_header(SegmentHeader(78, 3, int(first.stem), end)))
        assert small.open().replayed == batches(*BODIES[:2])
        assert not orphan.exists()
        assert not successor.exists()

    def test_other_files_are_left_alone(self, small):
        for name in ("notes.txt", "1.seg", "0000000001.seg.bak", "00000000001.seg"):
            (small.directory / name).write_bytes(b"not ours")
        small.open().commit(*batches(b"a"))
        assert small.reopen().replayed == batches(b"a")
        assert (small.directory / "notes.txt").read_bytes() == b"not ours"

    def test_bytes_behind_the_end_that_the_successor_names_are_ignored(self, small):
        small.open().commit(*batches(*BODIES[:3]))
        small.close()
        first = small.segments()[0]
        salt = header_of(first).salt
        first.write_bytes(first.read_bytes() + encode_batch(salt, 3, b"disowned"))
        assert small.replay() == batches(*BODIES[:3])


class TestDamage:
    def expect(self, small, *words):
        with pytest.raises(LogCorruptError) as caught:
            small.replay()
        for word in words:
            assert str(word) in caught.value.message
        assert "backup" in caught.value.message

    def craft(self, small, *segments):
        for number, (header, body) in enumerate(segments, start=1):
            (small.directory / f"{number:010d}.seg").write_bytes(encode_header(header) + body)

    @pytest.mark.parametrize("missing", range(4))
    def test_missing_segment_is_refused_in_words(self, small, missing):
        small.open().commit(*batches(*BODIES))
        small.close()
        small.segments()[missing].unlink()
        self.expect(small, "segments are missing", small.directory)

    def test_damaged_header_before_data(self, small):
        small.open().commit(*batches(b"a"))
        small.close()
        path = small.segments()[0]
        path.write_bytes(b"\x00" + path.read_bytes()[1:])
        self.expect(small, path, "byte 0", "header")

    def test_damaged_batch_with_sound_ones_behind_it(self, small):
        small.segment_bytes = 4096
        small.open().commit(*batches(b"a", b"b", b"c"))
        small.close()
        path = small.segments()[0]
        data = bytearray(path.read_bytes())
        at = HEADER_BYTES + FRAME_BYTES + 1
        data[at] ^= 1
        path.write_bytes(data)
        self.expect(small, path, f"byte {at}", "valid batch follows")

    def test_batch_out_of_order(self, small):
        body = encode_batch(7, 1, b"a") + encode_batch(7, 3, b"c")
        self.craft(small, (SegmentHeader(7, 1, 0, 0), body))
        self.expect(small, "batch 3 where 2 belongs", f"byte {HEADER_BYTES + FRAME_BYTES + 1}")

    def test_segment_that_starts_at_the_wrong_position(self, small):
        first = encode_batch(7, 1, b"a")
        self.craft(
            small,
            (SegmentHeader(7, 1, 0, 0), first),
            (SegmentHeader(8, 3, 1, HEADER_BYTES + len(first)), encode_batch(8, 3, b"c")),
        )
        self.expect(small, "0000000002.seg", "position 3 instead of 2")

    def test_end_inside_a_batch(self, small):
        first = encode_batch(7, 1, b"a body")
        self.craft(
            small,
            (SegmentHeader(7, 1, 0, 0), first),
            (SegmentHeader(8, 2, 1, HEADER_BYTES + len(first) - 1), b""),
        )
        self.expect(small, "0000000001.seg")

    def test_predecessor_that_comes_later(self, small):
        self.craft(small, (SegmentHeader(7, 1, 1, 64), b""))
        self.expect(small, "0000000001.seg", "predecessor")

    def test_refusing_changes_nothing(self, small):
        small.open().commit(*batches(*BODIES))
        small.close()
        small.segments()[1].unlink()
        before = {path: path.read_bytes() for path in small.directory.iterdir()}
        self.expect(small)
        assert {path: path.read_bytes() for path in small.directory.iterdir()} == before

    def test_segment_of_another_version_is_named(self, small):
        packed = pack("<8sIIQQQQ", b"HOLDFAST", 9, 0, 7, 1, 0, 0)
        header = (packed + pack("<Q", xxh3_64_intdigest(packed))).ljust(HEADER_BYTES, b"\0")
        path = small.directory / "0000000001.seg"
        path.write_bytes(header)
        with pytest.raises(UnknownFormatError, match=r"0000000001\.seg .*segment format 9"):
            small.replay()
