"""A store belongs to one data directory: nobody else writes there or collects its packs."""

import os
import shutil
import subprocess

import httpx
import pytest

from tests.server_process import COMMAND, ServerProcess

TEXT = {"Content-Type": "text/plain"}
LONG_AGO_S = 3 * 86_400


@pytest.fixture
def store(tmp_path):
    """A store with a pack that is old enough to be collected by anybody who does not know it."""
    place = tmp_path / "store"
    with ServerProcess(tmp_path / "first", store=place) as server:
        httpx.put(f"{server.streams_url}/a", headers=TEXT, content="hello").raise_for_status()
        httpx.post(f"{server.url}/cluster/flush").raise_for_status()
    for path in place.rglob("*"):
        then = path.stat().st_mtime - LONG_AGO_S
        os.utime(path, (then, then))
    return place


def packs(store):
    return sorted(path.name for path in (store / "packs").iterdir())


def refusal(data_dir, store):
    with pytest.raises(AssertionError) as caught:
        ServerProcess(data_dir, store=store).start()
    return str(caught.value)


def test_a_fresh_data_directory_is_refused_a_store_in_use(tmp_path, store):
    before = packs(store)
    words = refusal(tmp_path / "second", store)
    assert "belongs to another data directory" in words
    assert "exit status 2" in words
    assert packs(store) == before
    assert before


def test_a_lost_catalog_is_not_taken_for_an_empty_one(tmp_path, store):
    before = packs(store)
    (tmp_path / "first" / "catalog.sqlite").unlink()
    # The log reaches back to the beginning, as after a flush that was not trimmed yet.
    shutil.rmtree(tmp_path / "first" / "log")
    words = refusal(tmp_path / "first", store)
    assert "holdfast check --repair" in words
    assert packs(store) == before


def test_its_own_server_goes_on(tmp_path, store):
    with ServerProcess(tmp_path / "first", store=store) as server:
        assert httpx.get(f"{server.streams_url}/a").text == "hello"
        httpx.post(f"{server.url}/cluster/collect-garbage").raise_for_status()
        assert httpx.get(f"{server.streams_url}/a").text == "hello"
    assert packs(store)


def test_a_place_with_backups_is_not_a_store(tmp_path, store):
    place = tmp_path / "backups-of-first"
    arguments = ["backup", str(place), "--data-dir", str(tmp_path / "first"), "--store", str(store)]
    subprocess.run([COMMAND[0], *arguments], check=True, capture_output=True)
    before = packs(place)
    assert "that are not of this data directory" in refusal(tmp_path / "second", place)
    assert packs(place) == before


def test_a_stray_file_does_not_keep_the_storage_process_from_working(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        httpx.put(f"{server.streams_url}/a", headers=TEXT, content="hello").raise_for_status()
        httpx.post(f"{server.url}/cluster/flush").raise_for_status()
    stray = os.fsencode(tmp_path / "data" / "objects" / "packs") + b"/\xff.pack"
    with open(stray, "wb"):  # noqa: PTH123 - no text, no path
        pass
    os.utime(stray, (0, 0))
    with ServerProcess(tmp_path / "data") as server:
        httpx.put(f"{server.streams_url}/b", headers=TEXT, content="hello").raise_for_status()
        httpx.post(f"{server.url}/cluster/flush").raise_for_status()
        flush = httpx.get(f"{server.url}/cluster/hot-cold-stats").json()["flush"]
        assert flush["process_restarts"] == 0
