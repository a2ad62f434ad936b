"""The end of the log after a stop: what is missing then was lost, and the server says so."""

import asyncio
import shutil
import signal

import httpx
import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.errors import LogCorruptError
from holdfast.log.interface import ReplayedBatch
from tests.cli.checked import check, contents, copy, flip, places
from tests.http.streams import Stream
from tests.log.implementations import FileImplementation, OpenLog
from tests.server_process import ServerProcess

RECORD = "log-end.json"


def append(data_dir, *bodies, end=ServerProcess.stop):
    """Run a server that appends these and then ends."""
    with ServerProcess(data_dir, wal_ballast_bytes=0) as server:
        with httpx.Client(base_url=server.url) as client:
            stream = Stream(client, "demo/a")
            stream.create()
            for body in bodies:
                assert stream.append(body).is_success
        end(server)


def interrupt(server):
    server.signal(signal.SIGINT)
    server.wait()


def read(data_dir):
    with ServerProcess(data_dir, wal_ballast_bytes=0) as server:
        with httpx.Client(base_url=server.url) as client:
            return Stream(client, "demo/a").read("-1").content


def log_of(data_dir):
    return {path: data for path, data in contents(data_dir).items() if str(path).startswith("log")}


def refusal(data_dir):
    """What a server says that does not start on this directory."""
    before = log_of(data_dir)
    with pytest.raises(AssertionError, match="did not say where it listens") as caught:
        ServerProcess(data_dir, wal_ballast_bytes=0).start()
    assert log_of(data_dir) == before
    (line,) = [each for each in str(caught.value).splitlines() if each.startswith("holdfast: ")]
    return line


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Two segments with batches, and an orderly stop."""
    data_dir = tmp_path_factory.mktemp("stopped") / "data"
    append(data_dir, b"one ", end=interrupt)
    assert b'"stopped":true' in (data_dir / RECORD).read_bytes()
    append(data_dir, b"two ", b"three ")
    return data_dir


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("killed") / "data"
    append(data_dir, b"one ")
    append(data_dir, b"two ", b"three ", end=ServerProcess.kill)
    return data_dir


def last_segment(data_dir):
    """The last segment with batches, and the byte where they end."""
    path = max((data_dir / "log").glob("*.seg"))
    return path, len(path.read_bytes().rstrip(b"\0"))


def flip_last_batch(data_dir):
    path, end = last_segment(data_dir)
    flip(path, end - 1)
    return f"{path.name} is damaged"


def cut_last_segment(data_dir):
    path, end = last_segment(data_dir)
    path.write_bytes(path.read_bytes()[: end - 1])
    return f"{path.name} has {end - 1} of"


def empty_last_segment(data_dir):
    path, _ = last_segment(data_dir)
    path.write_bytes(b"")
    return f"{path.name} has 0 of"


def delete_last_segment(data_dir):
    path, _ = last_segment(data_dir)
    path.unlink()
    return f"{path.name} is missing"


def delete_segments(data_dir):
    for path in (data_dir / "log").iterdir():
        path.unlink()
    return "0000000001.seg is missing, 0000000002.seg is missing"


def delete_log(data_dir):
    shutil.rmtree(data_dir / "log")
    return "ends at 0 now: 0000000001.seg is missing, 0000000002.seg is missing"


@pytest.mark.parametrize(
    "damage",
    [
        flip_last_batch,
        cut_last_segment,
        pytest.param(empty_last_segment, marks=pytest.mark.slow),
        delete_last_segment,
        pytest.param(delete_segments, marks=pytest.mark.slow),
        delete_log,
    ],
)
def test_what_is_missing_after_a_stop_is_reported(stopped, tmp_path, damage):
    data_dir = copy(stopped, tmp_path / "data")
    what = damage(data_dir)
    message = refusal(data_dir)
    assert what in message
    assert f"delete {data_dir / RECORD}" in message
    found = check(data_dir, "--json")
    assert found.returncode == 1
    assert places(found.found["damage"]) == {"log"}
    assert what in found.found["damage"][0]["what"]
    assert "unfinished batch" not in found.stdout


def test_loss_is_accepted_by_deleting_the_record(stopped, tmp_path):
    data_dir = copy(stopped, tmp_path / "data")
    flip_last_batch(data_dir)
    (data_dir / RECORD).unlink()
    assert read(data_dir) == b"one two "


def test_sound_log_passes(stopped, tmp_path):
    data_dir = copy(stopped, tmp_path / "data")
    assert check(data_dir).returncode == 0
    assert read(data_dir) == b"one two three "


def test_torn_tail_is_cut_after_a_crash(killed, tmp_path):
    data_dir = copy(killed, tmp_path / "data")
    flip_last_batch(data_dir)
    found = check(data_dir, "--json")
    assert found.returncode == 0
    assert found.found["notes"]
    assert read(data_dir) == b"one two "


@pytest.mark.parametrize(
    "damage", [pytest.param(delete_last_segment, marks=pytest.mark.slow), delete_log]
)
def test_deleted_log_is_reported_after_a_crash(killed, tmp_path, damage):
    data_dir = copy(killed, tmp_path / "data")
    damage(data_dir)
    assert "its last segment is missing" in refusal(data_dir)
    assert check(data_dir).returncode == 1


def test_end_of_the_lifespan_is_an_orderly_stop(stopped, tmp_path):
    data_dir = copy(stopped, tmp_path / "data")

    async def run():
        async with holdfast.asgi(data_dir=str(data_dir), wal_ballast_bytes=0):
            pass

    asyncio.run(run())
    delete_log(data_dir)
    assert "when the server stopped" in refusal(data_dir)


def test_backup_reports_it_too(stopped, tmp_path, capsys):
    data_dir = copy(stopped, tmp_path / "data")
    words = ["--data-dir", str(data_dir), str(tmp_path / "place")]
    assert main(["backup", *words]) == 0
    what = flip_last_batch(data_dir)
    assert main(["backup", *words]) == 1
    assert what in capsys.readouterr().err
    restored = tmp_path / "restored"
    assert main(["restore", "--data-dir", str(restored), words[-1]]) == 0
    assert not (restored / RECORD).exists()
    assert read(restored) == b"one two three "


def test_record_is_void_after_a_version_that_does_not_know_it(tmp_path):
    """It opens a segment with a higher number, and leaves the record as it is."""
    log = FileImplementation(tmp_path / "log")
    log.directory.mkdir()
    for recorded, position in ((True, 1), (False, 2)):
        opened = OpenLog(log.make(records_end=recorded))
        opened.commit(ReplayedBatch(position, b"batch"))
        opened.close()
    path = max(log.segments())
    flip(path, path.stat().st_size - 1)
    assert [each.position for each in log.make(records_end=True).replay(0)] == [1]
    path.unlink()
    assert [each.position for each in log.make(records_end=True).replay(0)] == [1]
    min(log.segments()).unlink()
    with pytest.raises(LogCorruptError, match="ended at position 1"):
        list(log.make(records_end=True).replay(0))


def test_empty_log_without_a_record_is_a_warning(tmp_path, caplog):
    """A backup of a server that has flushed everything looks like this, too."""
    log = FileImplementation(tmp_path)
    assert list(log.make(records_end=True).replay(0)) == []
    assert not caplog.records
    assert list(log.make(records_end=True).replay(7)) == []
    assert "after position 7 is lost" in caplog.text


def test_damaged_record_is_a_note(stopped, tmp_path):
    data_dir = copy(stopped, tmp_path / "data")
    flip(data_dir / RECORD, 5)
    found = check(data_dir, "--json")
    assert found.returncode == 0
    assert places(found.found["notes"]) == {RECORD}
    assert read(data_dir) == b"one two three "
