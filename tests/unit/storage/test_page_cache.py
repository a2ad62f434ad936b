"""The check of the page cache, and SQLite's locks on the files that it looks at."""

import subprocess
import sys

from holdfast.storage.page_cache import CachedFiles

OTHER_PROCESS = """
import sqlite3, sys
catalog = sqlite3.connect(sys.argv[1])
catalog.execute("SELECT * FROM facts").fetchall()
catalog.close()
"""


def test_it_gives_up_no_locks(rig):
    """The last process that closes a database removes its write-ahead log, and we are using it."""
    rig.log.create("b/s", b"x")
    rig.flush()
    path = rig.catalog.path
    wal = path.with_name(f"{path.name}-wal")
    files = CachedFiles([path, wal, path.with_name(f"{path.name}-shm")])
    for name in ("b/t", "b/u"):
        files.are_resident()
        subprocess.run([sys.executable, "-c", OTHER_PROCESS, path], check=True)
        assert wal.exists()
        rig.log.create(name, b"y")
        rig.flush()


def test_files_may_come_and_go(tmp_path):
    file, other = tmp_path / "file", tmp_path / "other"
    files = CachedFiles([file, other])
    assert files.are_resident()
    file.write_bytes(b"x")
    other.touch()
    assert files.are_resident()
    file.rename(other)
    assert files.are_resident()


def test_a_file_that_cannot_be_opened_counts_as_not_resident(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert not CachedFiles([file, file / "below"]).are_resident()
