"""The commands of docs/http.md run, in their order, and are answered as the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import ServerProcess
from tools.coverage_page import ROOT

PAGE = (ROOT / "docs/http.md").read_text()
BLOCKS = re.findall(r"```sh\n(.+?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


def test_every_command_says_what_it_is_answered_with() -> None:
    assert COMMANDS
    assert [line for line in COMMANDS if not re.fullmatch(r"curl -i .+  # \d{3}", line)] == []


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What every command prints."""
    data_dir = tmp_path_factory.mktemp("http page")
    with ServerProcess(data_dir, sse_lifetime=0.5) as server:
        return {command: _run(command, server) for command in COMMANDS}


def _run(command: str, server: ServerProcess) -> str:
    here = command.replace("http://127.0.0.1:4437", server.url)
    done = subprocess.run(here, shell=True, check=True, capture_output=True, timeout=30)
    return done.stdout.decode()


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_answered_as_the_page_says(command: str, answers: dict[str, str]) -> None:
    expected = command.rpartition("# ")[2]
    assert answers[command].startswith(f"HTTP/1.1 {expected} "), answers[command]


def test_examples_of_answers_have_the_fields_of_the_answers(answers: dict[str, str]) -> None:
    shown = [
        set(re.findall(r'"(\w+)":', block))
        for block in re.findall(r"```json\n(.+?)```", PAGE, re.DOTALL)
    ]
    listing, changes, plan, by_packs = shown
    parts = ("streams?", "changes?after=-1'", "scan'", "scan?by=packs'")
    found = {part: _fields(answers, part) for part in parts}
    assert found["streams?"] == listing
    assert found["changes?after=-1'"] == changes
    # Nothing is in packs yet.
    assert found["scan'"] <= plan
    assert by_packs <= found["scan?by=packs'"]


def _fields(answers: dict[str, str], part: str) -> set[str]:
    (body,) = (
        printed.rpartition("\r\n\r\n")[2] for command, printed in answers.items() if part in command
    )
    return set(re.findall(r'"(\w+)":', body))


def test_every_page_and_section_it_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE) if "://" not in link]
    assert links
    for link in links:
        page, _, section = link.partition("#")
        path = ROOT / "docs" / (page or "http.md")
        assert path.exists(), link
        assert not section or section in _anchors(path), link


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_application_that_mounts_the_server_can_be_made(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=60)
