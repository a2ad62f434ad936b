"""`holdfast top` against real servers: in a terminal, in a pipe, and when they go away."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.cli.holdfast_command import HOLDFAST
from tests.cli.terminal import Terminal
from tests.server_process import ServerProcess
from tests.tcp_proxy import TcpProxy

SCRIPT = str(Path(__file__).with_name("top_script.py"))
TEXT = {"Content-Type": "text/plain"}
CTRL_C, CTRL_Z = b"\x03", b"\x1a"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("data") / "data") as running, load(running):
        yield running


@contextlib.contextmanager
def load(server):
    """Appends, errors and a live reader, for as long as this lasts."""
    over = threading.Event()
    stream = f"{server.streams_url}/demo/busy"
    httpx.put(stream, headers=TEXT).raise_for_status()

    def append():
        with httpx.Client() as client:
            while not over.is_set():
                client.post(stream, headers=TEXT, content=b"x" * 100)
                client.post(stream, headers={"Content-Type": "text/html"}, content=b"x")

    def read():
        with httpx.Client() as client:
            while not over.is_set():
                client.get(stream, params={"offset": "now", "live": "long-poll"})

    threads = [threading.Thread(target=work) for work in (append, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def command(url, **options):
    return [sys.executable, SCRIPT, url, json.dumps(options)]


def piped(url, **options):
    return subprocess.run(
        command(url, **options), capture_output=True, check=False, timeout=60, text=True
    )


def watching(url, columns=80, lines=24, **options):
    return Terminal(command(url, **options), columns, lines)


def assert_tidy(terminal):
    """The terminal is as it was before."""
    assert terminal.settings == terminal.settings_before
    assert b"\x1b[?1049h" in terminal.output
    assert not terminal.in_other_screen
    assert not terminal.is_cursor_hidden
    assert b"Traceback" not in terminal.output


def line_of(terminal, name):
    """A figure on the screen."""
    (found,) = [line for line in terminal.text.splitlines() if f"│ {name} " in line][:1]
    return found.split("│")[1].removeprefix(f" {name}").split()[0]


class TestInATerminal:
    def test_it_shows_figures_and_q_ends_it(self, server):
        with watching(server.url) as terminal:
            terminal.wait_for(lambda: "demo/busy" in terminal.text and has_rates(terminal))
            assert "fsync" in terminal.text
            assert server.url in terminal.text
            assert not terminal.is_cooked
            assert terminal.in_other_screen
            terminal.type(b"q")
            assert terminal.end() == 0
            assert_tidy(terminal)

    def test_ctrl_c_is_a_usual_end(self, server):
        with watching(server.url) as terminal:
            terminal.wait_for("appends")
            terminal.type(CTRL_C)
            assert terminal.end() == 0
            assert_tidy(terminal)

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_signals_leave_the_terminal_tidy(self, server, number):
        with watching(server.url) as terminal:
            terminal.wait_for("appends")
            terminal.process.send_signal(number)
            assert terminal.end() == 128 + number
            assert_tidy(terminal)

    @pytest.mark.slow
    def test_a_defect_leaves_the_terminal_tidy(self, server):
        with watching(server.url, breaks_after=3) as terminal:
            assert terminal.end() == 1
            assert b"\x1b[?1049h" in terminal.output
            assert terminal.settings == terminal.settings_before
            assert not terminal.in_other_screen
            assert not terminal.is_cursor_hidden
            assert "the clock broke" in terminal.text

    @pytest.mark.slow
    def test_it_can_be_suspended(self, server):
        with Terminal(["bash", "--norc", "--noprofile", "-i"], PS1="ready> ") as terminal:
            terminal.wait_for("ready>")
            typed = " ".join(f"'{word}'" for word in command(server.url))
            terminal.type(f"{typed}\n".encode())
            terminal.wait_for("q quit")
            terminal.type(CTRL_Z)
            terminal.wait_for("Stopped")
            assert not terminal.in_other_screen
            assert not terminal.is_cursor_hidden
            terminal.type(b"fg\n")
            terminal.wait_for(lambda: terminal.in_other_screen and has_rates(terminal))
            terminal.type(b"q")
            terminal.wait_for(lambda: not terminal.in_other_screen)
            terminal.type(b"echo code $?\n")
            terminal.wait_for("code 0")

    @pytest.mark.slow
    def test_p_pauses(self, server):
        with watching(server.url) as terminal:
            terminal.wait_for(lambda: has_rates(terminal))
            terminal.type(b"p")
            terminal.wait_for("paused at")
            terminal.type(b"p")
            terminal.wait_for(lambda: "paused at" not in terminal.text)
            terminal.type(b"q")
            assert terminal.end() == 0

    @pytest.mark.slow
    def test_it_follows_the_size_of_the_window(self, server):
        with watching(server.url, interval_s=3600) as terminal:
            terminal.wait_for("╭─ storage")
            terminal.resize(40, 24)
            terminal.wait_for("storage ─────")
            assert all(len(line) <= 40 for line in terminal.text.splitlines())
            terminal.resize(100, 30)
            terminal.wait_for("╭─ storage")
            terminal.type(b"q")
            assert terminal.end() == 0

    def test_count_ends_it(self, server):
        with watching(server.url, count=2) as terminal:
            assert terminal.end() == 0
            assert_tidy(terminal)

    @pytest.mark.slow
    def test_a_dumb_terminal_gets_a_snapshot(self, server):
        with Terminal(command(server.url), TERM="dumb") as terminal:
            assert terminal.end() == 0
            assert b"\x1b" not in terminal.output
            assert b"back-pressure" in terminal.output


def has_rates(terminal):
    return (
        line_of(terminal, "appends") not in {"-", "0/s"} if "│ appends" in terminal.text else False
    )


class TestServersThatGoAway:
    def test_a_restart_is_seen_and_survived(self, tmp_path):
        with ServerProcess(tmp_path / "data") as server:
            with watching(server.url) as terminal:
                terminal.wait_for("connections")
                server.stop()
                terminal.wait_for("unreachable since")
                assert "retrying" in terminal.text
                assert "appends" in terminal.text
                start_again(server)
                with load(server):
                    terminal.wait_for(lambda: b"the server was restarted" in terminal.output)
                    terminal.wait_for(lambda: has_rates(terminal))
                    assert "unreachable" not in terminal.text
                    assert "/s" in terminal.text
                    terminal.type(b"q")
                    assert terminal.end() == 0
                    assert_tidy(terminal)

    @pytest.mark.slow
    def test_silence_gets_a_banner_and_keys_work_meanwhile(self, server):
        with contextlib.closing(TcpProxy(server.port)) as proxy:
            with watching(f"http://127.0.0.1:{proxy.port}") as terminal:
                terminal.wait_for(lambda: has_rates(terminal))
                with proxy.silence():
                    terminal.wait_for("no response yet")
                    terminal.type(b"p")
                    terminal.wait_for("paused at")
                    terminal.type(b"p")
                terminal.wait_for(lambda: "unreachable" not in terminal.text)
                with proxy.silence():
                    terminal.wait_for("no response yet")
                    terminal.type(b"q")
                    assert terminal.end() == 0
                    assert_tidy(terminal)

    @pytest.mark.slow
    def test_json_says_so_and_goes_on(self, tmp_path):
        with ServerProcess(tmp_path / "data") as server:
            with subprocess.Popen(
                command(server.url, as_json=True), stdout=subprocess.PIPE, text=True
            ) as process:
                assert json.loads(process.stdout.readline())["reachable"]
                server.stop()
                away = next(each for each in documents(process) if not each["reachable"])
                assert away["error"]
                assert away["unreachable_since_ms"] <= away["at_ms"]
                assert away["appends"]["per_s"] is None
                start_again(server)
                back = next(each for each in documents(process) if each["reachable"])
                assert back["restarted"]
                assert back["appends"]["per_s"] is None
                after = next(documents(process))
                assert not after["restarted"]
                assert after["appends"]["per_s"] == 0
                process.send_signal(signal.SIGINT)
                assert process.wait(30) == 0

    def test_one_that_is_not_there_at_the_beginning_is_an_error(self):
        run = piped("http://127.0.0.1:1", once=True)
        assert run.returncode == 1
        assert run.stdout == ""
        assert "127.0.0.1:1 cannot be connected to" in run.stderr
        assert len(run.stderr.splitlines()) == 1


def start_again(server):
    """Start a server that was stopped on the port that it had."""
    port_of_choice = server._arguments.index("127.0.0.1:0")
    server._arguments[port_of_choice] = f"127.0.0.1:{server.port}"
    server.start()


def documents(process):
    for line in process.stdout:
        yield json.loads(line)


class TestInAPipe:
    def test_once_is_plain_text(self, server):
        run = piped(server.url, once=True, interval_s=0.5)
        assert run.returncode == 0
        assert run.stderr == ""
        assert "\x1b" not in run.stdout
        figures = dict(
            line.split(None, 1) for line in run.stdout.splitlines() if line.startswith("appends")
        )
        assert float(figures["appends"].removesuffix("/s").replace(",", "")) > 0
        assert "demo/busy" in run.stdout

    @pytest.mark.slow
    def test_without_a_flag_it_is_the_same_with_a_notice(self, server):
        run = piped(server.url)
        assert run.returncode == 0
        assert run.stderr == (
            "holdfast: stdout is not a terminal: printing one snapshot, as with --once\n"
        )
        assert run.stdout.count("back-pressure") == 1
        assert "\x1b" not in run.stdout

    @pytest.mark.slow
    def test_colours_that_are_forced_change_nothing(self, server, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert "\x1b" not in piped(server.url, once=True).stdout

    def test_json_is_one_document_a_line(self, server):
        run = piped(server.url, as_json=True, count=3)
        assert run.returncode == 0
        assert run.stderr == ""
        lines = [json.loads(line) for line in run.stdout.splitlines()]
        assert len(lines) == 3
        assert all(each["reachable"] for each in lines)
        last = lines[-1]
        assert last["appends"]["per_s"] > 0
        assert last["commits"]["p50_s"] <= last["commits"]["p99_s"]
        assert last["requests"]["refused_per_s"] > 0
        assert last["requests"]["failed_per_s"] == 0
        assert last["server"]["durability"] == "fsync"
        assert last["hottest"][0]["stream"] == "demo/busy"
        assert last["missing"] == []

    def test_json_once_is_exactly_one(self, server):
        run = piped(server.url, as_json=True, once=True)
        (line,) = run.stdout.splitlines()
        assert json.loads(line)["appends"]["per_s"] > 0

    def test_a_reader_that_leaves_ends_it_quietly(self, server):
        with subprocess.Popen(
            [HOLDFAST, "top", "--json", "--interval", "0.1", "--url", server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(30) == 141
            assert process.stderr.read() == ""

    @pytest.mark.slow
    def test_memory_only_mode(self, tmp_path):
        with ServerProcess(tmp_path / "data", durability="memory") as server, load(server):
            run = piped(server.url, as_json=True, once=True)
        document = json.loads(run.stdout)
        assert document["server"]["durability"] == "memory"
        assert document["hot"]["bytes"] > 0
        assert document["cold"]["bytes"] is None
        assert document["flush"]["backlog_bytes"] is None

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"interval_s": 0}, "--interval must be from 0.1 to 3600 seconds"),
            ({"interval_s": 1e9}, "--interval must be from 0.1 to 3600 seconds"),
            ({"count": 0}, "--count must be at least 1"),
            ({"once": True, "count": 2}, "--once and --count cannot be given together"),
        ],
    )
    def test_options_that_make_no_sense(self, server, options, message):
        run = piped(server.url, **options)
        assert run.returncode == 2
        assert run.stderr == f"holdfast: {message}\n"


class TestOtherServers:
    def test_one_with_metrics_alone_is_asked_once_for_the_rest(self):
        with other_server({"/metrics": b"holdfast_appends_total 5\n"}) as (url, asked):
            run = piped(url, as_json=True, count=3)
        assert [json.loads(line)["missing"] for line in run.stdout.splitlines()] == [
            ["/cluster/status", "/cluster/hot-cold-stats"]
        ] * 3
        assert asked.count("/metrics") == 4
        assert asked.count("/cluster/hot-cold-stats") == 1
        assert asked.count("/cluster/status") == 1

    @pytest.mark.slow
    def test_one_that_answers_everything_with_a_page(self):
        page = b"<html>welcome</html>"
        pages = {
            "/metrics": b"holdfast_appends_total 5\n",
            "/cluster/status": page,
            "/cluster/hot-cold-stats": page,
        }
        with other_server(pages) as (url, _):
            run = piped(url, once=True)
        assert run.returncode == 0
        assert "! not available here: /cluster/status, /cluster/hot-cold-stats" in run.stdout

    def test_one_without_metrics_is_one_sentence(self):
        with other_server({}) as (url, _):
            for options in ({}, {"once": True}, {"as_json": True}):
                run = piped(url, **options)
                assert run.returncode == 1
                assert run.stdout == ""
                assert run.stderr.splitlines()[-1] == (f"holdfast: {url} has no /metrics to show.")

    @pytest.mark.slow
    def test_one_whose_metrics_are_something_else(self):
        with other_server({"/metrics": b"<html>welcome</html>"}) as (url, _):
            run = piped(url, once=True)
        assert run.returncode == 1
        assert "not in Prometheus' text format" in run.stderr
        assert "Traceback" not in run.stderr


@contextlib.contextmanager
def other_server(pages):
    """A server with these pages and nothing else; what it was asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            body = pages.get(self.path, b"nothing here")
            self.send_response(200 if self.path in pages else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
