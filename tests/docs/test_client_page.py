"""The examples of docs/client.md run, in their order, and print what the page says."""

import ast
import asyncio
import contextlib
import io
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import trustme

import holdfast.client
from tests.server_process import ServerProcess
from tests.upstreams import Upstream
from tools.coverage_page import ROOT

PAGE = (ROOT / "docs/client.md").read_text()
BLOCKS = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
DEADLINE_S = 60.0


def test_every_name_that_is_given_out_is_on_it() -> None:
    words = set(re.findall(r"\w+", PAGE))
    assert [name for name in holdfast.client.__all__ if name not in words] == []


def test_every_error_that_it_names_exists() -> None:
    named = set(re.findall(r"`(\w+Error)`", PAGE)) - {"TypeError"}
    assert named
    assert [name for name in named if not hasattr(holdfast.errors, name)] == []


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each example prints; the ones behind an example that fails have nothing."""
    directory = tmp_path_factory.mktemp("client page")
    trustme.CA().cert_pem.write_to_path(directory / "ca.pem")
    (secret,) = set(re.findall(r'"(proxy-secret-[\w-]+)"', PAGE))
    settings = {"proxy_secret": secret, "proxy_allowlist": "http://127.0.0.1:*"}
    with (
        Upstream() as upstream,
        ServerProcess(directory / "data") as server,
        ServerProcess(directory / "chat", durability="memory", **settings) as chat,
        contextlib.chdir(directory),
    ):
        places = {
            "http://127.0.0.1:4437": server.url,
            "https://chat.example.com": chat.url,
            "https://api.openai.com": upstream.base_url,
        }
        blocks = BLOCKS
        for named, place in places.items():
            blocks = [block.replace(named, place) for block in blocks]
        return asyncio.run(asyncio.wait_for(_run_all(blocks), DEADLINE_S))


async def _run_all(blocks: list[str]) -> list[str]:
    outputs = []
    scope: dict[str, object] = {}
    for block in blocks:
        if "asyncio.run(" in block:
            command = [sys.executable, "-c", block]
            outputs.append(subprocess.run(command, check=True, capture_output=True).stdout.decode())
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            await _run(block, scope)
        outputs.append(output.getvalue())
    return outputs


async def _run(block: str, scope: dict[str, object]) -> None:
    """Run an example as the inside of an async function, with the names of those before it."""
    code = compile(block, "docs/client.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = types.FunctionType(code, scope)()
    if result is not None:
        await result


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example_prints_what_the_page_says(number: int, printed: list[str]) -> None:
    said = " ".join(re.findall(r"print\(.+\)  # (.+)$", BLOCKS[number], re.MULTILINE))
    if said:
        assert " ".join(printed[number].split()) == said


def test_every_page_and_section_it_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE) if "://" not in link]
    assert links
    for link in links:
        page, _, section = link.partition("#")
        path = ROOT / "docs" / (page or "client.md")
        assert path.exists(), link
        assert not section or section in _anchors(path), link


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
