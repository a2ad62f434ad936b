"""`holdfast bench` against real servers: what it reports is what the server has seen."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme

from holdfast.cli.bench.result import Latencies
from tests.server_process import COMMAND, ServerProcess
from tests.thorough import some_of, some_rows_of

# A shell may have us ignore Ctrl-C, which processes inherit.
CODE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from holdfast.cli.main import run
run()
"""
PROGRAM = [sys.executable, "-c", CODE, "bench"]
DEADLINE_S = 60


def brief(duration=0.4, warmup=0.1):
    """The flags of a brief run with two processes, and with its result on stdout."""
    times = ("--duration", str(duration), "--warmup", str(warmup))
    return (*times, "--processes", "2", "--json", "-")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("bench") / "data") as started:
        yield started


@pytest.fixture
def own_server(tmp_path):
    with ServerProcess(tmp_path / "data") as started:
        yield started


@contextmanager
def started(server_url, *arguments, **environment):
    """A run in a process of its own; it and its load processes are gone afterwards."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**env, "HOLDFAST_URL": server_url, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def bench(server_url, *arguments, **environment):
    """Run to the end: exit code, stdout, stderr."""
    with started(server_url, *arguments, **environment) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in errors
    return process.returncode, output, errors


def measured(server_url, *arguments, code=0, duration=0.4, **environment):
    """The document of a brief run that ends with this code."""
    ended, output, errors = bench(server_url, *arguments, *brief(duration), **environment)
    assert (ended, errors) == (code, "")
    return json.loads(output)


def metric(server, name):
    text = httpx.get(f"{server.url}/metrics").text
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))


@contextmanager
def counting(server, *names):
    """How much these metrics grow meanwhile."""
    before = {name: metric(server, name) for name in names}
    grown = {}
    yield grown
    grown.update({name: metric(server, name) - before[name] for name in names})


def workers_of(process):
    """The load processes of a run."""
    assert process.poll() is None, process.stderr.read()
    pid = process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid):
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def check_sums(result):
    """What holds for every document."""
    latencies = Latencies()
    latencies.add(result["latency_histogram"])
    assert latencies.count == result["operations"]
    assert sum(second["operations"] for second in result["series"]) == result["operations"]
    assert sum(second["bytes"] for second in result["series"]) == result["bytes"]
    assert sum(second["errors"] for second in result["series"]) == sum(result["errors"].values())
    shown = result["latency_ms"]
    assert shown["min"] <= shown["p50"] <= shown["p90"] <= shown["p99"] <= shown["p99_9"]
    assert shown["p99_9"] <= shown["max"]


class TestAppend:
    @pytest.mark.parametrize(
        "flags",
        some_of(
            [
                (),
                ("--producer",),
                ("--content-type", "application/json", "--payload", "100"),
                ("--rate", "300"),
            ],
            1,
        ),
    )
    def test_the_server_has_seen_what_is_reported(self, server, flags):
        names = ["appends", "append_bytes", "streams_created", "streams_deleted"]
        names = [f"holdfast_{name}_total" for name in [*names, "duplicate_appends"]]
        with counting(server, *names) as grown:
            result = measured(server.url, "append", "--streams", "7", "--connections", "3", *flags)
        check_sums(result)
        appends = result["operations"] + result["warmup_operations"]
        assert result["operations"] > 0
        assert grown["holdfast_appends_total"] == appends
        # A JSON message is stored with a comma.
        stored_bytes = result["parameters"]["payload"] + ("application/json" in flags)
        assert grown["holdfast_append_bytes_total"] == appends * stored_bytes
        assert result["bytes"] == result["operations"] * result["parameters"]["payload"]
        assert grown["holdfast_duplicate_appends_total"] == 0
        assert grown["holdfast_streams_created_total"] == 7
        assert grown["holdfast_streams_deleted_total"] == 7
        assert metric(server, "holdfast_streams") == 0
        assert result["cleanup"] == {"streams_deleted": 7, "streams_left": 0}
        assert (result["errors"], result["interrupted"]) == ({}, False)

    @pytest.mark.slow
    def test_a_stalled_server_is_charged_with_all_that_was_due(self, own_server):
        """Coordinated omission: the stall delays what was scheduled, it takes none of it away."""
        arguments = ("append", "--streams", "2", "--connections", "2", "--rate", "200")
        with started(own_server.url, *arguments, *brief(4, warmup=0.2)) as process:
            wait_until(lambda: metric(own_server, "holdfast_appends_total") > 100)
            own_server.signal(signal.SIGSTOP)
            time.sleep(0.6)
            own_server.signal(signal.SIGCONT)
            output, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, errors) == (0, "")
        result = json.loads(output)
        due = result["operations"] + result["warmup_operations"] + result["unsent_operations"]
        assert due == 840
        latencies = Latencies()
        latencies.add(result["latency_histogram"])
        # Some 120 were due meanwhile; four connections would have shown the stall in four of them.
        assert latencies.at_ms(100 - 100 * 60 / latencies.count) > 50

    @pytest.mark.slow
    def test_the_table_and_the_files(self, server, tmp_path):
        document, picture = tmp_path / "result.json", tmp_path / "result.png"
        flags = ("--streams", "2", "--duration", "0.5", "--warmup", "0")
        files = ("--json", str(document), "--plot", str(picture))
        code, output, errors = bench(server.url, "append", *flags, *files)
        assert (code, errors) == (0, "")
        result = json.loads(document.read_text())
        assert f"{result['operations']:,} in" in output
        assert "\x1b" not in output
        assert picture.read_bytes().startswith(b"\x89PNG")

    @pytest.mark.slow
    def test_refusals_are_counted_by_kind(self, tmp_path):
        with ServerProcess(tmp_path / "data", body_bytes_max=1000) as server:
            arguments = ("append", "--streams", "2", "--payload", "2000", "--connections", "2")
            result = measured(server.url, *arguments, code=1)
        assert result["operations"] == 0
        assert list(result["errors"]) == ["http_413"]
        assert "payload_too_large" in result["error_examples"]["http_413"]
        assert result["latency_ms"]["p50"] is None


class TestFanout:
    @pytest.mark.parametrize(
        "content_type", some_of(["text/plain", "application/octet-stream", "application/json"], 1)
    )
    def test_every_reader_gets_everything(self, server, content_type):
        flags = ("--readers", "11", "--streams", "3", "--rate", "216", "--content-type")
        with counting(server, "holdfast_appends_total") as grown:
            result = measured(server.url, "fanout", *flags, content_type)
        check_sums(result)
        fanout = result["fanout"]
        assert grown["holdfast_appends_total"] == fanout["appends"]
        assert fanout["appends"] + result["unsent_operations"] == 108
        # Of 11 readers the first two streams have four each, the third one three.
        assert fanout["appends"] * 3 <= fanout["deliveries"] <= fanout["appends"] * 4
        if not result["unsent_operations"]:
            assert fanout["deliveries"] == 36 * 11
        assert fanout["deliveries"] == result["operations"] + result["warmup_operations"]
        assert (fanout["lost"], fanout["duplicated"], fanout["reordered"]) == (0, 0, 0)
        assert fanout["append_latency_ms"]["p50"] > 0
        assert metric(server, "holdfast_streams") == 0

    @pytest.mark.slow
    def test_readers_go_on_where_a_server_ends_their_answers(self, tmp_path):
        with ServerProcess(tmp_path / "data", sse_lifetime=0.5) as server:
            flags = ("--readers", "4", "--rate", "100")
            result = measured(server.url, "fanout", *flags, duration=1.5)
        assert result["fanout"]["reconnects"] > 0
        assert result["fanout"]["deliveries"] == result["fanout"]["appends"] * 4
        assert (result["errors"], result["fanout"]["duplicated"]) == ({}, 0)


class TestBootstrap:
    def test_everybody_gets_snapshot_and_messages(self, server):
        sizes = ("--snapshot-bytes", "5000", "--messages", "20", "--payload", "100")
        flags = ("bootstrap", "--clients", "9", "--streams", "2", *sizes)
        with counting(server, "holdfast_snapshots_published_total") as grown:
            result = measured(server.url, *flags)
        check_sums(result)
        assert grown["holdfast_snapshots_published_total"] == 2
        assert result["operations"] > 0
        assert result["bytes"] >= result["operations"] * (5000 + 20 * 100)
        assert (metric(server, "holdfast_streams"), metric(server, "holdfast_buckets")) == (0, 0)

    @pytest.mark.slow
    def test_once_is_once(self, server):
        result = measured(server.url, "bootstrap", "--once", "--clients", "9", "--messages", "3")
        assert (result["operations"], result["warmup_operations"]) == (9, 0)
        assert result["errors"] == {}

    @pytest.mark.slow
    def test_a_bucket_that_is_there_stays(self, server):
        httpx.put(f"{server.url}/mine").raise_for_status()
        flags = ("bootstrap", "--once", "--clients", "2", "--messages", "1", "--bucket", "mine")
        result = measured(server.url, *flags)
        assert (result["errors"], result["operations"]) == ({}, 2)
        assert httpx.get(f"{server.url}/mine").json()["streams"] == 0
        httpx.delete(f"{server.url}/mine").raise_for_status()

    def test_a_server_without_snapshots_is_told_in_a_sentence(self, server):
        # Below the flat surface nothing of the bucketed one is found.
        code, output, errors = bench(f"{server.url}/v1/stream/x", "bootstrap", "--clients", "2")
        assert (code, output) == (1, "")
        assert "has no buckets, snapshots and bootstrap" in errors
        assert errors.count("\n") == 1
        assert metric(server, "holdfast_streams") == 0


class TestEnds:
    @pytest.mark.parametrize(
        ("scenario", "flags"),
        some_rows_of(
            [
                ("append", ()),
                ("fanout", ()),
                ("bootstrap", ("--clients", "20", "--messages", "20")),
            ],
            1,
        ),
        ids=["append", "fanout", "bootstrap"],
    )
    def test_ctrl_c_reports_what_there_is_and_deletes_the_streams(
        self, own_server, scenario, flags
    ):
        arguments = (scenario, *flags, *brief(50, warmup=0))
        with started(own_server.url, *arguments) as process:
            route = {"fanout": "append"}.get(scenario, scenario)
            wait_until(lambda: process.poll() is not None or answered(own_server, route) > 10)
            workers = workers_of(process)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, errors) == (130, "")
        result = json.loads(output)
        assert result["interrupted"]
        assert result["operations"] > 0
        assert result["cleanup"]["streams_left"] == 0
        assert streams(own_server) == 0
        assert all(map(is_gone, workers))

    @pytest.mark.slow
    def test_ctrl_c_while_streams_are_made_deletes_those(self, own_server):
        with started(own_server.url, "append", "--streams", "20000", *brief()) as process:
            wait_until(lambda: streams(own_server) > 10)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, errors) == (130, "")
        assert json.loads(output)["operations"] == 0
        assert streams(own_server) == 0

    def test_no_load_process_outlives_a_killed_command(self, own_server):
        with started(own_server.url, "append", *brief(50)) as process:
            wait_until(lambda: len(workers_of(process)) == 2)
            workers = workers_of(process)
            process.kill()
            wait_until(lambda: all(map(is_gone, workers)))

    @pytest.mark.slow
    @pytest.mark.parametrize("scenario", ["append", "fanout"])
    def test_a_server_that_dies_is_an_error_and_not_the_end(self, own_server, scenario):
        with started(own_server.url, scenario, *brief(2)) as process:
            wait_until(lambda: metric(own_server, "holdfast_appends_total") > 5)
            threading.Timer(0.5, own_server.kill).start()
            output, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, errors) == (1, "")
        result = json.loads(output)
        assert result["errors"]["connection_refused"] > 0
        assert not result["interrupted"]
        assert result["cleanup"]["streams_left"] > 0
        assert sum(second["errors"] for second in result["series"]) > 0

    def test_an_unreachable_server_is_one_sentence(self, tmp_path):
        code, output, errors = bench("http://127.0.0.1:1", "append")
        assert (code, output) == (1, "")
        assert errors == (
            "holdfast: http://127.0.0.1:1 cannot be reached: nothing listens there.\n"
        )

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("append", "--payload", "1"), "--payload: expected an integer ≥ 3, got 1"),
            (("fanout", "--payload", "20"), "--payload: expected an integer ≥ 32, got 20"),
            (("append", "--duration", "nan"), "--duration: expected a number ≥ 0.1"),
            (("append", "--rate", "0"), "--rate: expected"),
            (("append", "--plot", "x.gif"), "--plot: expected a file that ends with"),
            (("append", "--json", "/nowhere/x.json"), "--json: there is no directory"),
            (("bootstrap", "--once", "--rate", "1"), "--once: it cannot be combined with --rate"),
            (("bootstrap", "--bucket", "A"), "--bucket: expected"),
            (("append", "--url", "ftp://x"), "--url: expected http://HOST:PORT"),
        ],
    )
    def test_wrong_input_is_one_line_and_exit_2(self, arguments, says):
        code, output, errors = bench("http://127.0.0.1:1", *arguments)
        assert (code, output) == (2, "")
        assert says in errors
        assert errors.count("\n") == 1


class TestAccess:
    @pytest.mark.slow
    def test_a_token_is_sent_with_everything(self, tmp_path):
        tokens = tmp_path / "tokens.toml"
        create = [COMMAND[0], "token", "create", "--name", "bench", "--scope", "admin:*"]
        made = subprocess.run(
            [*create, "--file", str(tokens)], capture_output=True, text=True, check=True
        )
        with ServerProcess(tmp_path / "data", access_tokens_file=tokens) as server:
            code, _, errors = bench(server.url, "append", *brief())
            assert code == 1
            assert "was answered with 401" in errors
            token = made.stdout.strip()
            for scenario in ("append", "fanout"):
                result = measured(server.url, scenario, HOLDFAST_TOKEN=token)
                assert (result["errors"], result["cleanup"]["streams_left"]) == ({}, 0)
                assert token not in json.dumps(result)
            flags = ("--clients", "3", "--messages", "2", "--token", token)
            assert measured(server.url, "bootstrap", *flags)["errors"] == {}

    @pytest.mark.slow
    def test_an_encoding_without_lines_to_draw(self, server):
        flags = ("--streams", "2", "--duration", "0.1", "--warmup", "0")
        code, output, errors = bench(server.url, "append", *flags, PYTHONIOENCODING="ascii")
        assert (code, errors) == (0, "")
        assert "appends/s" in output

    @pytest.mark.slow
    def test_https(self, tmp_path):
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        cert, key, trusted = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem"))
        certificate.cert_chain_pems[0].write_to_path(cert)
        certificate.private_key_pem.write_to_path(key)
        authority.cert_pem.write_to_path(trusted)
        with ServerProcess(tmp_path / "data", tls_cert=cert, tls_key=key) as server:
            code, _, errors = bench(server.url, "append", *brief())
            assert code == 1
            assert "its certificate is not accepted" in errors
            for scenario in ("append", "fanout"):
                result = measured(server.url, scenario, SSL_CERT_FILE=str(trusted))
                assert result["operations"] > 0
                assert result["errors"] == {}
            result = measured(server.url, "append", "--ca-file", str(trusted))
            assert result["errors"] == {}


def answered(server, route):
    return metric(server, f'holdfast_http_request_seconds_count{{route="{route}"}}')


def streams(server):
    return metric(server, "holdfast_streams")
