"""Nothing in a data directory is for other users; a server warns if it is."""

import os
import stat

import httpx
import pytest

from holdfast.cli.main import main
from tests.http.streams import Stream
from tests.server_process import ServerProcess

SETTINGS = {"hot_bytes_soft": 1000, "hot_bytes_hard": 10_000_000, "wal_ballast_bytes": 4096}
WARNING = "other users may access"


def exposed(directory):
    """Everything from this directory down that others may access."""
    paths = [directory, *directory.rglob("*")]
    return [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A server's directory with packs, snapshots and keys in it, and what the server logged."""
    data_dir = tmp_path_factory.mktemp("modes") / "data"
    with ServerProcess(data_dir, **SETTINGS) as server:
        with httpx.Client(base_url=server.url) as client:
            client.put("/notes").raise_for_status()
            stream = Stream(client, "notes/a")
            stream.create(b"x" * 2000)
            client.put("/notes/a/snapshot/00000000000000002000", content=b"s").raise_for_status()
            client.post("/cluster/flush").raise_for_status()
            client.get("/v1/stream/__ds/jwks.json").raise_for_status()
        found = exposed(data_dir)
        log = server.stderr()
    return data_dir, found, log


def test_everything_is_for_the_owner_alone(run):
    data_dir, found, log = run
    assert found == exposed(data_dir) == []
    assert WARNING not in log
    names = {path.name for path in data_dir.rglob("*")}
    assert {"catalog.sqlite", "subscription-keys.json", "log-end.json", "ballast"} <= names
    assert list(data_dir.glob("objects/packs/*.pack"))
    assert list(data_dir.glob("objects/snapshots/*/*"))


def test_backup_and_what_is_made_of_it_are_too(run, tmp_path):
    before = os.umask(0)
    try:
        place, restored = tmp_path / "place", tmp_path / "restored"
        assert main(["backup", str(place), "--data-dir", str(run[0])]) == 0
        assert main(["restore", str(place), "--data-dir", str(restored)]) == 0
        (restored / "catalog.sqlite").unlink()
        assert main(["check", "--repair", "--data-dir", str(restored)]) == 0
    finally:
        os.umask(before)
    assert exposed(place) == exposed(restored) == []


def test_server_warns_once(tmp_path):
    data_dir = tmp_path / "the data"
    (data_dir / "log").mkdir(parents=True)
    data_dir.chmod(0o755)
    with ServerProcess(data_dir, wal_ballast_bytes=0) as server:
        (line,) = [line for line in server.stderr().splitlines() if WARNING in line]
    assert f"{data_dir} (mode 0755), and 1 more" in line
    assert f"chmod -R go-rwx '{data_dir}'" in line
    assert data_dir.stat().st_mode & 0o777 == 0o755
