"""Objects in a directory: durable, and tidy after a crash."""

import asyncio
import errno
import os
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import ObjectMissingError, StoreError
from holdfast.objects import directory_objects
from holdfast.objects.directory_objects import UNFINISHED, DirectoryObjects, PooledRanges
from holdfast.settings import StorageSettings
from holdfast.storage.open_objects import open_objects
from tests.storage.stores import contents, files_below

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "new" / "objects"


@pytest.fixture
def synced(monkeypatch, root):
    """What is synced from now on, each with the objects that had their names by then."""
    seen = []
    real = os.fsync

    def fsync(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        place = "file" if path.is_file() else str(path.relative_to(root.parents[1]))
        named = [name for name in files_below(root) if (root / name).is_file()]
        seen.append((place, [name for name in named if UNFINISHED not in name]))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


@linux_only
class TestDurability:
    @pytest.mark.parametrize("how", ["put", "put_parts", "create"])
    def test_file_is_synced_before_it_is_named_and_its_directories_after(self, root, synced, how):
        store = DirectoryObjects(root)
        data = [b"x"] if how == "put_parts" else b"x"
        getattr(store, how)("packs/2026/a", data)
        places = [place for place, _ in synced]
        assert ("file", []) in synced
        # Every directory that got an entry, the ones above the root that were made included.
        assert {".", "new", "new/objects", "new/objects/packs"} <= set(places)
        assert synced[-1] == ("new/objects/packs/2026", ["packs/2026/a"])

    def test_later_puts_sync_the_file_and_its_directory_only(self, root, synced):
        store = DirectoryObjects(root)
        store.put("packs/a", b"x")
        synced.clear()
        store.put("packs/b", b"y")
        assert synced == [("file", ["packs/a"]), ("new/objects/packs", ["packs/a", "packs/b"])]

    def test_many_are_all_synced_before_one_is_named_and_their_directories_after(
        self, root, synced
    ):
        store = DirectoryObjects(root)
        store.put_many([("one/x", b"x"), ("two/x", b"x")])
        synced.clear()
        store.put_many([("one/a", b"1"), ("two/b", b"22"), ("one/c", b"333")])
        before, after = ["one/x", "two/x"], ["one/a", "one/c", "one/x", "two/b", "two/x"]
        assert synced[:3] == [("file", before)] * 3
        assert sorted(synced[3:]) == [("new/objects/one", after), ("new/objects/two", after)]
        assert [store.read(name) for name in ("one/a", "two/b", "one/c")] == [b"1", b"22", b"333"]
        assert not list((root / UNFINISHED).iterdir())

    def test_directories_that_another_process_made_are_synced_once_more(self, root, synced):
        (root / "packs").mkdir(parents=True)
        DirectoryObjects(root).put("packs/a", b"x")
        assert [place for place, _ in synced] == [
            "new/objects",  # for packs
            "new/objects",  # for the directory of unfinished files
            "file",
            "new/objects/packs",
        ]

    def test_name_that_is_taken_needs_no_sync(self, root, synced):
        store = DirectoryObjects(root)
        store.create("a", b"x")
        synced.clear()
        assert not store.create("a", b"y")
        assert [place for place, _ in synced] == ["file"]


class TestFaults:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_failed_sync_leaves_nothing_and_may_pass(self, root, monkeypatch, code):
        store = DirectoryObjects(root)
        store.put("a", b"old")

        def fail(descriptor):
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            for call in (
                lambda: store.put("a", b"new"),
                lambda: store.put_parts("b", [b"new"]),
                lambda: store.create("c", b"new"),
            ):
                with pytest.raises(StoreError) as caught:
                    call()
                assert os.strerror(code) in caught.value.message
                assert caught.value.advice == ""
        assert contents(store) == {"a": b"old"}
        assert files_below(root / UNFINISHED) == []
        store.put("a", b"new")
        assert contents(store) == {"a": b"new"}

    def test_directory_that_was_removed_is_made_again(self, root):
        store = DirectoryObjects(root)
        store.put("packs/a", b"x")
        shutil.rmtree(root)
        assert contents(store) == {}
        with pytest.raises(StoreError):
            store.put("packs/a", b"y")
        store.put("packs/a", b"y")
        assert contents(store) == {"packs/a": b"y"}

    def test_object_in_the_way_of_a_directory(self, root):
        store = DirectoryObjects(root)
        store.put("a", b"x")
        for call in (
            lambda: store.put("a/b", b"y"),
            lambda: store.create("a/b", b"y"),
        ):
            with pytest.raises(StoreError):
                call()
        store.remove("a/b")
        assert contents(store) == {"a": b"x"}


KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast.objects.directory_objects import DirectoryObjects

def parts():
    yield b"half of it"
    os.kill(os.getpid(), signal.SIGKILL)

DirectoryObjects(Path(sys.argv[1])).put_parts("packs/a", parts())
"""


class TestUnfinished:
    def test_put_of_a_killed_process_is_not_listed_and_can_be_removed(self, root):
        store = DirectoryObjects(root)
        store.put("packs/b", b"x")
        subprocess.run([sys.executable, "-c", KILLED, root], check=False)
        assert len(files_below(root / UNFINISHED)) == 1
        assert contents(store) == {"packs/b": b"x"}
        now_ms = SystemClock().now_ms()
        assert store.remove_unfinished(now_ms - 3_600_000) == 0
        assert store.remove_unfinished(now_ms + 3_600_000) == 1
        assert files_below(root / UNFINISHED) == []
        assert contents(store) == {"packs/b": b"x"}

    def test_new_store_has_nothing_unfinished(self, root):
        assert DirectoryObjects(root).remove_unfinished(SystemClock().now_ms()) == 0
        assert not root.exists()

    @pytest.mark.parametrize("name", ["", "../a", "a/../b", "/a", "a//b", ".", UNFINISHED])
    def test_name_that_leads_elsewhere_is_a_defect(self, root, name):
        with pytest.raises(AssertionError, match="no name"):
            DirectoryObjects(root).put(name, b"x")


class TestNames:
    @pytest.mark.parametrize(
        "spelled", ["{path}", "file://{path}", "file://localhost{path}", "{path}/"]
    )
    def test_setting_is_a_path_or_an_address(self, tmp_path, spelled):
        path = tmp_path / "here"
        store = open_objects(StorageSettings(store=spelled.format(path=path)), tmp_path / "other")
        store.put("a", b"x")
        assert (path / "a").read_bytes() == b"x"
        assert store.url == f"file://{path}"

    def test_address_may_be_escaped(self, tmp_path):
        odd = tmp_path / "odd ü"
        open_objects(StorageSettings(store=odd.as_uri()), tmp_path / "other").put("a", b"x")
        assert (odd / "a").read_bytes() == b"x"

    def test_home_directory(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        open_objects(StorageSettings(store="~/packs"), tmp_path / "other").put("a", b"x")
        assert (tmp_path / "packs" / "a").read_bytes() == b"x"

    def test_relative_path_stays_where_it_was(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        store = open_objects(StorageSettings(store="packs"), tmp_path / "other")
        monkeypatch.chdir("/")
        store.put("a", b"x")
        assert (tmp_path / "packs" / "a").read_bytes() == b"x"

    def test_objects_are_for_their_owner_alone(self, root):
        store = DirectoryObjects(root)
        store.put("a/b", b"x")
        assert (root / "a" / "b").stat().st_mode & 0o777 == 0o600
        for directory in (root, root / "a", root / ".unfinished"):
            assert directory.stat().st_mode & 0o777 == 0o700


class TestLargeParts:
    """Those are handed out without a copy."""

    SIZE = 3 * 1024 * 1024

    @pytest.fixture
    def data(self):
        return random.Random(1).randbytes(self.SIZE)

    @pytest.mark.parametrize("at", [0, 1, 4095, 4096, 1_000_001])
    def test_they_are_the_bytes_that_were_asked_for(self, root, data, at):
        store = DirectoryObjects(root)
        store.put("packs/a", data)
        size = self.SIZE - 1_000_001 - 5
        large, small = store.read_ranges("packs/a", [(at, size), (at + size, 5)])
        assert (large, small) == (data[at : at + size], data[at + size : at + size + 5])

    def test_they_outlive_the_object(self, root, data):
        store = DirectoryObjects(root)
        store.put("packs/a", data)
        (found,) = store.read_ranges("packs/a", [(7, self.SIZE - 7)])
        store.remove("packs/a")
        assert found == data[7:]

    @pytest.mark.parametrize("at", [1, 2 * 1024 * 1024, SIZE, SIZE + 100])
    def test_an_object_that_ends_before(self, root, data, at):
        store = DirectoryObjects(root)
        store.put("packs/a", data)
        with pytest.raises(StoreError, match="it ends too early"):
            store.read_ranges("packs/a", [(at, self.SIZE)])

    def test_a_system_that_cannot_do_that(self, root, data, monkeypatch):
        monkeypatch.setattr(directory_objects, "_POPULATE_READ", 9999)
        store = DirectoryObjects(root)
        store.put("packs/a", data)
        (found,) = store.read_ranges("packs/a", [(7, self.SIZE - 7)])
        assert found == data[7:]


class TestRangeReader:
    def test_reads_of_one_round_are_handed_over_in_groups(self, root):
        """Each gets its own result or error, however they are grouped."""

        opened = []

        class Counted(DirectoryObjects):
            def read_parts(self, name, ranges):
                opened.append((name, len(ranges)))
                return super().read_parts(name, ranges)

        store, results = Counted(root), {}
        store.put("packs/a", b"0123456789")
        reader = PooledRanges(store)

        async def read_all():
            reads = [("packs/a", at) for at in range(6)] + [("packs/none", 0), ("packs/a", 6)]
            done = asyncio.Event()

            def keep(read, result):
                results[read] = result
                if len(results) == len(reads):
                    done.set()

            for read in reads:
                reader.read(*read, 2, partial(keep, read))
            assert results == {}
            await done.wait()
            reader.close()

        asyncio.run(read_all())
        assert isinstance(results.pop(("packs/none", 0)), ObjectMissingError)
        assert results == {("packs/a", at): b"%d%d" % (at, at + 1) for at in range(7)}
        assert sorted(opened) == [
            ("packs/a", 1),
            ("packs/a", 2),
            ("packs/a", 4),
            ("packs/none", 1),
        ]
