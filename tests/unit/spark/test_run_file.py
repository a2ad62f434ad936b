"""Files that name several jobs: what they say, and when their jobs run."""

from dataclasses import dataclass

import pytest

from holdfast.cli.pipeline.run import run_all
from holdfast.errors import SettingsError
from holdfast.settings.options import option
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import run_file
from holdfast.spark.jobs.audit import Audit
from holdfast.spark.jobs.options import server_option
from holdfast.spark.jobs.run_file import (
    JobEntry,
    RunFile,
    Schedule,
    Timing,
    load_run_file,
    parse_duration,
    parse_time_of_day,
)
from holdfast.testing import FakeClock

DEFAULT = SparkConnection("http://default:1")
HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class Copy:
    bucket: str = option("The bucket.")
    to: str = option("The place.", "out", path=True)
    tables: list[str] = option("Tables.", [], path=True)
    server: SparkConnection = server_option()
    target: SparkConnection = server_option("The other server.")


@dataclass(frozen=True, kw_only=True)
class Look:
    tables: list[str] = option("Tables.", [], path=True)


@pytest.fixture(autouse=True)
def jobs(monkeypatch):
    found = {"copy": Copy, "look": Look}

    def job_class(name):
        if name not in found:
            raise SettingsError(f"There is no job {name!r}; there are {', '.join(found)}.")
        return found[name]

    monkeypatch.setattr(run_file, "job_class", job_class)


@pytest.fixture
def load(tmp_path):
    def read(text, **env):
        path = tmp_path / "jobs.toml"
        path.write_text(text)
        return load_run_file(path, env, DEFAULT)

    return read


def test_a_file_with_everything(load, tmp_path):
    found = load(
        """
        [spark]
        master = "local[2]"
        conf = { "spark.a" = 1, "spark.b" = true }

        [server]
        url = "http://127.0.0.1:9"
        token_env = "TOKEN"
        ca_file = "ca.pem"

        [[job]]
        job = "look"
        tables = ["out/${DAY}", "s3://lake/x", "/absolute"]
        needs = ["first"]
        at = "03:30"

        [[job]]
        job = "copy"
        name = "first"
        every = "15m"
        bucket = "events-${DAY}-$${DAY}"
        to = "out"
        target = { url = "http://other:2", username = "me", password_env = "WORD", retries = 2 }
        """,
        TOKEN="t",
        WORD="w",
        DAY="monday",
    )
    assert (found.master, found.remote) == ("local[2]", "")
    assert found.conf == {"spark.a": "1", "spark.b": "true"}
    assert [each.name for each in found.entries] == ["first", "look"]
    first, look = found.entries
    assert first.job == Copy(
        bucket="events-monday-${DAY}",
        to=str(tmp_path / "out"),
        server=SparkConnection("http://127.0.0.1:9", token="t", ca_file=str(tmp_path / "ca.pem")),
        target=SparkConnection("http://other:2", username="me", password="w", retries=2),
    )
    assert first.timing == Timing(every_s=900)
    assert look.job == Look(tables=[str(tmp_path / "out/monday"), "s3://lake/x", "/absolute"])
    assert look.timing == Timing(at_s=12_600)
    assert found.has_schedule


def test_without_a_server_the_one_of_the_command_line_is_meant(load):
    found = load('[[job]]\njob = "copy"\nbucket = "a"')
    assert found.entries[0].job.server == DEFAULT
    assert found.entries[0].job.target == SparkConnection()
    assert not found.has_schedule


JOB = '[[job]]\njob = "copy"\nbucket = "a"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[job", "is not valid TOML: "),
        ("", "the file has no jobs; each is a table [[job]]."),
        ("[sparc]", "unknown table sparc; did you mean spark?"),
        (
            "[spark]\ncores = 2",
            "[spark]: unknown option 'cores'; expected one of conf, master, remote",
        ),
        ("[spark]\nmaster = 'a'\nremote = 'b'", "[spark]: give either 'master' or 'remote', not"),
        ("[server]\nurl = 1", "[server]: 'url': expected text, got 1"),
        ("[server]\ntokn = 'a'", "[server]: unknown option 'tokn'; did you mean token?"),
        ("[server]\ntoken_env = 'NONE'", "environment variable NONE is not set"),
        ("[[job]]\nbucket = 'a'", "[[job]]: 'job' is required: The name of a job."),
        ("[[job]]\njob = 'cpy'", "job 'cpy': There is no job 'cpy'; there are copy, look."),
        ("[[job]]\njob = 'copy'\nname = 'x'", "job 'x': 'bucket' is required: The bucket."),
        (f"{JOB}buckets = 1", "job 'copy': unknown option 'buckets'; did you mean bucket?"),
        (f"{JOB}to = '${{NONE}}'", "environment variable NONE is not set"),
        (f"{JOB}every = '15'", "job 'copy': 'every' is a duration such as 90s, 15m, 2h or 1d, not"),
        (f"{JOB}at = '25:00'", "job 'copy': 'at' is a time such as 03:00 (UTC), not '25:00'."),
        (f"{JOB}at = '03:00'\nevery = '1h'", "job 'copy': give either 'every' or 'at', not both."),
        (f"{JOB}needs = 'x'", "[[job]]: 'needs': expected a list, got 'x'"),
        (f"{JOB}needs = ['x']", "job 'copy' needs 'x', which does not exist."),
        (f"{JOB}{JOB}", "2 jobs are named 'copy'; give each its own 'name'."),
        (f"{JOB}needs = ['copy']", "the jobs copy need one another."),
        (f"{JOB}target = 'x'", "job 'copy': 'target': expected a table, got 'x'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(load, text, said, tmp_path):
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert said in caught.value.message
    assert caught.value.message.startswith(str(tmp_path / "jobs.toml"))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match=r"cannot read .*none\.toml: No such file"):
        load_run_file(tmp_path / "none.toml", {}, DEFAULT)


def test_durations_and_times():
    assert [parse_duration(each) for each in ("90s", "15m", "2h", "1d")] == [90, 900, 7200, 86_400]
    assert [parse_time_of_day(each) for each in ("00:00", "23:59")] == [0, 86_340]


class Recorder:
    """Says what ran when, and fails when told to."""

    def __init__(self, clock, lasting_s=0.0, failing=()):
        self.clock = clock
        self.lasting_s = lasting_s
        self.failing = failing
        self.started_ms = clock.now_ms()
        self.seen = []
        self.end_hours = float("inf")

    def do(self, entry):
        if self._hours() > self.end_hours:
            raise EnoughError
        self.seen.append((self._hours(), entry.name))
        self.clock.advance(self.lasting_s)
        return entry.name not in self.failing

    def skip(self, entry, failed):
        self.seen.append((self._hours(), f"{entry.name} without {', '.join(failed)}"))

    def rest(self, seconds):
        assert seconds > 0

    def _hours(self):
        return (self.clock.now_ms() - self.started_ms) / HOUR_MS


class EnoughError(Exception):
    pass


def run_for(clock, hours, entries, recorder):
    """Let a schedule run for so long."""
    end_ms = clock.now_ms() + hours * HOUR_MS
    recorder.end_hours = hours

    def wait(seconds):
        if clock.now_ms() + seconds * 1000 > end_ms:
            raise EnoughError
        clock.advance(seconds)

    with pytest.raises(EnoughError):
        run_all(RunFile(entries), recorder, clock, wait, once=False)
    return recorder.seen


def entry(name, needs=(), **timing):
    return JobEntry(name, None, Timing(**timing), needs)


def test_jobs_come_again_in_the_order_of_the_file():
    clock = FakeClock(start_ms=0)
    entries = [entry("a", every_s=3600), entry("b", every_s=7200), entry("c")]
    assert run_for(clock, 4, entries, Recorder(clock)) == [
        *((0, "a"), (0, "b"), (0, "c"), (1, "a"), (2, "a")),
        *((2, "b"), (3, "a"), (4, "a"), (4, "b")),
    ]


def test_a_job_at_a_time_of_day_runs_daily():
    clock = FakeClock(start_ms=5 * HOUR_MS)
    seen = run_for(clock, 72, [entry("a", at_s=3 * 3600)], Recorder(clock))
    assert seen == [(22, "a"), (46, "a"), (70, "a")]


def test_what_was_missed_is_done_once():
    clock = FakeClock(start_ms=0)
    recorder = Recorder(clock, lasting_s=2.5 * 3600)
    seen = run_for(clock, 6, [entry("a", every_s=3600)], recorder)
    assert seen == [(0, "a"), (2.5, "a"), (5, "a")]


def test_a_job_that_takes_too_long_does_not_keep_others_from_running():
    clock = FakeClock(start_ms=0)
    entries = [entry("a", every_s=60), entry("b", every_s=3600)]
    seen = run_for(clock, 4, entries, Recorder(clock, lasting_s=1800))
    assert [name for _, name in seen].count("b") >= 3


def test_a_failure_does_not_stop_the_schedule():
    clock = FakeClock(start_ms=0)
    entries = [entry("a", every_s=3600), entry("b", ("a",), every_s=3600)]
    seen = run_for(clock, 1, entries, Recorder(clock, failing=("a",)))
    assert seen == [(0, "a"), (0, "b without a"), (1, "a"), (1, "b without a")]


def test_once_runs_each_and_says_whether_all_went_well():
    clock = FakeClock()
    entries = [entry("a", every_s=60), entry("b", at_s=5), entry("c", ("b",))]
    for failing, well in (((), True), (("b",), False)):
        recorder = Recorder(clock, failing=failing)
        assert run_all(RunFile(entries), recorder, clock, pytest.fail, once=True) is well
        assert len(recorder.seen) == 3


def test_a_schedule_in_which_nothing_repeats_comes_to_an_end():
    clock = FakeClock()
    recorder = Recorder(clock)
    assert run_all(RunFile([entry("a")]), recorder, clock, pytest.fail, once=False)
    assert Schedule([], clock).wait_s() is None


def test_the_name_of_an_entry_is_that_of_its_pipeline(load, monkeypatch):
    monkeypatch.setattr(run_file, "job_class", lambda _: Audit)
    found = load("[[job]]\njob = 'audit'\nname = 'every night: all'\n[[job]]\njob = 'audit'")
    assert [(each.name, each.job.name) for each in found.entries] == [
        ("every night: all", "every-night--all"),
        ("audit", ""),
    ]
