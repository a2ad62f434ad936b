"""A commit of a killed writer that nobody sees at first, and that comes to light much later.

SQLite writes a transaction to its log, syncs it, and then enters it in an index that the processes
share. A kill while it syncs, or a sync that fails, leaves it out of the index: all who have the
file open go on without it. Once they are all gone the index is made anew from the log, and there it
is.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from holdfast import failpoints
from holdfast.errors import StoreError
from holdfast.storage.catalog_writer import CatalogWriter
from tests.storage.filled import Filled

START = """
import sys
from pathlib import Path
from holdfast.clock import SystemClock
from holdfast.storage.catalog import Catalog
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.storage.garbage import OrphanSweep, collect
directory = Path(sys.argv[1])
path = directory / "catalog.sqlite"
"""
END = "sys.stdout.flush(); sys.stdin.read()"
READER = "catalog = Catalog(path); print(catalog.flushed)"
FLUSHER = "catalog = CatalogWriter(path); catalog.set_fact('flushed', 86); print(86)"
COLLECTOR = """
catalog, store = CatalogWriter(path), DirectoryObjects(directory / "objects")
collect(catalog, store, SystemClock().now_ms(), 0, OrphanSweep(store, lambda _: ()))
print(catalog.fact("flushed"))
"""


@contextmanager
def running(directory: Path, script: str) -> Iterator[int]:
    """Run a script in a process of its own, which is killed; the number it prints."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            START + script + "\nsys.stdout.flush(); sys.stdin.read()",
            directory,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("has_orphan", [True, False])
def test_orphan_is_not_collected_while_its_commit_may_come_to_light(
    tmp_path: Path, has_orphan: bool
) -> None:
    path, index = tmp_path / "catalog.sqlite", tmp_path / "catalog.sqlite-shm"
    orphan = tmp_path / "objects" / "packs" / "0.pack"
    CatalogWriter(path).close()
    with ExitStack() as stack:
        assert stack.enter_context(running(tmp_path, READER)) == 0
        before = index.read_bytes()
        with running(tmp_path, FLUSHER):
            if has_orphan:
                orphan.parent.mkdir(parents=True)
                orphan.write_bytes(b"a pack that the flush has uploaded")
        # In place: others have it mapped into their memory.
        with index.open("r+b") as file:
            file.write(before)
        assert stack.enter_context(running(tmp_path, COLLECTOR)) == 0
    with closing(CatalogWriter(path)) as catalog:
        is_there = catalog.fact("flushed") == 86
    assert is_there == (not has_orphan), "otherwise this test does not show what it should"
    assert not orphan.exists()


def test_packs_of_a_commit_that_failed_are_removed_only_if_it_cannot_come_to_light(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flushed_after_a_crash() -> int:
        """What a new process finds if all end now."""
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("catalog.sqlite", "catalog.sqlite-wal"):
            shutil.copy(tmp_path / name, copy)
        with closing(CatalogWriter(copy / "catalog.sqlite")) as catalog:
            flushed = catalog.flushed
        shutil.rmtree(copy)
        return flushed

    def fail(name: str) -> None:
        """Commit as the flush does, and take it out of the index again."""
        if name != "flush.uploaded":
            return
        index = tmp_path / "catalog.sqlite-shm"
        before = index.read_bytes()
        with closing(CatalogWriter(data.path)) as catalog:
            catalog.set_fact("flushed", 2)
        with index.open("r+b") as file:
            file.write(before)
        assert flushed_after_a_crash() == 2
        raise StoreError("The sync of the commit failed.")

    with closing(Filled(tmp_path)) as data:
        data.create("s", b"x")
        data.flush()
        data.create("t", b"y")
        data.seal()
        before = set(data.store.objects)
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "hook", fail)
            with pytest.raises(StoreError):
                data.flush_again()
        assert data.store.objects.keys() == before
        assert flushed_after_a_crash() == 1
        data.flush_again()
        assert data.verify().ok
