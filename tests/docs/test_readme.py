"""The README's commands do what it says, and it stays short."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import ServerProcess
from tools.coverage_page import ROOT

LINES_MAX = 150
README = (ROOT / "README.md").read_text()
CURL = re.findall(r"^curl .+$", README, re.MULTILINE)
(SESSION,) = re.findall(r"^holdfast bucket create.+?(?=^```)", README, re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"```python\n(.+?)```", README, re.DOTALL)


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES_MAX


def test_every_page_it_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_curl_commands_work_in_their_order(tmp_path: Path) -> None:
    assert len(CURL) == 4
    with ServerProcess(tmp_path, sse_lifetime=0.5) as server:
        answers = [
            subprocess.run(
                command.replace("http://127.0.0.1:4437", server.url),
                shell=True,
                check=True,
                capture_output=True,
                timeout=30,
            ).stdout
            for command in CURL
        ]
    created, appended, read, tailed = answers
    assert b"HTTP/1.1 201" in created
    assert b"HTTP/1.1 204" in appended
    assert read.endswith(b"hello, world")
    assert b"data:hello, world\n" in tailed


def test_session_of_the_command_line_works(tmp_path: Path) -> None:
    binaries = Path(sys.executable).parent
    with ServerProcess(tmp_path) as server:
        env = os.environ | {"HOLDFAST_URL": server.url, "PATH": f"{binaries}:{os.environ['PATH']}"}
        output = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", SESSION],
            check=True,
            capture_output=True,
            text=True,
            env=env,
            timeout=60,
        ).stdout
    lines = output.splitlines()
    assert lines[:3] == ["998", "999", "1000"]
    assert [json.loads(line)["stream_id"] for line in lines[3:]] == ["copy", "hello"]


@pytest.mark.parametrize("code", PYTHON)
def test_python_examples_run(code: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        code = code.replace("http://127.0.0.1:4437", server.url)
        run = [sys.executable, "-c", code]
        output = subprocess.run(run, check=True, cwd=tmp_path, timeout=60, capture_output=True)
    assert output.stdout == b"00000000000000000018 {'hello': 'world'}\n"


def test_config_command_of_the_readme_runs() -> None:
    command = Path(sys.executable).with_name("holdfast")
    output = subprocess.run([command, "config"], check=True, capture_output=True, text=True)
    assert 'listen = "127.0.0.1:4437"' in output.stdout
