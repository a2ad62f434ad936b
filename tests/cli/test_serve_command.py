"""`holdfast serve` as a process: banner, signals, exit codes."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys

import pytest


@contextlib.contextmanager
def serving(*arguments):
    """Start a server, and make sure that it is gone afterwards."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    process = subprocess.Popen(
        [sys.executable, "-c", "from holdfast.cli.main import run; run()", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_banner(process):
    lines = []
    while "live=sse" not in "".join(lines):
        line = process.stdout.readline()
        assert line, f"the server ended early: {process.stderr.read()}"
        lines.append(line)
    return "".join(lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_gracefully(tmp_path, number):
    with serving("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")) as process:
        banner = read_banner(process)
        assert re.search(r"http://127\.0\.0\.1:[1-9]\d*\n", banner)
        assert str(tmp_path / "data") in banner
        process.send_signal(number)
        assert process.wait(timeout=10) == 0


def test_memory_mode_says_so():
    with serving("--listen", "127.0.0.1:0", "--durability", "memory") as process:
        assert "NOTHING SURVIVES A RESTART" in read_banner(process)
        process.terminate()
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    (line,) = [line for line in errors.splitlines() if "nothing survives" in line]
    assert "WARNING" in line.upper()


def test_an_open_server_says_so():
    with serving("--listen", "0.0.0.0:0", "--durability", "memory") as process:
        read_banner(process)
        process.terminate()
        _, errors = process.communicate(timeout=10)
    assert "THIS SERVER IS OPEN" in errors


def test_a_port_in_use_is_one_clear_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with serving("--listen", listen, "--data-dir", str(tmp_path / "data")) as process:
            output, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert output == ""
    assert f"holdfast: {listen} is in use" in errors
    assert "Traceback" not in errors


def test_bad_settings_exit_2():
    with serving("--durability", "hope") as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors == 'holdfast: --durability: expected "fsync" or "memory", got \'hope\'\n'
