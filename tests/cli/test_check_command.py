"""`holdfast check` over what real servers leave behind: sound, damaged, and repaired."""

import os
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing

import httpx
import pytest

from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.objects.pack_reader import Pack
from tests.cli.checked import (
    SETTINGS,
    check,
    check_streams_of,
    contents,
    copy,
    flip,
    flushed_of,
    make,
    places,
)
from tests.http.streams import Stream
from tests.server_process import COMMAND, ServerProcess

CATALOG = "catalog.sqlite"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory with packs in use, packs out of use and a log, and its streams."""
    directory = tmp_path_factory.mktemp("made") / "data"
    return directory, make(directory)


@pytest.fixture
def streams(made):
    return made[1]


@pytest.fixture
def data(made, tmp_path):
    """A copy of it."""
    return copy(made[0], tmp_path / "data")


@pytest.fixture
def used(data):
    """A merged pack in use: its name, its file, and where its parts are."""
    with closing(sqlite3.connect(data / CATALOG)) as catalog:
        name, *_ = catalog.execute(
            "SELECT name FROM packs WHERE retired_ms IS NULL AND data_bytes > 0 "
            "AND name IN (SELECT retired_by FROM packs) ORDER BY data_bytes DESC"
        ).fetchone()
    footer = Pack(DirectoryObjects(data / "objects"), name).footer
    return name, data / "objects" / name, footer


@pytest.fixture(scope="module")
def made_log(tmp_path_factory):
    """A directory with several segments and no pack."""
    directory = tmp_path_factory.mktemp("logged") / "data"
    with (
        ServerProcess(directory, wal_segment_bytes=4096, wal_ballast_bytes=0) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        stream = Stream(client, "demo/a")
        stream.create(b"start")
        for _ in range(8):
            assert stream.append(b"x" * 1500).status_code == 204
    return directory


class TestSound:
    def test_it_says_what_it_has_looked_at(self, data):
        before = contents(data)
        run = check(data)
        assert run.returncode == 0
        assert run.stderr == ""
        *notes, summary = run.stdout.splitlines()
        assert all(note.startswith("note: packs: ") for note in notes)
        assert summary.startswith("checked ")
        assert summary.endswith(": no damage")
        assert " 8 streams, " in summary
        assert contents(data) == before

    def test_it_says_it_in_json(self, data):
        found = check(data, "--json").found
        packs = list((data / "objects/packs").iterdir())
        assert found["ok"] is True
        assert found["packs"] == len(packs)
        assert found["bytes"] == sum(path.stat().st_size for path in packs)
        assert found["streams"] == 8
        assert found["log_batches"] >= 1
        assert found["damage"] == found["repaired"] == []
        assert places(found["notes"]) == {"packs"}

    def test_repair_leaves_alone_what_is_sound(self, data):
        before = contents(data)
        assert check(data, "--repair").returncode == 0
        assert contents(data) == before

    def test_a_store_alone(self, data, tmp_path):
        store = str(data / "objects")
        run = check(tmp_path / "nowhere", "--store", store, "--json")
        assert run.returncode == 0
        assert run.found["streams"] == 8
        assert not (tmp_path / "nowhere").exists()

    def test_a_directory_that_was_never_flushed(self, tmp_path):
        with ServerProcess(tmp_path / "data", wal_ballast_bytes=0):
            pass
        assert check(tmp_path / "data").returncode == 0
        (tmp_path / "data" / CATALOG).unlink()
        before = contents(tmp_path / "data")
        assert check(tmp_path / "data").returncode == 0
        assert contents(tmp_path / "data") == before


class TestRefusals:
    def test_a_directory_in_use(self, tmp_path):
        with ServerProcess(tmp_path / "data"):
            run = check(tmp_path / "data")
        assert run.returncode == 1
        assert "is in use by another server" in run.stderr
        assert "backup" in run.stderr
        assert run.stdout == ""

    @pytest.mark.parametrize("arguments", [[], ["--repair"]])
    def test_what_is_no_data_directory_stays_as_it_is(self, tmp_path, arguments):
        for directory in (tmp_path, tmp_path / "nowhere"):
            run = check(directory, *arguments)
            assert run.returncode == 2
            assert "is not a data directory" in run.stderr
        assert list(tmp_path.iterdir()) == []

    def test_a_lost_disk_comes_back_from_the_store(self, data, tmp_path):
        store = tmp_path / "store"
        shutil.copytree(data / "objects", store)
        run = check(tmp_path / "new", "--store", str(store), "--repair")
        assert run.returncode == 0, run.stdout + run.stderr
        again = check(tmp_path / "new", "--store", str(store))
        assert again.returncode == 0, again.stdout + again.stderr
        with ServerProcess(tmp_path / "new", store=store) as server:
            status = httpx.get(f"{server.url}/cluster/status").json()
            assert status["shards"][0]["streams"] > 0

    def test_a_start_without_the_catalog_leaves_it_repairable(self, data):
        (data / "catalog.sqlite").unlink()
        with pytest.raises(AssertionError, match="check --repair"):
            ServerProcess(data).start()
        run = check(data, "--repair")
        assert run.returncode == 0, run.stdout + run.stderr
        with ServerProcess(data):
            pass

    def test_a_store_that_is_none(self, tmp_path):
        run = check(tmp_path / "nowhere", "--store", str(tmp_path / "typo"))
        assert run.returncode == 2
        assert "is not a Holdfast store" in run.stderr
        assert list(tmp_path.iterdir()) == []

    def test_the_store_of_another_directory(self, data, tmp_path):
        with ServerProcess(tmp_path / "other", wal_ballast_bytes=0):
            pass
        run = check(data, "--store", str(tmp_path / "other/objects"), "--repair")
        assert run.returncode == 2
        assert "belongs to another data directory" in run.stderr

    def test_ctrl_c(self, data):
        # Whoever opens this waits for somebody to write to it.
        os.mkfifo(data / "objects/packs/zzz")
        process = subprocess.Popen(
            [COMMAND[0], "check", "--data-dir", str(data)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while str(process.pid) not in (data / "lock").read_text():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert output == ""
        assert errors == "holdfast: interrupted\n"


class TestDamage:
    @pytest.mark.parametrize("part", ["data", "index", "directory", "delta", "footer"])
    def test_a_bit_in_a_pack(self, data, used, part):
        name, path, footer = used
        at = {
            "data": footer.data_end - 1,
            "index": footer.lengths_at,
            "directory": footer.directory_at,
            "delta": footer.delta_at,
            "footer": footer.footer_at,
        }[part]
        flip(path, at)
        run = check(data, "--json")
        assert run.returncode == 1
        (words,) = [each["what"] for each in run.found["damage"] if each["where"] == name]
        assert {"data": "checksum"}.get(part, part) in words

    def test_a_truncated_pack(self, data, used):
        name, path, _ = used
        os.truncate(path, 100)
        run = check(data)
        assert run.returncode == 1
        assert f"damage: {name}: it is too short to be a pack" in run.stdout
        assert run.stdout.splitlines()[-1].endswith("damage found (1)")

    def test_a_missing_pack(self, data, used):
        name, path, _ = used
        path.unlink()
        run = check(data, "--json")
        assert run.returncode == 1
        assert places(run.found["damage"]) == {name}

    def test_an_extent_of_the_catalog(self, data):
        with closing(sqlite3.connect(data / CATALOG)) as catalog:
            catalog.execute("UPDATE extents SET data_at = data_at + 1 WHERE start = 0")
            catalog.commit()
        run = check(data, "--json")
        assert run.returncode == 1
        assert places(run.found["damage"]) == {CATALOG}

    @pytest.mark.parametrize("rubbish", [b"", b"rubbish" * 1000])
    def test_a_file_that_is_no_catalog(self, data, rubbish):
        (data / CATALOG).write_bytes(rubbish)
        run = check(data, "--json")
        assert run.returncode == 1
        assert places(run.found["damage"]) == {CATALOG}
        assert run.found["streams"] == 8

    def test_a_missing_catalog(self, data):
        (data / CATALOG).unlink()
        before = contents(data)
        run = check(data)
        assert run.returncode == 1
        assert "--repair rebuilds it from the packs" in run.stdout
        assert contents(data) == before

    def test_an_orphan_is_no_damage(self, data):
        (data / "objects/packs/stray.pack").write_bytes(b"half a pack")
        run = check(data, "--json")
        assert run.returncode == 0
        (note,) = [each for each in run.found["notes"] if each["where"] == "packs/stray.pack"]
        assert note["what"].startswith("an orphan, which nothing refers to, and unfinished: ")
        assert note["what"].endswith("; 11 bytes")


class TestLog:
    @pytest.fixture
    def logged(self, made_log, tmp_path):
        directory = copy(made_log, tmp_path / "logged")
        segments = sorted((directory / "log").glob("*.seg"))
        assert len(segments) >= 4
        return directory, segments

    def test_a_missing_segment(self, logged):
        directory, segments = logged
        assert check(directory, "--json").found["log_batches"] == 9
        segments[1].unlink()
        run = check(directory, "--json")
        assert run.returncode == 1
        assert places(run.found["damage"]) == {"log"}
        (damage,) = run.found["damage"]
        assert "are neither in it nor in packs" in damage["what"]
        run = check(directory, "--repair", "--json")
        assert run.returncode == 1
        assert "not repaired: Positions 1 to" in run.found["damage"][-1]["what"]

    def test_damaged_segments_are_all_named(self, logged):
        directory, segments = logged
        for segment in segments[:2]:
            flip(segment, 200)
        run = check(directory, "--json")
        assert run.returncode == 1
        expected = {f"log/{segment.name}" for segment in segments[:2]}
        assert places(run.found["damage"]) == expected

    def test_an_unfinished_batch_at_the_end_is_noted(self, logged):
        directory, segments = logged
        # Behind the last batch there are only zeros.
        whole = segments[-1].read_bytes()
        end = len(whole.rstrip(b"\0"))
        segments[-1].write_bytes(whole[:end] + b"HFB\x01 and no more")
        run = check(directory, "--json")
        assert run.returncode == 0
        assert places(run.found["notes"]) == {f"log/{segments[-1].name}"}
        assert run.stderr == ""

    def test_a_damaged_header(self, logged):
        directory, segments = logged
        flip(segments[-2], 20)
        run = check(directory)
        assert run.returncode == 1
        assert f"{segments[-2].name} at byte 0: its header is damaged" in run.stdout


class TestRepair:
    @pytest.mark.parametrize("fault", ["missing", "rubbish", "altered"])
    def test_a_catalog(self, data, streams, fault):
        catalog = data / CATALOG
        if fault == "missing":
            catalog.unlink()
        elif fault == "rubbish":
            catalog.write_bytes(b"rubbish" * 1000)
        else:
            with closing(sqlite3.connect(catalog)) as connection:
                connection.execute("DELETE FROM extents WHERE stream % 2 = 0 OR start > 0")
                connection.commit()
        run = check(data, "--repair", "--json")
        assert run.returncode == 0
        assert run.found["damage"] == []
        assert places(run.found["repaired"]) == {CATALOG}
        assert (data / f"{CATALOG}.damaged").exists() == (fault != "missing")
        assert check(data).returncode == 0
        check_streams_of(data, streams)
        assert check(data).returncode == 0

    @pytest.mark.parametrize("log_is_lost", [False, True])
    def test_a_catalog_that_is_older_than_the_packs(self, data, tmp_path, streams, log_is_lost):
        with ServerProcess(tmp_path / "empty", wal_ballast_bytes=0):
            pass
        (data / CATALOG).write_bytes((tmp_path / "empty" / CATALOG).read_bytes())
        with closing(sqlite3.connect(data / CATALOG)) as catalog:
            catalog.execute("UPDATE facts SET value = '' WHERE name = 'store'")
            catalog.commit()
        if log_is_lost:
            for segment in (data / "log").iterdir():
                segment.unlink()
        run = check(data, "--json")
        assert run.returncode == 1
        assert places(run.found["damage"]) == {"log"} | ({CATALOG} if log_is_lost else set())
        run = check(data, "--repair", "--json")
        if log_is_lost:
            assert places(run.found["damage"]) == {"log"}
        else:
            assert run.returncode == 0
            check_streams_of(data, streams)

    def test_a_damaged_pack_whose_sources_are_still_there(self, data, used, streams):
        name, path, footer = used
        flip(path, footer.data_end - 1)
        run = check(data, "--repair", "--json")
        assert run.returncode == 0, run.stdout
        assert places(run.found["repaired"]) == {name}
        check_streams_of(data, streams)

    def test_a_damaged_pack_that_nothing_can_stand_in_for(self, data, used):
        name, path, footer = used
        drop_what_is_out_of_use(data)
        flip(path, footer.data_end - 1)
        before = contents(data)
        run = check(data, "--repair", "--json")
        assert run.returncode == 1
        assert places(run.found["damage"]) == {name}
        assert "it is not damaged" in run.found["notes"][-1]["what"]
        assert contents(data) == before

    def test_a_gap_is_named_and_nothing_replaced(self, data):
        drop_what_is_out_of_use(data)
        packs = sorted((data / "objects/packs").iterdir())
        packs[0].unlink()
        before = contents(data)
        run = check(data, "--repair")
        assert run.returncode == 1
        assert "not repaired: Positions 1 to " in run.stdout
        assert contents(data) == before

    def test_a_repair_that_is_killed_changes_nothing_and_can_be_run_again(self, data, streams):
        (data / CATALOG).write_bytes(b"rubbish" * 1000)
        run = check(data, "--repair", failpoints="repair.rebuilt=kill")
        assert run.returncode == -signal.SIGKILL
        assert (data / CATALOG).read_bytes() == b"rubbish" * 1000
        assert check(data).returncode == 1
        assert check(data, "--repair").returncode == 0
        assert not list(data.glob(f"{CATALOG}.new*"))
        check_streams_of(data, streams)

    def test_with_what_a_killed_flush_left(self, data, streams, monkeypatch):
        # Flushes upload their packs and are killed, again and again.
        monkeypatch.setenv("HOLDFAST_FAILPOINTS", "flush.uploaded=kill")
        before = set((data / "objects/packs").iterdir())
        with ServerProcess(data, **SETTINGS) as server, httpx.Client(base_url=server.url) as client:
            assert Stream(client, "demo/late").create(b"x" * 8000).status_code == 201
            while set((data / "objects/packs").iterdir()) == before:
                assert server.running
        monkeypatch.delenv("HOLDFAST_FAILPOINTS")
        run = check(data, "--json")
        assert run.returncode == 0
        assert places(run.found["notes"]) > {"packs"}
        flushed = flushed_of(data)
        (data / CATALOG).unlink()
        assert check(data, "--repair").returncode == 0
        assert flushed_of(data) > flushed
        check_streams_of(data, streams)


def drop_what_is_out_of_use(data):
    """As garbage collection does it after the grace period."""
    with closing(sqlite3.connect(data / CATALOG)) as catalog:
        for (name,) in catalog.execute("SELECT name FROM packs WHERE retired_ms IS NOT NULL"):
            (data / "objects" / name).unlink()
        catalog.execute("DELETE FROM packs WHERE retired_ms IS NOT NULL")
        catalog.commit()
