"""`holdfast pipeline`: help, wrong usage, real runs, and how they end."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.cli.pipeline.execute import as_text
from holdfast.errors import SettingsError
from holdfast.spark.jobs import JOBS
from holdfast.spark.jobs.report import Reported
from holdfast.spark.session import check_java
from tests.cli.holdfast_command import BIN, DEADLINE_S, Command
from tests.thorough import some_of

SHOW = """
import sys
from holdfast.cli.main import main
status = main(sys.argv[1:])
print(status, *sys.modules, file=sys.stderr)
"""


@pytest.fixture
def alone(tmp_path):
    """The command without a server."""
    return Command(tmp_path / "home")


@pytest.fixture
def lake(alone):
    """A small table in the home directory."""
    columns = {
        "bucket": ["events"],
        "stream_id": ["a"],
        "offset": ["0" * 20],
        "next_offset": [f"{5:020d}"],
        "timestamp": pa.array([datetime(2026, 3, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
    }
    place = alone.home / "lake" / "date=2026-03-01"
    place.mkdir(parents=True)
    pq.write_table(pa.table(columns), place / "part-0.parquet")
    return alone.home / "lake"


@pytest.fixture
def java():
    try:
        check_java()
    except SettingsError as error:
        said = f"no job was run from the command line. {error.message}"
        if os.environ.get("CI") == "true":
            pytest.fail(said, pytrace=False)
        pytest.skip(said)


@pytest.mark.parametrize("name", some_of(["", "run", *sorted(JOBS)], 3))
def test_help_does_not_load_spark(alone, name):
    arguments = ["pipeline", *([name] if name else []), "--help"]
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *arguments],
        env=alone.env,
        capture_output=True,
        text=True,
        check=True,
    )
    status, *modules = done.stderr.splitlines()[-1].split()
    assert status == "0"
    assert {"pyspark", "pyarrow", "numpy", "pandas"} & set(modules) == set()
    expected = ["--master", "--remote", "--conf", "--json"] if name else [*sorted(JOBS), "run"]
    assert [each for each in expected if each not in done.stdout] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report"], "--table requires an argument"),
        (["report", "--table", "x", "--tabel", "y"], "--tabel"),
        (["report", "--table", "x", "--top", "many"], '--top: unable to convert "many" into int'),
        (["report", "--table", "x", "--top", "0"], "'top' is a number from 1 to 1000, not 0."),
        (["report", "--table", "x", "--conf", "a"], "--conf takes KEY=VALUE, not 'a'."),
        (
            ["report", "--table", "x", "--master", "a", "--remote", "sc://b"],
            "Give either --master or --remote, not both.",
        ),
        (["report", "--table", "x", "--remote", "b"], "--remote is an address such as sc://"),
        (["run", "none.toml"], "cannot read none.toml: No such file or directory"),
        (["archve"], "archve"),
    ],
)
def test_wrong_usage_is_one_sentence_before_spark_starts(alone, arguments, said):
    for flags in ([], ["--json"]):
        done = alone.run("pipeline", *arguments, *flags)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert said in (json.loads(line)["error"]["message"] if flags else line)


def test_missing_java_is_one_sentence(alone, lake):
    without = alone.with_env(PATH=str(alone.home), JAVA_HOME="")
    done = subprocess.run(
        [BIN / "holdfast", "pipeline", "report", "--table", lake],
        env=without.env,
        cwd=alone.home,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "holdfast: Spark needs Java, and none is installed: install Java 17 or later (Debian and "
        "Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME.\n"
    )


@pytest.mark.slow
def test_a_spark_that_cannot_be_reached_is_one_sentence_and_a_traceback_if_asked_for(alone, lake):
    arguments = ["pipeline", "report", "--table", "lake", "--remote", "sc://127.0.0.1:1"]
    done = alone.run(*arguments)
    assert done.returncode == 6
    sentence = (
        "holdfast: Spark Connect at sc://127.0.0.1:1 cannot be reached: Connection refused.\n"
    )
    assert done.stderr == sentence
    asked = run_with_traceback(alone, *arguments)
    assert asked.returncode == 6
    assert asked.stderr.startswith("Traceback (most recent call last)")
    assert asked.stderr.endswith(f"\n{sentence}")


def run_with_traceback(command: Command, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As `Command.run`, which takes no traceback."""
    return subprocess.run(
        [BIN / "holdfast", *arguments, "--traceback"],
        env=command.env,
        cwd=command.home,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


FILE = """
[spark]
master = "local[1]"
conf = { "spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" }

[[job]]
job = "report"
name = "bad"
tables = ["nowhere"]

[[job]]
job = "report"
name = "after-bad"
tables = ["lake"]
needs = ["bad"]

[[job]]
job = "report"
name = "unreadable"
tables = ["noise"]

[[job]]
job = "report"
name = "good"
tables = ["lake"]
to = "out/page.html"
"""


@pytest.mark.slow
def test_the_jobs_of_a_file_run_once_and_a_failure_stops_only_what_needs_it(alone, lake, java):
    (alone.home / "jobs.toml").write_text(FILE)
    noise = alone.home / "noise" / "date=2026-03-01"
    noise.mkdir(parents=True)
    (noise / "part-0.parquet").write_bytes(b"no parquet at all")
    done = run_with_traceback(alone, "pipeline", "run", str(alone.home / "jobs.toml"), "--json")
    assert done.returncode == 1, done.stderr
    bad, after, unreadable, good = (json.loads(line) for line in done.stdout.splitlines())
    assert (bad["name"], bad["job"], bad["ok"]) == ("bad", "report", False)
    said = f"There is no table at {alone.home}/nowhere."
    assert bad["error"] == {"code": "invalid_settings", "message": said}
    assert after["error"]["message"] == "skipped, since bad failed."
    assert (good["name"], good["ok"], good["messages"], good["bytes"]) == ("good", True, 1, 5)
    # What Spark says about the file is one sentence, and all there is of it if asked for.
    found = unreadable["error"]["message"]
    assert "part-0.parquet" in found
    assert len(found) < 700
    assert len(found.splitlines()) == 1
    assert done.stderr.count("Traceback (most recent call last)") >= 2
    told = [line for line in done.stderr.splitlines() if line.startswith('{"error"')]
    assert [json.loads(line)["error"]["message"] for line in told] == [
        f"bad: {said}",
        "after-bad: skipped, since bad failed.",
        f"unreadable: {found}",
    ]
    assert "<h1>Streams</h1>" in (alone.home / "out/page.html").read_text()


def processes_of(session):
    """The processes of a session, by what /proc says."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(text)
    return found


SCHEDULED = """
[[job]]
job = "report"
tables = ["{table}"]
every = "1h"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "table"),
    [(signal.SIGINT, 130, "lake"), (signal.SIGTERM, 143, "nowhere")],
    ids=["ctrl-c", "term after a failure"],
)
def test_a_schedule_goes_on_until_it_is_ended_and_leaves_no_jvm(
    alone, lake, java, number, status, table
):
    (alone.home / "jobs.toml").write_text(
        FILE[: FILE.index("[[job]]")] + SCHEDULED.format(table=table)
    )
    process = alone.start("pipeline", "run", "jobs.toml", "--json", start_new_session=True)
    assert process.stdout is not None
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line.decode())
        if "next job in" in said[-1]:
            break
    *failures, resting = said
    assert "next job in" in resting, said
    assert len(failures) == (table == "nowhere")
    assert json.loads(process.stdout.readline())["ok"] is (table == "lake")
    process.send_signal(number)
    assert process.communicate(timeout=DEADLINE_S) == (b"", b"")
    assert process.returncode == status
    assert processes_of(process.pid) == []


def test_a_summary_in_words():
    result = Reported("page.html", 1234, 5 << 20, 7, 2, job="report", seconds=1.25)
    assert as_text("weekly", result).splitlines() == [
        "weekly: done in 1.2 s",
        "  page: page.html",
        "  messages: 1,234",
        "  bytes: 5.00 MiB",
        "  streams: 7",
        "  buckets: 2",
        "  responses: 0",
    ]
    assert list(result.document()) == [
        *("job", "ok", "page", "messages", "bytes", "streams", "buckets", "responses"),
        *("name", "run", "started_at", "seconds", "store_requests", "warnings"),
    ]
