"""`holdfast backup` and `holdfast restore` as people use them: lines, JSON, words, exit codes."""

import fcntl
import json
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import httpx
import pytest

from holdfast.cli.main import main
from holdfast.log.directory import FORMAT, UNFINISHED_FORMAT
from tests.moto_server import MotoServer
from tests.server_process import COMMAND, ServerProcess

HOLDFAST = COMMAND[0]
BYTES = {"Content-Type": "application/octet-stream"}
# Ends itself in the way of a person or an init system, in the midst of things.
ENDING = """
import os, sys
from holdfast import failpoints
from holdfast.cli.main import run
number = int(sys.argv.pop(1))
failpoints.hook = lambda name: name == "backup.catalog_copied" and os.kill(os.getpid(), number)
run()
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def moto():
    with MotoServer() as server:
        yield server


def fill(server, **more):
    """Streams in packs and streams in the log; what each holds."""
    contents = {"cold": b"in a pack", "both": b"first here, ", "hot": b"in the log", **more}
    with httpx.Client(base_url=server.url, headers=BYTES) as client:
        for name in ("cold", "both", *more):
            client.put(f"/v1/stream/{name}", content=contents[name]).raise_for_status()
        client.post("/cluster/flush").raise_for_status()
        client.put("/v1/stream/hot", content=contents["hot"]).raise_for_status()
        client.post("/v1/stream/both", content=b"then there").raise_for_status()
        client.post("/v1/stream/cold", headers={"Stream-Closed": "true"}).raise_for_status()
    contents["both"] += b"then there"
    return contents


def check(server, contents):
    with httpx.Client(base_url=server.url) as client:
        for name, data in contents.items():
            answer = client.get(f"/v1/stream/{name}", params={"offset": "-1"})
            assert answer.content == data
            assert ("stream-closed" in answer.headers) == (name == "cold")


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A data directory that no server is using any more, and what is in it."""
    path = tmp_path_factory.mktemp("filled") / "data"
    with ServerProcess(path) as server:
        contents = fill(server)
    return path, contents


@pytest.fixture
def data_dir(filled, tmp_path):
    """A data directory of this test."""
    return shutil.copytree(filled[0], tmp_path / "data")


@pytest.fixture(scope="module")
def made(filled, tmp_path_factory):
    """A place with one backup."""
    place = tmp_path_factory.mktemp("made") / "place"
    assert main(["backup", str(place), "--data-dir", str(filled[0])]) == 0
    return place


@pytest.fixture
def place(made, tmp_path):
    """A place of this test, with one backup."""
    return shutil.copytree(made, tmp_path / "place")


@pytest.fixture
def run(capsys):
    """Run a command; what it printed to stdout if it should work, to stderr if not."""

    def run(*arguments, fails=0):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert code == fails, output.err
        if not fails:
            assert output.err == ""
            return output.out
        assert output.out == ""
        assert output.err.startswith("holdfast: ")
        assert output.err.count("\n") == 1
        return output.err

    return run


def backup_of(place):
    (path,) = (place / "backups").iterdir()
    return path


class TestBackup:
    def test_one_line_says_what_there_is(self, run, data_dir, tmp_path):
        line = run("backup", tmp_path / "new", "--data-dir", data_dir)
        assert line.startswith("Backup 20")
        assert f" at file://{tmp_path}/new: position 5, 3 streams, 1 packs (" in line
        assert "and a log of 2 appends (" in line
        assert "with 1 new packs" in line
        assert line.count("\n") == 1

    def test_json_and_what_is_new(self, run, data_dir, place, filled):
        contents = filled[1]
        printed = run("backup", place, "--data-dir", data_dir, "--json")
        assert printed.count("\n") == 1
        document = json.loads(printed)
        assert document["url"] == place.as_uri()
        assert (document["position"], document["streams"], document["packs"]) == (5, 3, 1)
        assert document["log_appends"] == 2
        assert document["stored_bytes"] == sum(map(len, contents.values()))
        assert document["packs_copied"] == 0
        assert 0 < document["bytes_copied"] < document["bytes"]

    def test_the_server_may_be_serving(self, run, tmp_path):
        with ServerProcess(tmp_path / "data") as server:
            contents = fill(server, more=b"x" * 100_000)
            run("backup", tmp_path / "new", "--data-dir", server.data_dir)
            httpx.post(
                f"{server.streams_url}/hot", content=b" and more", headers=BYTES
            ).raise_for_status()
        run("restore", tmp_path / "new", "--data-dir", tmp_path / "restored")
        with ServerProcess(tmp_path / "restored") as server:
            check(server, contents)

    def test_keys_of_subscriptions_are_in_it(self, run, tmp_path):
        """Webhooks of the restored server verify with the keys that receivers know."""
        with ServerProcess(tmp_path / "data") as server:
            jwks = httpx.get(f"{server.streams_url}/__ds/jwks.json").raise_for_status().json()
            run("backup", tmp_path / "new", "--data-dir", server.data_dir)
        run("restore", tmp_path / "new", "--data-dir", tmp_path / "restored")
        with ServerProcess(tmp_path / "restored") as server:
            assert httpx.get(f"{server.streams_url}/__ds/jwks.json").json() == jwks
        keys = "subscription-keys.json"
        copies = [backup_of(tmp_path / "new") / keys, tmp_path / "restored" / keys]
        assert {path.stat().st_mode & 0o777 for path in copies} == {0o600}
        assert len({path.read_bytes() for path in copies}) == 1

    def test_an_empty_server(self, run, tmp_path):
        with ServerProcess(tmp_path / "data") as server:
            line = run("backup", tmp_path / "new", "--data-dir", server.data_dir)
        assert "position 0, 0 streams, 0 packs (0 B), 0 snapshots and a log of 0 appends" in line
        run("restore", tmp_path / "new", "--data-dir", tmp_path / "restored")
        with ServerProcess(tmp_path / "restored") as server:
            check(server, fill(server))

    def test_without_a_catalog_the_log_is_enough(self, run, tmp_path):
        """As a server of an earlier version has left it."""
        with ServerProcess(tmp_path / "data") as server:
            httpx.put(f"{server.streams_url}/hot", content=b"in the log").raise_for_status()
        (tmp_path / "data" / "catalog.sqlite").unlink()
        run("backup", tmp_path / "new", "--data-dir", tmp_path / "data")
        assert not (tmp_path / "data" / "catalog.sqlite").exists()
        run("restore", tmp_path / "new", "--data-dir", tmp_path / "restored")
        with ServerProcess(tmp_path / "restored") as server:
            check(server, {"hot": b"in the log"})

    def test_list(self, run, place, data_dir):
        first = backup_of(place).name
        second = json.loads(run("backup", place, "--data-dir", data_dir, "--json"))["id"]
        rows = run("backup", "--list", place).splitlines()
        assert rows[0].split() == ["backup", "streams", "packs", "size"]
        assert [row.split()[:3] for row in rows[1:]] == [[first, "3", "1"], [second, "3", "1"]]
        listed = json.loads(run("backup", place, "--list", "--json"))
        assert [each["id"] for each in listed] == [first, second]
        (place / "backups" / first / "manifest.json").write_text('{"format": 7}')
        assert f"{first}  The backup {first} at" in run("backup", "--list", place)
        listed = json.loads(run("backup", place, "--list", "--json"))
        assert "has the format 7" in listed[0]["error"]

    def test_list_of_nothing(self, run, tmp_path):
        nowhere = tmp_path / "nowhere"
        assert run("backup", "--list", nowhere) == f"There is no backup at {nowhere.as_uri()}.\n"
        assert json.loads(run("backup", "--list", nowhere, "--json")) == []
        assert not nowhere.exists()

    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (["place"], 1, "data is not a Holdfast data directory. Name the server's with"),
            (["place", "--durability", "memory"], 2, "has no data directory to back up"),
            (["ftp://host/x"], 2, "'ftp://host/x' cannot hold backups: expected a path"),
            ([""], 2, "the location of the backups is missing"),
            ([], 2, "requires an argument"),
            (["place", "--list", "--s3-access-key-id", "x"], 2, "s3_secret_access_key is not set"),
        ],
    )
    def test_refusals(self, run, tmp_path, monkeypatch, arguments, code, says):
        monkeypatch.chdir(tmp_path)
        assert says in run("backup", *arguments, fails=code)
        assert list(tmp_path.iterdir()) == []

    def test_a_data_directory_of_another_format(self, run, data_dir, tmp_path):
        (data_dir / "format").write_text("holdfast-data 2\n")
        words = run("backup", tmp_path / "new", "--data-dir", data_dir, fails=1)
        assert "has the format 'holdfast-data 2'" in words

    def test_another_store_than_the_servers(self, run, data_dir, tmp_path):
        command = ["backup", tmp_path / "new", "--data-dir", data_dir, "--store", tmp_path / "no"]
        assert "settings of the server, such as --store" in run(*command, fails=2)

    def test_a_place_that_cannot_be_written_to(self, run, data_dir, tmp_path):
        (tmp_path / "file").write_text("")
        words = run("backup", tmp_path / "file" / "x", "--data-dir", data_dir, fails=2)
        assert "Not a directory" in words

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_it_cleans_up_when_it_is_ended(self, place, data_dir, number, code):
        before = sorted(place.rglob("*"))
        command = [sys.executable, "-c", ENDING, str(int(number)), "backup", place]
        done = subprocess.run(
            [*command, "--data-dir", data_dir], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
        after = sorted(path for path in place.rglob("*") if path.is_file())
        assert after == [path for path in before if path.is_file()]
        with closing(sqlite3.connect(data_dir / "catalog.sqlite")) as catalog:
            assert catalog.execute("SELECT count(*) FROM pins").fetchone() == (0,)

    def test_progress_is_for_terminals(self, data_dir, tmp_path):
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [HOLDFAST, "backup", tmp_path / "new", "--data-dir", data_dir, "--json"],
            stdout=subprocess.PIPE,
            stderr=follower,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(follower)
        shown = b""
        with open(leader, "rb", buffering=0) as terminal:  # noqa: PTH123 (a descriptor)
            # Linux has it end with an error.
            while part := read_terminal(terminal):
                shown += part
        output, _ = process.communicate()
        assert process.returncode == 0
        assert json.loads(output)["packs_copied"] == 1
        assert b"copying packs" in shown


def read_terminal(terminal):
    try:
        return terminal.read(4096)
    except OSError:
        return b""


class TestRestore:
    def test_one_line_says_how_to_go_on(self, run, place, tmp_path, filled):
        restored = tmp_path / "restored"
        line = run("restore", place, "--data-dir", restored)
        assert line.startswith(f"Restored backup {backup_of(place).name} into {restored}: pos")
        assert line.endswith(f". Start the server with: holdfast serve --data-dir {restored}\n")
        assert (restored / "format").read_text() == FORMAT
        assert not (restored / "restoring").exists()
        with ServerProcess(restored) as server:
            check(server, filled[1])

    def test_json(self, run, place, tmp_path):
        restored = tmp_path / "restored"
        document = json.loads(run("restore", place, "--data-dir", restored, "--json"))
        assert document["id"] == backup_of(place).name
        assert document["store"] == (restored / "objects").as_uri()
        assert document["data_dir"] == str(restored)
        assert document["bytes_copied"] == document["bytes"]

    def test_a_store_elsewhere(self, run, place, tmp_path, filled):
        restored, store = tmp_path / "restored", tmp_path / "store"
        line = run("restore", place, "--data-dir", restored, "--store", store)
        assert line.endswith(f"--data-dir {restored} --store {store}\n")
        assert not (restored / "objects").exists()
        with ServerProcess(restored, store=store) as server:
            check(server, filled[1])
        words = run("restore", place, "--data-dir", tmp_path / "b", "--store", store, fails=2)
        assert "belongs to another data directory" in words

    def test_what_a_new_file_system_holds_is_nothing(self, run, place, tmp_path):
        (tmp_path / "disk" / "lost+found").mkdir(parents=True)
        run("restore", place, "--data-dir", tmp_path / "disk")

    @pytest.mark.parametrize("name", ["notes.txt", "format", "log"])
    def test_a_directory_that_is_not_empty(self, run, place, tmp_path, name):
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / name).write_text(FORMAT)
        words = run("restore", place, "--data-dir", tmp_path / "full", fails=2)
        assert f"full is not empty: it holds '{name}', for example" in words
        assert [path.name for path in (tmp_path / "full").iterdir()] == [name]

    def test_a_directory_that_a_server_is_using(self, run, place, tmp_path):
        with ServerProcess(tmp_path / "data") as server:
            words = run("restore", place, "--data-dir", server.data_dir, fails=2)
        assert "is not empty" in words

    def test_a_directory_that_another_restore_is_using(self, run, place, tmp_path):
        (tmp_path / "empty").mkdir()
        with (tmp_path / "empty" / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            words = run("restore", place, "--data-dir", tmp_path / "empty", fails=1)
        assert "is in use by a server or another restore" in words

    def test_a_path_that_leads_through_a_file(self, run, place, tmp_path):
        (tmp_path / "file").write_text("")
        words = run("restore", place, "--data-dir", tmp_path / "file" / "x", fails=1)
        assert "Not a directory" in words

    def test_no_backup_there(self, run, place, tmp_path):
        command = ["--data-dir", tmp_path / "restored"]
        assert "There is no backup at" in run("restore", tmp_path / "nowhere", *command, fails=1)
        words = run("restore", place, "--backup", "20200101T000000Z-aaaaaa", *command, fails=1)
        assert "There is no backup '20200101T000000Z-aaaaaa' at" in words
        (backup_of(place) / "manifest.json").unlink()
        assert "There is no backup at" in run("restore", place, *command, fails=1)
        assert not (tmp_path / "restored").exists()

    def test_an_unknown_format(self, run, place, tmp_path):
        path = backup_of(place) / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
        words = run("restore", place, "--data-dir", tmp_path / "restored", fails=1)
        assert "has the format 2, and this version of Holdfast reads up to 1" in words

    def test_a_damaged_pack(self, run, place, tmp_path):
        """Once the backup is whole again the same restore goes on."""
        (pack,) = (place / "packs").iterdir()
        whole = pack.read_bytes()
        pack.write_bytes(whole.replace(b"in a pack", b"in A pack"))
        command = ["restore", place, "--data-dir", tmp_path / "restored"]
        words = run(*command, fails=1)
        assert f"The pack packs/{pack.name} is damaged" in words
        assert f"It is in {place.as_uri()}." in words
        pack.write_bytes(whole)
        run(*command)

    def test_a_damaged_catalog(self, run, place, tmp_path):
        path = backup_of(place) / "catalog.sqlite"
        path.write_bytes(path.read_bytes()[::-1])
        words = run("restore", place, "--data-dir", tmp_path / "restored", fails=1)
        assert "catalog.sqlite" in words
        assert "does not match its checksum" in words
        assert (tmp_path / "restored" / "format").read_text() == UNFINISHED_FORMAT


class TestRestoreThatWasCutShort:
    @pytest.fixture
    def half(self, run, place, tmp_path):
        """A directory whose restore failed at the log."""
        segment = backup_of(place) / "log" / "0000000001.seg"
        segment.rename(tmp_path / "aside")
        run("restore", place, "--data-dir", tmp_path / "half", fails=1)
        (tmp_path / "aside").rename(segment)
        return tmp_path / "half"

    def test_goes_on(self, run, place, half, filled):
        document = json.loads(run("restore", place, "--data-dir", half, "--json"))
        assert document["packs_copied"] == 0
        with ServerProcess(half) as server:
            check(server, filled[1])

    def test_is_no_data_directory(self, run, half, tmp_path):
        words = run("serve", "--listen", "127.0.0.1:0", "--data-dir", half, fails=1)
        assert "run holdfast restore again" in words
        assert "restore again" in run("backup", tmp_path / "b", "--data-dir", half, fails=1)

    def test_another_backup_is_refused(self, run, place, data_dir, half):
        begun = backup_of(place).name
        run("backup", place, "--data-dir", data_dir)
        words = run("restore", place, "--data-dir", half, fails=2)
        assert f"an unfinished restore of backup {begun}" in words
        assert f"--backup {begun}" in words
        run("restore", place, "--backup", begun, "--data-dir", half)

    def test_another_store_is_refused(self, run, place, half, tmp_path):
        command = ["restore", place, "--data-dir", half, "--store", tmp_path / "other"]
        assert f"with the object store {(half / 'objects').as_uri()}" in run(*command, fails=2)

    def test_a_damaged_mark(self, run, place, half):
        (half / "restoring").write_text("{")
        words = run("restore", place, "--data-dir", half, fails=2)
        assert "is damaged" in words
        assert "Empty the directory" in words

    def test_only_its_mark_was_left(self, run, place, half):
        """Then nothing is copied again: a server may have been writing since."""
        mark = (half / "restoring").read_text()
        run("restore", place, "--data-dir", half)
        (half / "restoring").write_text(mark)
        (half / "log" / "0000000001.seg").unlink()
        document = json.loads(run("restore", place, "--data-dir", half, "--json"))
        assert document["bytes_copied"] == 0
        assert not (half / "restoring").exists()
        assert not (half / "log" / "0000000001.seg").exists()

    def test_before_its_mark_was_there(self, run, place, tmp_path):
        (tmp_path / "begun").mkdir()
        (tmp_path / "begun" / "lock").write_text("")
        (tmp_path / "begun" / "format").write_text(UNFINISHED_FORMAT)
        (tmp_path / "begun" / "restoring.new").write_text("{")
        run("restore", place, "--data-dir", tmp_path / "begun")


class TestS3:
    @pytest.fixture
    def keys(self, moto):
        """Flags for any bucket of this server."""
        settings = moto.settings("any")
        del settings["store"]
        return settings

    @staticmethod
    def flags(settings):
        return [
            word
            for name, value in settings.items()
            for word in (f"--{name.replace('_', '-')}", value)
        ]

    def test_to_a_bucket_and_from_it_into_another(
        self, run, moto, keys, data_dir, tmp_path, filled
    ):
        url = f"s3://{moto.new_bucket()}/nightly"
        run("backup", url, "--data-dir", data_dir, *self.flags(keys))
        document = json.loads(
            run("backup", url, "--data-dir", data_dir, "--json", *self.flags(keys))
        )
        assert document["packs_copied"] == 0
        assert document["url"] == url
        assert len(json.loads(run("backup", "--list", url, "--json", *self.flags(keys)))) == 2
        restored = tmp_path / "restored"
        settings = {"store": f"s3://{moto.new_bucket()}/store", **keys}
        run("restore", url, "--data-dir", restored, *self.flags(settings))
        with ServerProcess(restored, **settings) as server:
            check(server, filled[1])

    def test_a_server_whose_store_is_a_bucket(self, run, moto, keys, tmp_path):
        settings = moto.settings(moto.new_bucket())
        large = os.urandom(9 << 20)[: 8 << 20] + b"end"
        with ServerProcess(tmp_path / "data", body_bytes_max=16 << 20, **settings) as server:
            contents = fill(server, large=large)
            command = ["--data-dir", server.data_dir, *self.flags(settings)]
            run("backup", tmp_path / "place", *command)
            url = f"s3://{moto.new_bucket()}"
            run("backup", url, *command)
        with ServerProcess(tmp_path / "data", **settings):
            run("restore", tmp_path / "place", "--data-dir", tmp_path / "here")
            run("restore", url, "--data-dir", tmp_path / "there", *self.flags(keys))
        for name in ("here", "there"):
            with ServerProcess(tmp_path / name, read_bytes_max=16 << 20) as server:
                check(server, contents)

    def test_a_bucket_that_is_not_there(self, run, moto, keys, data_dir, tmp_path):
        flags = ["--data-dir", data_dir, *self.flags(keys)]
        assert "s3://nobodys" in run("backup", "s3://nobodys", *flags, fails=2)
        assert "s3://nobodys" in run("backup", "--list", "s3://nobodys", *flags, fails=1)
        words = run(
            "restore", "s3://nobodys", "--data-dir", tmp_path / "new", *self.flags(keys), fails=1
        )
        assert "s3://nobodys" in words
