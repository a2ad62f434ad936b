"""The simulated disk: what survives a power failure, what may, and that seeds decide which."""

import errno
from pathlib import Path
from random import Random

import pytest

from holdfast.log.directory import Files
from tests.simulation.files import KilledError, SimFiles

ROOT = Path("/d")
A, B = ROOT / "a", ROOT / "b"
CRASHES = 200


@pytest.fixture
def files():
    return SimFiles(Random(0))


def durable(files, path=A, content=b"durable"):
    """An open file that is on disk for certain."""
    file = files.create(path)
    file.write_at(content, 0)
    file.sync()
    files.sync_directory(ROOT)
    return file


def after_crashes(files, path=A):
    """All that a file can be found to hold; None where it has no name."""
    found = set()
    for seed in range(CRASHES):
        image = files.crash(Random(seed))
        found.add(image.read(path) if path.name in image.names(ROOT) else None)
    return found


class TestWithoutFaults:
    """It does what the system's files do."""

    def script(self, files, root):
        file = files.create(root / "a")
        file.write_at(b"12345", 0)
        file.write_at(b"xy", 8)
        file.write_at(b"__", 1)
        file.sync()
        file.close()
        files.allocate(root / "c", 100)
        files.allocate(root / "c", 50)
        files.create(root / "b").write_at(b"gone", 0)
        files.remove(root / "b")
        files.remove(root / "b")
        files.create(root / "d").write_at(b"old", 0)
        files.create(root / "d").write_at(b"n", 0)
        files.truncate(root / "a", 9)
        reopened = files.open(root / "a")
        reopened.write_at(b"!", 8)
        files.sync_directory(root)
        return {
            name: (files.read(root / name), files.read_start(root / name, 3))
            for name in sorted(files.names(root))
        }

    def test_it_reads_as_it_was_written(self, files, tmp_path):
        assert self.script(files, ROOT) == self.script(Files(), tmp_path)

    def test_missing_files_are_missed(self, files):
        calls = [files.read, files.open, lambda path: files.truncate(path, 0)]
        for call in calls:
            with pytest.raises(FileNotFoundError):
                call(A)

    def test_file_without_a_name_can_still_be_written(self, files):
        file = durable(files)
        files.remove(A)
        file.write_at(b"more", 0)
        file.sync()
        assert files.names(ROOT) == []

    def test_directories_are_apart(self, files):
        files.create(ROOT / "x")
        files.create(ROOT / "sub" / "y")
        assert files.names(ROOT) == ["x"]
        files.sync_directory(ROOT / "sub")
        assert after_crashes(files, ROOT / "x") == {None, b""}


class TestPowerFailure:
    def test_synced_bytes_under_a_synced_name_stay(self, files):
        durable(files)
        assert after_crashes(files) == {b"durable"}

    def test_name_that_was_not_synced_may_be_lost(self, files):
        file = files.create(A)
        file.write_at(b"data", 0)
        file.sync()
        assert after_crashes(files) == {None, b"data"}

    def test_removal_that_was_not_synced_may_be_lost(self, files):
        durable(files)
        files.remove(A)
        assert after_crashes(files) == {None, b"durable"}
        files.sync_directory(ROOT)
        assert after_crashes(files) == {None}

    def test_unsynced_write_is_kept_lost_or_torn(self, files):
        file = durable(files, content=b"____")
        file.write_at(b"abcd", 0)
        assert after_crashes(files) == {b"____", b"a___", b"ab__", b"abc_", b"abcd"}

    def test_unsynced_growth_may_be_zeros(self, files):
        file = durable(files, content=b"_")
        file.write_at(b"ab", 1)
        assert after_crashes(files) == {b"_", b"_a", b"_ab", b"_\0\0"}

    def test_sectors_are_torn_apart_where_they_meet(self, files):
        file = durable(files, content=bytes(1500))
        file.write_at(b"x" * 1000, 300)
        found = after_crashes(files)
        # The last sector alone: bytes 1024 to 1300 of the file.
        assert bytes(1024) + b"x" * 276 + bytes(200) in found
        assert bytes(300) + b"x" * 212 + bytes(988) in found

    def test_unsynced_writes_fare_each_on_its_own(self, files):
        file = durable(files, content=b"____")
        file.write_at(b"a", 0)
        file.write_at(b"b", 1)
        assert after_crashes(files) == {b"____", b"a___", b"_b__", b"ab__"}

    def test_unsynced_truncation_may_be_lost(self, files):
        durable(files)
        files.truncate(A, 3)
        assert after_crashes(files) == {b"dur", b"durable"}

    def test_reader_sees_what_would_not_survive(self, files):
        file = durable(files)
        file.write_at(b"D", 0)
        assert files.read(A) == b"Durable"

    def test_disk_found_is_durable_as_it_is(self, files):
        file = durable(files)
        file.write_at(b"D", 0)
        found = files.crash(Random(1))
        assert after_crashes(found) == {found.read(A)}

    def test_crash_leaves_the_running_disk_alone(self, files):
        file = durable(files)
        file.write_at(b"D", 0)
        for seed in range(20):
            files.crash(Random(seed))
        file.sync()
        assert after_crashes(files) == {b"Durable"}


class TestFailedSync:
    def test_its_writes_stay_in_doubt_whatever_follows(self, files):
        file = durable(files, content=b"__")
        file.write_at(b"a", 0)
        files.fail("sync")
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.write_at(b"b", 1)
        file.sync()
        assert files.read(A) == b"ab"
        assert after_crashes(files) == {b"_b", b"ab"}

    def test_writing_the_same_again_helps(self, files):
        file = durable(files, content=b"__")
        file.write_at(b"a", 0)
        files.fail("sync")
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        again = files.open(A)
        again.write_at(b"a", 0)
        again.sync()
        assert after_crashes(files) == {b"a_"}

    def test_failed_sync_of_a_directory_can_be_made_good(self, files):
        files.create(A).sync()
        files.fail("sync_directory")
        with pytest.raises(OSError, match="Input/output error"):
            files.sync_directory(ROOT)
        assert after_crashes(files) == {None, b""}
        files.sync_directory(ROOT)
        assert after_crashes(files) == {b""}


class TestFaults:
    def test_failed_write_has_written_a_part(self):
        found = set()
        for seed in range(100):
            files = SimFiles(Random(seed))
            file = files.create(A)
            files.fail("write", errno.EIO)
            with pytest.raises(OSError, match="Input/output error"):
                file.write_at(b"abc", 0)
            found.add(files.read(A))
        assert found == {b"", b"a", b"ab", b"abc"}

    @pytest.mark.parametrize(
        "operation", ["create", "open", "allocate", "truncate", "remove", "sync_directory"]
    )
    def test_other_operations_fail_and_do_nothing(self, files, operation):
        durable(files)
        call = {
            "create": lambda: files.create(B),
            "open": lambda: files.open(A),
            "allocate": lambda: files.allocate(B, 10),
            "truncate": lambda: files.truncate(A, 1),
            "remove": lambda: files.remove(A),
            "sync_directory": lambda: files.sync_directory(ROOT),
        }[operation]
        files.fail(operation, errno.EROFS, times=2)
        for _ in range(2):
            with pytest.raises(OSError, match="Read-only"):
                call()
        assert (files.names(ROOT), files.read(A)) == (["a"], b"durable")
        call()

    def test_healing_forgets_them(self, files):
        files.fail("create", times=5)
        files.fault_rate = 1.0
        files.kill_after(0)
        files.heal()
        files.create(A)

    def failures(self, seed, rate):
        files = SimFiles(Random(seed), fault_rate=rate)
        codes = []
        for number in range(200):
            try:
                files.create(ROOT / str(number))
            except OSError as error:
                codes.append((number, error.errno))
        return codes

    def test_rate_is_a_rate_and_the_seed_decides(self):
        assert self.failures(1, 0.0) == []
        assert len(self.failures(1, 1.0)) == 200
        some = self.failures(1, 0.3)
        assert 30 < len(some) < 90
        assert {code for _, code in some} == {errno.EIO, errno.ENOSPC}
        assert self.failures(1, 0.3) == some
        assert self.failures(2, 0.3) != some

    def test_crashes_of_one_seed_are_the_same(self, files):
        file = durable(files)
        for at in range(20):
            file.write_at(b"x" * 100, at * 60)
        assert files.crash(Random(5)).read(A) == files.crash(Random(5)).read(A)

    def test_killed_process_does_nothing_more(self, files):
        file = durable(files)
        files.kill_after(2)
        file.write_at(b"1", 0)
        file.write_at(b"2", 1)
        for call in (file.sync, lambda: file.write_at(b"3", 2), lambda: files.remove(A)):
            with pytest.raises(KilledError):
                call()
        assert files.read(A) == b"12rable"


class TestCapacity:
    def test_write_that_does_not_fit_writes_what_does(self):
        files = SimFiles(capacity_bytes=10)
        file = files.create(A)
        file.write_at(b"12345678", 0)
        with pytest.raises(OSError, match="No space left"):
            file.write_at(b"9abcdef", 8)
        assert files.read(A) == b"123456789a"
        assert files.size_bytes == 10

    def test_full_disk_takes_what_replaces_bytes(self):
        files = SimFiles(capacity_bytes=10)
        file = files.create(A)
        file.write_at(bytes(10), 0)
        file.write_at(b"0123456789", 0)
        assert files.read(A) == b"0123456789"

    def test_removing_and_cutting_make_room(self):
        files = SimFiles(capacity_bytes=10)
        files.allocate(B, 6)
        file = files.create(A)
        file.write_at(b"1234", 0)
        files.truncate(B, 4)
        file.write_at(b"56", 4)
        files.remove(B)
        file.write_at(b"789a", 6)
        assert files.read(A) == b"123456789a"

    def test_room_that_is_not_there_leaves_nothing_behind(self):
        files = SimFiles(capacity_bytes=10)
        with pytest.raises(OSError, match="No space left"):
            files.allocate(B, 11)
        assert files.names(ROOT) == []

    def test_it_outlives_a_crash(self):
        files = SimFiles(capacity_bytes=10).crash(Random(0))
        with pytest.raises(OSError, match="No space left"):
            files.create(A).write_at(bytes(11), 0)
