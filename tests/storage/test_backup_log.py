"""The log in a backup: copied from files that are being written, sealed and trimmed meanwhile."""

from pathlib import Path

import pytest

from holdfast.errors import LogCorruptError
from holdfast.format.segments import (
    HEADER_BYTES,
    SegmentHeader,
    decode_header,
    encode_batch,
    encode_header,
    iter_batches,
)
from holdfast.log.directory import Files
from holdfast.log.export import export_log, find_last_segment
from holdfast.log.file import FileLog
from holdfast.log.recovery import segment_path
from holdfast.testing import FakeClock


class MeanwhileFiles(Files):
    """Real files; before or after a file is read whole, something happens to the log, once."""

    def __init__(self):
        self.before = {}
        self.after = {}
        self.torn = {}

    def read(self, path: Path) -> bytes:
        self.before.pop(path.name, lambda: None)()
        data = super().read(path)
        self.after.pop(path.name, lambda: None)()
        return self.torn.pop(path.name, lambda data: data)(data)


@pytest.fixture
def files():
    return MeanwhileFiles()


class Segments:
    """Writes segments of a log byte by byte, as a server would."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.position = 0
        self.ends = {}

    def write(self, number, count, *, predecessor=0, predecessor_end=None, behind=b""):
        end = predecessor_end or self.ends.get(predecessor, 0)
        header = SegmentHeader(number * 7, self.position + 1, predecessor, end)
        data = encode_header(header)
        for _ in range(count):
            self.position += 1
            data += encode_batch(header.salt, self.position, body(self.position))
        self.ends[number] = len(data)
        self.path(number).write_bytes(data + behind)

    def append(self, number, position):
        path = self.path(number)
        with path.open("ab") as file:
            file.write(encode_batch(number * 7, position, body(position)))
        self.ends[number] = path.stat().st_size

    def path(self, number):
        return segment_path(self.directory, number)

    def remove(self, *numbers):
        for number in numbers:
            self.path(number).unlink()


@pytest.fixture
def segments(tmp_path):
    directory = tmp_path / "log"
    directory.mkdir()
    return Segments(directory)


def body(position):
    return b"batch %d " % position * (position % 5 + 1)


def export(segments, files, after=0, **options):
    return list(export_log(files, segments.directory, FakeClock(), after, **options))


def positions(exported):
    """The positions in an export whose segments are sound and each know their predecessor."""
    found = []
    for index, segment in enumerate(exported):
        header = decode_header(segment.data)
        before = exported[index - 1] if index else None
        assert segment.number == index + 1
        assert header.predecessor == index
        assert header.predecessor_end == (len(before.data) if before else 0)
        frames = list(iter_batches(segment.data, header, len(segment.data)))
        assert all(frame.body == body(frame.position) for frame in frames)
        assert segment.first_position == header.first_position == frames[0].position
        assert segment.last_position == frames[-1].position
        found += [frame.position for frame in frames]
    return found


def test_an_empty_log_has_no_segments(segments, files):
    assert export(segments, files) == []
    segments.write(1, 0)
    assert export(segments, files) == []


def test_several_segments_become_one(segments, files):
    segments.write(3, 4)
    segments.write(5, 4, predecessor=3)
    segments.write(6, 3, predecessor=5)
    exported = export(segments, files)
    assert len(exported) == 1
    assert positions(exported) == list(range(1, 12))


@pytest.mark.parametrize("after", range(12))
def test_only_what_comes_after_a_position(segments, files, after):
    segments.write(3, 4)
    segments.write(5, 4, predecessor=3)
    segments.write(6, 3, predecessor=5)
    assert positions(export(segments, files, after)) == list(range(after + 1, 12))


def test_one_segment_becomes_several(segments, files):
    segments.write(1, 100)
    exported = export(segments, files, segment_bytes=400)
    assert len(exported) > 10
    assert all(len(segment.data) <= 500 for segment in exported)
    assert positions(exported) == list(range(1, 101))


def test_a_log_of_its_own_can_be_written_on(segments, files, tmp_path):
    segments.write(8, 30)
    copy = tmp_path / "copy"
    copy.mkdir()
    for segment in export(segments, files, 9, segment_bytes=400):
        segment_path(copy, segment.number).write_bytes(segment.data)
    log = FileLog(copy, FakeClock(), segment_bytes=4096, ballast_bytes=0)
    batches = list(log.replay(9))
    assert [(batch.position, batch.body) for batch in batches] == [
        (position, body(position)) for position in range(10, 31)
    ]


def test_its_first_segments_can_be_left_out(segments, files, tmp_path):
    segments.write(8, 30)
    copy = tmp_path / "copy"
    copy.mkdir()
    _, dropped, *kept = export(segments, files, segment_bytes=400)
    for segment in kept:
        segment_path(copy, segment.number).write_bytes(segment.data)
    log = FileLog(copy, FakeClock(), segment_bytes=4096, ballast_bytes=0)
    found = [batch.position for batch in log.replay(dropped.last_position)]
    assert found == list(range(dropped.last_position + 1, 31))


@pytest.mark.parametrize(
    "behind", [bytes(500), b"\xff" * 40, encode_batch(7, 5, body(5))[:-1], b"HFB\x01" + bytes(100)]
)
def test_what_is_half_written_is_left_out(segments, files, behind, caplog):
    segments.write(1, 4, behind=behind)
    assert positions(export(segments, files)) == [1, 2, 3, 4]
    assert caplog.records == []


def test_a_segment_that_is_trimmed_while_others_are_read(segments, files):
    segments.write(1, 4)
    segments.write(2, 4, predecessor=1)
    segments.write(3, 4, predecessor=2)
    segments.write(4, 2, predecessor=3)
    files.after["0000000001.seg"] = lambda: segments.remove(1, 2)
    exported = export(segments, files, segment_bytes=100)
    begins_anew = [at for at, segment in enumerate(exported) if segment.number == 1][-1]
    assert positions(exported[begins_anew:]) == list(range(9, 15))


def test_what_was_read_before_a_trim_is_not_read_again(segments, files):
    segments.write(1, 4)
    segments.write(2, 4, predecessor=1)
    files.after["0000000001.seg"] = lambda: segments.remove(1)
    assert positions(export(segments, files)) == list(range(1, 9))


def test_everything_is_trimmed_meanwhile(segments, files):
    segments.write(1, 4)
    segments.write(2, 4, predecessor=1)

    def flushed():
        segments.write(3, 0, predecessor=2)
        segments.remove(1, 2)

    files.before["0000000001.seg"] = flushed
    assert export(segments, files) == []


def test_the_last_segment_is_sealed_while_it_is_read(segments, files):
    """It has grown since it was read, and what came before its end is all there."""
    segments.write(1, 4)

    def sealed():
        segments.append(1, 5)
        segments.position = 5
        segments.write(2, 2, predecessor=1)

    files.after["0000000001.seg"] = sealed
    assert positions(export(segments, files)) == [1, 2, 3, 4, 5]


def test_a_batch_that_is_disowned_while_it_is_read_is_left_out(segments, files):
    segments.write(1, 4)
    durable = segments.ends[1]
    segments.append(1, 5)
    # Its sync failed: the next segment takes the position for another batch.
    files.after["0000000001.seg"] = lambda: segments.write(
        2, 0, predecessor=1, predecessor_end=durable
    )
    assert positions(export(segments, files)) == [1, 2, 3, 4]


def test_the_last_segment_is_replaced_before_it_holds_anything(segments, files):
    segments.write(1, 4)
    segments.write(2, 0, predecessor=1)

    def abandoned():
        segments.write(3, 3, predecessor=1)
        segments.remove(2)

    files.after["0000000002.seg"] = abandoned
    assert positions(export(segments, files)) == list(range(1, 8))


def test_bytes_that_are_read_while_they_are_written(segments, files):
    """The page of an earlier batch was read before it was written, that of a later one after."""
    segments.write(1, 9)

    def torn(data):
        half = len(data) // 2
        return data[:half] + bytes(40) + data[half + 40 :]

    files.torn["0000000001.seg"] = torn
    assert positions(export(segments, files)) == list(range(1, 10))


def test_damage_is_not_taken_for_the_end(segments, files):
    segments.write(1, 9)
    path = segments.path(1)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorruptError, match=r"a valid batch follows at byte \d+"):
        export(segments, files)


def test_damage_in_a_sealed_segment_is_named(segments, files):
    segments.write(1, 9)
    segments.write(2, 1, predecessor=1)
    path = segments.path(1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorruptError, match=r"0000000001\.seg at byte \d+"):
        export(segments, files)


def test_batches_out_of_order_are_damage(segments, files):
    segments.write(1, 2)
    segments.append(1, 4)
    with pytest.raises(LogCorruptError, match="batch 4 where 3 belongs"):
        export(segments, files)


def test_a_log_that_is_trimmed_for_ever(segments, files):
    class Vanishing(Files):
        def read(self, path):
            raise FileNotFoundError

    segments.write(1, 2)
    with pytest.raises(LogCorruptError, match="trimmed faster than it can be read"):
        export(segments, Vanishing())


def test_the_header_of_a_segment_that_is_only_being_made(segments, files):
    segments.write(1, 2)
    segments.path(2).write_bytes(b"")
    segments.path(3).write_bytes(bytes(HEADER_BYTES))
    assert positions(export(segments, files)) == [1, 2]


def test_the_last_segment_is_found_while_others_are_trimmed(segments):
    class Trimmed(Files):
        """Trims the first segment once its name was listed."""

        def names(self, directory):
            names = super().names(directory)
            segments.path(1).unlink(missing_ok=True)
            return names

    assert find_last_segment(Trimmed(), segments.directory) == 0
    segments.write(1, 2)
    segments.write(2, 1, predecessor=1)
    assert find_last_segment(Trimmed(), segments.directory) == 2
