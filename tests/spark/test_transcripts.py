"""Transcripts: every response of the proxy in the table once, when it has ended, run after run."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import failpoints
from holdfast.errors import ConflictError, DataLossError, SettingsError
from holdfast.protocol.frames import COMPLETE, Outcome, encode_frame, encode_start
from holdfast.protocol.llm_events import ModelResponse
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import run_job
from holdfast.spark.jobs.report import Report
from holdfast.spark.jobs.report_figures import REST, response_figures
from holdfast.spark.jobs.report_tables import open_all
from holdfast.spark.jobs.transcripts import Transcripts
from holdfast.spark.transcribing.responses import TranscribedResponse
from holdfast.spark.transcribing.tables import to_batch
from tests.server_process import ServerProcess
from tests.spark import archiving
from tests.spark.archiving import FORMATS, SETTINGS, Here, Killed, killed_once
from tests.spark.transcribing import (
    SSE,
    daily,
    ended,
    fill,
    new_bucket,
    responses,
    run,
)
from tests.thorough import some_of, some_rows_of
from tests.upstreams import Upstream

SECRET = "a-secret-of-the-proxy-that-is-long-enough"
OWN = [name for name in failpoints.NAMES if name.startswith("transcripts.")]
OF_TABLES = {
    "parquet": ["archive.decided", "archive.moved"],
    "delta": ["archive.ready"],
    "iceberg": ["archive.ready"],
}
KILLS = [
    *(("parquet", point) for point in OWN),
    *((form, "transcripts.committed") for form in ("delta", "iceberg")),
    *((form, point) for form in FORMATS for point in OF_TABLES[form]),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("proxied"), **SETTINGS) as found:
        yield found


@pytest.fixture
def proxied(server):
    return new_bucket(server)


def check(proxied, form, to):
    """The tables are what they would be if there had been one run."""
    found = ended(form, to)
    assert found == proxied.ended
    counted = Counter[str]()
    for row in daily(to):
        counted.update({name: row[name] for name in ("complete", "aborted", "failed", "open")})
    assert +counted == Counter(outcome for outcome, _ in found.values())


@pytest.mark.parametrize("form", some_of(FORMATS, 1))
def test_a_response_is_added_when_it_has_ended(proxied, form, tmp_path):
    options = {"format": form, "compact_files": 2}
    fill(proxied, 0)
    first = run(proxied, tmp_path, **options)
    assert (first.responses, first.under_way, first.after) == (4, 1, "")
    assert first.outcomes == {"complete": 2, "aborted": 1, "failed": 1}
    assert first.until == proxied.cursor()
    check(proxied, form, tmp_path)
    again = run(proxied, tmp_path, **options)
    assert (again.responses, again.batches, again.under_way) == (0, 0, 1)
    assert (again.until, again.days) == (first.until, [])
    fill(proxied, 1)
    more = run(proxied, tmp_path, Here(twice=True), **options)
    assert (more.after, more.responses, more.under_way) == (first.until, 5, 1)
    assert more.merged_files >= 2
    check(proxied, form, tmp_path)
    rows = {(each["stream_id"], each["response_id"]): each for each in responses(form, tmp_path)}
    over = rows["stream-0", 2]
    assert (over["text"], over["model"], over["finish_reason"]) == (
        "turn 0 and 1",
        "gpt-4o",
        "stop",
    )
    assert (over["api"], over["prompt_tokens"], over["total_tokens"]) == ("openai", 5, 6)
    assert over["started_at"] < over["ended_at"]
    assert (over["status"], dict(over["headers"])) == (200, SSE)
    failed = rows["stream-2", 1]
    assert (failed["error_code"], failed["error_message"]) == ("UPSTREAM_TIMEOUT", "Nothing came.")


@pytest.mark.parametrize(("form", "point"), some_rows_of(KILLS, 1))
def test_killed_anywhere_and_run_again(proxied, form, point, tmp_path, monkeypatch):
    fill(proxied, 0)
    run(proxied, tmp_path, format=form)
    fill(proxied, 1)
    killed_once(monkeypatch, point)
    with pytest.raises(Killed):
        run(proxied, tmp_path, format=form)
    fill(proxied, 2)
    last = run(proxied, tmp_path, format=form)
    assert last.until == proxied.cursor()
    check(proxied, form, tmp_path)
    assert run(proxied, tmp_path, format=form).responses == 0


@pytest.mark.slow
def test_a_driver_that_is_killed_for_good(proxied, tmp_path):
    fill(proxied, 0)
    code = (
        "from tests.spark.transcribing import run; from tests.spark.filled import Filled;"
        f"run(Filled({proxied.url!r}, {proxied.bucket!r}), {str(tmp_path)!r})"
    )
    env = os.environ | {failpoints.VARIABLE: "transcripts.noted=kill"}
    killed = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert killed.returncode == -signal.SIGKILL
    fill(proxied, 1)
    run(proxied, tmp_path)
    check(proxied, "parquet", tmp_path)
    # What the killed one left is gone.
    assert len(list((tmp_path / "responses" / "_holdfast" / "open").iterdir())) == 1


def test_a_long_backlog_takes_several_commits(proxied, tmp_path):
    for number in range(1, 13):
        proxied.begin(f"s-{number % 3}", number, b"x" * 1000)
        if number > 3:
            proxied.end(f"s-{number % 3}", number - 3)
        if number == 6:
            proxied.flush()
    found = run(proxied, tmp_path, max_bytes="2k")
    assert found.batches >= 4
    assert (found.responses, found.under_way) == (9, 3)
    check(proxied, "parquet", tmp_path)


def test_frames_may_lie_across_messages(proxied, tmp_path):
    frames = encode_start(1, 200, SSE) + encode_frame(COMPLETE, 1)
    for at in range(0, len(frames), 40):
        proxied.append("s", frames[at : at + 40])
        found = run(proxied, tmp_path)
    assert found.responses == 1
    assert ended("parquet", tmp_path) == {("s", 1): ("complete", b"")}


def test_rows_of_deleted_streams_stay(proxied, tmp_path):
    proxied.begin("session", 1, b"first")
    proxied.end("session", 1)
    proxied.begin("session", 2, b"on and on")
    run(proxied, tmp_path)
    proxied.client.stream(f"{proxied.bucket}/session").delete()
    # What never ends is in the table as well.
    found = run(proxied, tmp_path)
    assert (found.outcomes, found.under_way) == ({"open": 1}, 0)
    open_ = responses("parquet", tmp_path)[1]
    assert (open_["outcome"], open_["status"], open_["ended_at"]) == ("open", 200, None)
    assert (open_["bytes"], open_["body"], open_["body_truncated"]) == (9, None, True)
    # A session that is connected to again has the same id, and counts from 1 again.
    stream = proxied.client.stream(f"{proxied.bucket}/session")
    stream.create("application/octet-stream")
    stream.append(encode_start(1, 201, SSE) + encode_frame(COMPLETE, 1))
    run(proxied, tmp_path)
    assert [(each["response_id"], each["status"]) for each in responses("parquet", tmp_path)] == [
        (1, 200),
        (1, 201),
        (2, 200),
    ]


def test_what_was_deleted_before_it_was_read_is_missed(proxied, tmp_path):
    for stream_id in ("kept", "gone"):
        proxied.begin(stream_id, 1, b"x")
    proxied.begin("other", 1)
    proxied.end("other", 1)
    run(proxied, tmp_path)
    for stream_id in ("kept", "gone"):
        proxied.end(stream_id, 1)
    proxied.client.stream(f"{proxied.bucket}/gone").delete()
    with pytest.raises(
        DataLossError, match=r"'gone'.*; set 'fail_on_data_loss' to false to skip them"
    ):
        run(proxied, tmp_path)
    run(proxied, tmp_path, fail_on_data_loss=False)
    found = ended("parquet", tmp_path)
    assert (found["kept", 1], found["gone", 1]) == (("complete", b"x"), ("open", None))


def test_streams_that_are_no_frames_are_named(proxied, tmp_path):
    proxied.append("notes", b"This is no frame.")
    fill(proxied, 0)
    found = run(proxied, tmp_path)
    assert (found.damaged, found.damage[0]["stream_id"]) == (1, "notes")
    assert "begins no frame" in found.damage[0]["why"]
    proxied.append("notes", b"S")
    fill(proxied, 1)
    assert run(proxied, tmp_path).damaged == 0
    check(proxied, "parquet", tmp_path)


def test_bodies_may_be_left_out_and_streams_chosen(proxied, tmp_path):
    fill(proxied, 0)
    run(proxied, tmp_path, body_bytes_max="0", stream_pattern="stream-.*")
    found = responses("parquet", tmp_path)
    assert {each["body"] for each in found} == {b""}
    assert all(each["body_truncated"] and each["text"] == "one two" for each in found)
    assert {each["stream_id"] for each in found} == {"stream-0", "stream-1", "stream-2"}
    with pytest.raises(SettingsError, match=r"^'stream_pattern': the table at .* was made with"):
        run(proxied, tmp_path)


def test_only_one_run_and_one_kind_of_table(proxied, tmp_path, monkeypatch):
    fill(proxied, 0)
    refused = []

    def hook(name):
        if name == "transcripts.staged":
            with pytest.raises(ConflictError, match=r"^Another run is archiving to "):
                run(proxied, tmp_path)
            refused.append(True)

    monkeypatch.setattr(failpoints, "hook", hook)
    run(proxied, tmp_path)
    assert refused == [True]
    monkeypatch.setattr(failpoints, "hook", None)
    with pytest.raises(SettingsError, match=r"the table at .* holds responses, not messages\."):
        archiving.run(proxied, tmp_path / "responses")


def test_the_summary_is_counted_again_if_it_is_lost(proxied, tmp_path):
    fill(proxied, 0)
    first = run(proxied, tmp_path)
    before = daily(tmp_path)
    assert [(each.model, each.responses) for each in first.days] == [(None, 1), ("gpt-4o", 3)]
    (tmp_path / "daily" / "daily.parquet").write_bytes(b"PAR1")
    assert run(proxied, tmp_path).days == first.days
    assert daily(tmp_path) == before


def test_through_the_proxy_with_spark_and_on_the_page(spark, tmp_path):
    settings = {"proxy_secret": SECRET, "proxy_allowlist": "http://127.0.0.1:*"}
    with Upstream() as upstream, ServerProcess(tmp_path / "data", **settings) as server:
        asked = Transcripts(
            to=str(tmp_path / "lake"), server=SparkConnection(server.url, token=SECRET)
        )
        ask(server, upstream.url("/v1/chat/completions", text="so many words"))
        ask(server, upstream.url("/v1/messages", text="as few"))
        upstream.next().wait_for_end()
        upstream.next().wait_for_end()
        ask(server, upstream.url("/v1/messages", text="not over yet", gate=1))
        held = upstream.next()
        held.release(4)
        found = until(lambda: run_job(spark, asked), lambda each: each.under_way == 1)
        held.release_all()
        held.wait_for_end()
        until(lambda: run_job(spark, asked), lambda each: each.under_way == 0)
    rows = {each["text"]: each for each in responses("parquet", tmp_path / "lake")}
    assert {
        text: (row["api"], row["model"], row["finish_reason"]) for text, row in rows.items()
    } == {
        "so many words": ("openai", "gpt-test", "stop"),
        "as few": ("anthropic", "claude-test", "end_turn"),
        "not over yet": ("anthropic", "claude-test", "end_turn"),
    }
    assert {(row["outcome"], row["status"], row["response_id"]) for row in rows.values()} == {
        ("complete", 200, 1)
    }
    assert found.daily == str(tmp_path / "lake" / "daily")
    assert dict(rows["as few"]["headers"])["request-id"] == "req_test"
    table = spark.read.parquet(str(tmp_path / "lake" / "responses"))
    assert table.selectExpr("sum(completion_tokens)").collect()[0][0] == 8
    page = tmp_path / "page.html"
    made = run_job(spark, Report(tables=[str(tmp_path / "lake")], to=str(page)))
    assert (made.responses, made.messages) == (3, 0)
    text = page.read_text()
    for said in ("Responses per day", "Tokens per day", "Duration of responses", "claude-test"):
        assert said in text, said


@pytest.mark.slow
def test_the_figures_of_responses_are_right(spark, tmp_path):
    start_ms = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
    plain = TranscribedResponse(
        "s", 1, start_ms, start_ms + 2000, Outcome.COMPLETE, 200, {}, 3, b"abc"
    )
    made = [
        plain,
        replace(plain, stream_id="t", outcome=Outcome.OPEN, ended_at_ms=None),
        *(
            replace(
                plain,
                response_id=at,
                started_at_ms=start_ms + at * 86_400_000,
                ended_at_ms=start_ms + at * 86_400_000 + at * 1000,
                answer=ModelResponse("openai", "", f"model-{at}", None, 10 * at, at, 11 * at),
            )
            for at in range(1, 10)
        ),
    ]
    pq.write_table(pa.Table.from_batches([to_batch(made)]), tmp_path / "a.parquet")
    found = response_figures(open_all(spark, [str(tmp_path)]).responses, top=8)
    assert (found.responses, found.streams, found.tokens, found.p50_s) == (11, 2, 495, 4.5)
    first_s = start_ms // 1000
    assert (found.first_s, found.last_s, found.step_s) == (first_s, first_s + 9 * 86_400, 86_400)
    assert found.outcomes["complete", first_s] == found.outcomes["open", first_s] == 1
    assert found.model_tokens["model-9", found.last_s] == 99
    assert found.model_tokens[REST, first_s + 86_400] == 11
    assert found.durations == {0: 1, 1: 3, 2: 4, 3: 2}
    assert [each.model for each in found.models] == [f"model-{at}" for at in range(9, 1, -1)]
    assert found.models_in_all == 10
    assert vars(found.models[0]) == {
        "model": "model-9",
        "responses": 1,
        "complete": 1,
        "prompt_tokens": 90,
        "completion_tokens": 9,
        "p50_s": 9.0,
        "p95_s": 9.0,
    }


def ask(server, url):
    """Have the proxy fetch something."""
    headers = {
        "Authorization": f"Bearer {SECRET}",
        "Upstream-URL": url,
        "Upstream-Method": "POST",
    }
    request = urllib.request.Request(f"{server.url}/v1/proxy", b"{}", headers, method="POST")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


def until(make, is_it, deadline_s=60):
    """Do something again and again, until it is as it should be."""
    deadline = datetime.now(UTC) + timedelta(seconds=deadline_s)
    while not is_it(made := make()):
        assert datetime.now(UTC) < deadline, made
    return made
