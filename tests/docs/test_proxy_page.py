"""The commands and programs of docs/proxy.md do what it says, against an upstream on loopback."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.errors import OutboundRefusedError, error_classes
from holdfast.net.targets import Allowlist
from holdfast.settings import load_settings
from tests.server_process import ServerProcess
from tests.upstreams import Upstream
from tools.coverage_page import ROOT

PAGE = (ROOT / "docs/proxy.md").read_text()
SERVE, *COMMANDS = re.findall(r"```sh\n(.+?)```", PAGE, re.DOTALL)
(PROGRAM,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
(SCRIPT,) = re.findall(r"```js\n(.+?)```", PAGE, re.DOTALL)
(SETTINGS,) = re.findall(r"```toml\n(.+?)```", PAGE, re.DOTALL)
PATTERNS = [
    tuple(re.findall(r"`([^`]+)`", column) for column in row)
    for row in re.findall(r"^\| (`[^|]+`) \| (`[^|]*://[^|]+) \| (.+) \|$", PAGE, re.MULTILINE)
]
MODEL = "https://api.openai.com"
CHAT = "/v1/chat/completions"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the commands see: a server that was started as the page says, and an upstream."""
    told = subprocess.run(
        ["sh", "-eu", "-c", SERVE.replace("holdfast serve &", "env -0")],
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
    ).stdout.decode()
    exported = dict(line.split("=", 1) for line in told.split("\0") if line)
    data_dir = tmp_path_factory.mktemp("proxy page") / "data"
    with Upstream() as upstream:
        settings = {
            "proxy_secret": exported["HOLDFAST_PROXY_SECRET"],
            "proxy_allowlist": exported["HOLDFAST_PROXY_ALLOWLIST"].replace(
                MODEL, upstream.base_url
            ),
        }
        with ServerProcess(data_dir, **settings) as server:
            yield {
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOLDFAST_PROXY_SECRET": settings["proxy_secret"],
                "HOLDFAST_URL": server.url,
                "OPENAI_API_KEY": "a-key",
                "MODEL": upstream.base_url,
            }
            assert "weak" not in server.stderr()


def run(environment: dict[str, str], text: str, *command: str, cwd: Path | None = None) -> str:
    """Run a part of the page here, which must succeed."""
    text = text.replace("http://127.0.0.1:4437", environment["HOLDFAST_URL"])
    done = subprocess.run(
        [*command, text.replace(MODEL, environment["MODEL"])],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_work_in_their_order(environment: dict[str, str], tmp_path: Path) -> None:
    script = "".join(COMMANDS).replace("curl ", "curl --fail ")
    printed = run(environment, script, "sh", "-eu", "-c", cwd=tmp_path)
    # Two of the answers were printed while they came, one of them again.
    assert printed.count("[DONE]") == 3
    assert "HTTP/1.1 200 OK" in printed
    assert "Stream-Response-Id: 1" in printed
    assert "Stream-Closed: true" in printed
    assert (tmp_path / "frames.bin").read_bytes()[:5] == b"S\0\0\0\1"


def test_the_program_follows_a_response(environment: dict[str, str]) -> None:
    lines = run(environment, PROGRAM, sys.executable, "-c").splitlines()
    assert lines[-2:] == ["[DONE]", "complete"]
    said = [json.loads(line)["choices"] for line in lines[:-2]]
    words = [each[0]["delta"].get("content", "") for each in said if each]
    assert "Hello" in "".join(words)


def test_the_script_puts_responses_together(environment: dict[str, str]) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("NO NODE HERE: the script of docs/proxy.md is not run")
    server, secret = environment["HOLDFAST_URL"], environment["HOLDFAST_PROXY_SECRET"]
    service = {"Authorization": f"Bearer {secret}"}
    asked = {"Upstream-Method": "GET", "Upstream-URL": environment["MODEL"] + "/fixed?body=first"}
    created = httpx.post(f"{server}/v1/proxy", headers=service | asked)
    url = created.headers["Location"]
    again = {"Use-Stream-URL": url, "Upstream-URL": environment["MODEL"] + "/fixed?body=zw%C3%B6lf"}
    assert httpx.post(f"{server}/v1/proxy", headers=service | asked | again).status_code == 200
    ending = f"""
        const found = [];
        await texts({json.dumps(url)}, (id, {{ text, outcome }}) => {{
          found[id] = [text, outcome];
          if (found.filter(([, outcome]) => outcome === "complete").length === 2) {{
            console.log(JSON.stringify(found.slice(1)));
            process.exit();
          }}
        }});
    """
    printed = run(environment, SCRIPT + ending, node, "--input-type=module", "-e")
    assert json.loads(printed) == [["first", "complete"], ["zwölf", "complete"]]


def test_the_settings_can_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(SETTINGS)
    env = {"PROXY_SECRET": "new", "PROXY_SECRET_BEFORE": "old"}
    proxy = load_settings(file=file, env=env, flags={}).proxy
    assert proxy.secret == ("new", "old")
    Allowlist(proxy.allowlist)


def test_the_table_of_patterns_is_there() -> None:
    assert len(PATTERNS) == 10


@pytest.mark.spec("proxy 7-3")
@pytest.mark.parametrize(("pattern", "allowed", "refused"), PATTERNS)
def test_patterns_allow_what_the_page_says(
    pattern: list[str], allowed: list[str], refused: list[str]
) -> None:
    allowlist = Allowlist(pattern)
    assert allowed
    assert refused
    for url in allowed:
        allowlist.check_url(url)
    for url in refused:
        with pytest.raises(OutboundRefusedError):
            allowlist.check_url(url)


def test_a_name_inside_needs_two_patterns() -> None:
    (both,) = re.findall(r"HOLDFAST_PROXY_ALLOWLIST='(.+?)'", PAGE)
    name, place = both.split(",")
    Allowlist([name, place]).check_address("models.internal", 8080, "10.20.0.7")
    for patterns in ([name], [place], [name, place.replace("http:", "https:")]):
        with pytest.raises(OutboundRefusedError):
            Allowlist(patterns).check_address("models.internal", 8080, "10.20.0.7")
    Allowlist(["http://localhost:9000"]).check_address("localhost", 9000, "127.0.0.1")


def test_every_code_of_the_proxy_is_in_its_table() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (\d{3}) \| \S.* \|$", PAGE, re.MULTILINE))
    of_proxy = {
        code: str(cls.status)
        for code, cls in error_classes().items()
        if cls.__module__ == "holdfast.errors.proxy"
    }
    assert rows == of_proxy


def test_every_setting_that_it_names_exists() -> None:
    named = set(re.findall(r"`(\w+_(?:timeout|ttl|max|bytes_max|ttl_max))`", PAGE))
    known: Any = load_settings(file=None, env={}, flags={})
    groups = [getattr(known, name) for name in known.__dataclass_fields__]
    names = {re.sub("_s$", "", name) for each in groups for name in each.__dataclass_fields__}
    assert named
    assert named - names == set()


def test_every_page_and_section_it_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE) if "://" not in link]
    assert links
    for link in links:
        page, _, section = link.partition("#")
        path = ROOT / "docs" / (page or "proxy.md")
        assert path.exists(), link
        assert not section or section in _anchors(path), link


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
