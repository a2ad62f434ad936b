"""Jobs killed half-way, several times, and run again: the same result as an undisturbed run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.client import SyncClient
from tests.server_process import ServerProcess
from tests.spark.filled import JSON, Filled
from tests.spark.reading_back import messages

pytestmark = pytest.mark.timeout(1200)
COMMAND = str(Path(sys.executable).with_name("holdfast"))
DEADLINE_S = 300
# As parts of the time that an undisturbed run takes, most of which Spark needs to start.
MOMENTS = (0.4, 0.55, 0.7, 0.85)
STREAMS, ROUNDS = 12, 40
QUICK = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass
class Place:
    """Servers with the same data in every place, and a directory."""

    directory: Path
    url: str
    target_url: str

    @property
    def table(self) -> str:
        return str(self.directory / "table")


def fill(url: str) -> None:
    """A bucket in several packs, and something that is in none."""
    bucket = Filled(url, "events")
    for turn in range(ROUNDS):
        for number in range(STREAMS):
            message = {"turn": turn, f"f{turn % 5}": number, "text": "x" * 50}
            bucket.append(f"s{number:02d}", message, content_type=JSON)
        if turn % 8 == 7 and turn + 1 < ROUNDS:
            bucket.flush()
    bucket.append("s00", {"last": True}, content_type=JSON)


@pytest.fixture
def make_place(tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    with ExitStack() as stack:

        def make(name: str) -> Place:
            directory = tmp_path / name
            directory.mkdir()
            settings = {"flush_age": 3600, "merge_packs": 1000}
            source, target = (
                stack.enter_context(ServerProcess(directory / each, **settings))
                for each in ("source", "target")
            )
            fill(source.url)
            return Place(directory, source.url, target.url)

        yield make


@dataclass(frozen=True)
class Job:
    """A job: its flags, and what is there when it is done."""

    flags: Callable[[Place], list[str]]
    result: Callable[[Place], Any]
    prepare: Callable[[Place], None] = lambda _: None


def rows_in_parquet(place: Place) -> Any:
    import pyarrow.dataset as ds

    return _sorted(ds.dataset(place.table, partitioning="hive").to_table())


def rows_in_delta(place: Place) -> Any:
    from deltalake import DeltaTable

    return _sorted(DeltaTable(place.table).to_pyarrow_table())


def rows_in_iceberg(place: Place) -> Any:
    from pyiceberg.table import StaticTable

    newest = max(
        Path(place.table).glob("metadata/*.metadata.json"), key=lambda each: each.stat().st_mtime_ns
    )
    return _sorted(StaticTable.from_metadata(str(newest)).scan().to_arrow())


def _sorted(table: Any) -> Any:
    wanted = ["stream_id", "offset", "next_offset", "payload"]
    rows = [tuple(row.values()) for row in table.select(wanted).to_pylist()]
    assert len(rows) == STREAMS * ROUNDS + 1
    return sorted(rows)


def snapshots(place: Place) -> Any:
    with SyncClient(place.url) as client:
        found = {}
        for each in client.bucket("events").streams():
            stream = client.stream(f"events/{each.stream_id}")
            with stream.bootstrap() as answer:
                state = json.loads(answer.snapshot().payload)
                rest = [message.payload for message in answer.messages()]
                found[each.stream_id] = (answer.snapshot_offset, state, rest)
        return found


def streams(place: Place) -> Any:
    return messages(place.url, "events")


def copied(place: Place) -> Any:
    found = messages(place.target_url, "events")
    assert found == messages(place.url, "events")
    return found


def loaded(place: Place) -> Any:
    return messages(place.url, "loaded")


def findings(place: Place) -> Any:
    import pyarrow.dataset as ds

    return ds.dataset(place.directory / "report").to_table().to_pylist()


def write_table(place: Place) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"who": f"w{number % 9}", "at": number, "text": f"row {number}"} for number in range(5000)
    ]
    (place.directory / "input").mkdir()
    for part in range(4):
        pq.write_table(
            pa.Table.from_pylist(rows[part::4]), place.directory / f"input/{part}.parquet"
        )


def archive(kind: str) -> Callable[[Place], list[str]]:
    return lambda place: [
        "archive", "--bucket", "events", "--to", place.table, "--format", kind,
        "--max-bytes", "8k", "--url", place.url,
    ]  # fmt: skip


JOBS = {
    "archive-parquet": Job(archive("parquet"), rows_in_parquet),
    "archive-delta": Job(archive("delta"), rows_in_delta),
    "archive-iceberg": Job(archive("iceberg"), rows_in_iceberg),
    "snapshot": Job(
        lambda place: [
            "snapshot", "--bucket", "events", "--fold", "merge-patch", "--url", place.url,
        ],
        snapshots,
    ),
    "compact": Job(lambda place: ["compact", "--url", place.url], streams),
    "audit": Job(
        lambda place: ["audit", "--report", str(place.directory / "report"), "--url", place.url],
        findings,
    ),
    "load": Job(
        lambda place: [
            "load", "--bucket", "loaded", "--stream-id", "who", "--order-by", "at",
            "--source", str(place.directory / "input"), "--url", place.url,
        ],
        loaded,
        write_table,
    ),
    "replay": Job(
        lambda place: [
            "replay", "--bucket", "events", "--url", place.url, "--target-url", place.target_url,
        ],
        copied,
    ),
}  # fmt: skip


# The lock of a run that was killed ends after a minute.
WAITING = ["--wait", "180"]


def begin(flags: list[str], more: list[str]) -> subprocess.Popen[str]:
    name, *rest = [*flags, *more]
    return subprocess.Popen(
        [COMMAND, "pipeline", name, "--master", "local[2]", "--conf", QUICK, "--json", *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    printed = process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 0, printed[-3000:]
    summary: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return summary


def kill_after(process: subprocess.Popen[str], seconds: float) -> bool:
    """Kill it with all that it started; whether it was still at work."""
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True
    return False


@pytest.mark.parametrize("name", JOBS)
def test_jobs(name: str, make_place: Callable[[str], Place]) -> None:
    job = JOBS[name]
    quiet, disturbed = make_place("quiet"), make_place("disturbed")
    for place in (quiet, disturbed):
        job.prepare(place)
    started = time.monotonic()
    finish(begin(job.flags(quiet), []))
    whole_s = time.monotonic() - started
    chance = Random(name)
    kills = [
        # The first one holds the lock when it is killed; the others do not wait for it.
        kill_after(
            begin(job.flags(disturbed), ["--no-record"] if at else []),
            whole_s * (moment + chance.uniform(0, 0.15)),
        )
        for at, moment in enumerate(MOMENTS)
    ]
    assert kills[0], "the first run was over before it could be killed"
    finish(begin(job.flags(disturbed), WAITING))
    assert job.result(disturbed) == job.result(quiet)
    # Once more changes nothing.
    finish(begin(job.flags(disturbed), []))
    assert job.result(disturbed) == job.result(quiet)
