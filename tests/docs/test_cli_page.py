"""The commands of docs/cli.md run, in their order, and the page says all there is to say."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from cyclopts import App

from holdfast.cli.main import app
from tests.cli.holdfast_command import DEADLINE_S, Command
from tests.server_process import ServerProcess
from tests.thorough import for_each
from tests.upstreams import Upstream
from tools.coverage_page import ROOT

PAGE = (ROOT / "docs/cli.md").read_text()
BLOCKS = re.findall(r"```sh\n(.+?)```", PAGE, re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
# One section for all scenarios, and one for all jobs, whose options have a page of their own.
ELSEWHERE = {"bench", "pipeline"}
SETTINGS = {"serve", "config", "check", "backup", "restore"}
SECRET = "the-secret-of-the-proxy-of-the-cli-page"
# Where the page's requests to an upstream go.
UPSTREAM = "https://api.openai.com"


@contextmanager
def serving(folder: Path) -> Iterator[Command]:
    """Commands for a server that has a proxy, and an upstream that takes another one's place."""
    settings = {"proxy_secret": SECRET, "proxy_allowlist": "http://127.0.0.1:*"}
    with Upstream() as upstream, ServerProcess(folder / "data", **settings) as server:
        upstream.routes["/v1/models"] = upstream.routes["/echo"]
        yield Command(
            folder / "home", server.url, HOLDFAST_TOKEN=SECRET, UPSTREAM=upstream.base_url
        )


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with serving(tmp_path_factory.mktemp("cli page")) as command:
        yield command


def test_every_line_is_a_command_and_says_how_it_ends() -> None:
    wrong = [
        line
        for line in LINES
        if "#" in line and not re.search(r"  # (exit \d+|until Ctrl-C)$", line)
    ]
    assert wrong == []


@pytest.mark.slow
def test_the_commands_run_in_their_order(command: Command) -> None:
    failed = []
    for line in LINES:
        status, expected, stderr = _run(line, command)
        if status != expected or "Traceback" in stderr:
            failed.append(f"{line}\nexit status {status}, not {expected}: {stderr}")
    assert not failed, "\n".join(failed)


def _run(line: str, command: Command) -> tuple[int, int, str]:
    script, _, ending = line.partition("  # ")
    script = script.replace("http://127.0.0.1:4437", command.env["HOLDFAST_URL"])
    script = script.replace(UPSTREAM, command.env["UPSTREAM"])
    script = script.replace("--duration 2", "--duration 0.5")
    if ending == "until Ctrl-C":
        expected = 0 if "serve" in script else 130
        status, stderr = _run_until_it_waits(script, command)
        return status, expected, stderr
    words = shlex.split(script)
    if words[0] == "holdfast" and not set(script) & set("|<>$&;`*"):
        # Without anything that a shell would do, it runs in this process, which is faster.
        done = command.run(*words[1:])
    else:
        done = command.shell(script)
    return done.returncode, int(ending.removeprefix("exit ") or 0), done.stderr


def _run_until_it_waits(script: str, command: Command) -> tuple[int, str]:
    """Interrupt a command once it has printed something; what would wait for news gets some."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {script}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command.env,
        cwd=command.home,
    )
    assert process.stdout is not None
    if "--after now" in script:
        Thread(target=_append_until, args=(command, process)).start()
    assert process.stdout.readline(), process.communicate(timeout=DEADLINE_S)[1]
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=DEADLINE_S)
    return process.returncode, stderr.decode()


def _append_until(command: Command, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        command.run_process("append", "demo1/session", "news")


def commands(
    parent: App = app, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command that does something, with its words."""
    for name in parent:
        if name.startswith("-"):
            continue
        child = parent[name]
        words = (*path, name)
        if [each for each in child if not each.startswith("-")]:
            yield from commands(child, words)
        else:
            yield words, child


ALL = {" ".join(words): child for words, child in commands() if words[0] not in ELSEWHERE}


def test_every_command_has_a_section() -> None:
    headings = re.findall(r"^##+ holdfast (.+)$", PAGE, re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert set(headings) - ELSEWHERE == set(ALL)


def test_every_section_has_an_example_of_its_command() -> None:
    examples = [
        name
        for name in set(ALL)
        if not any(re.search(rf"holdfast {name}\b", line) for line in LINES)
    ]
    assert examples == []


@for_each("name", sorted(set(ALL)))
def test_every_long_flag_is_in_the_section_or_with_the_server(name: str) -> None:
    section = re.split(rf"\n##+ holdfast {name}\n", PAGE)[1].partition("\n##")[0]
    server = PAGE[PAGE.index("## Which server") : PAGE.index("### The contexts file")]
    flags = {
        flag
        for argument in ALL[name].assemble_argument_collection(parse_docstring=False)
        for flag in argument.names
        if flag.startswith("--")
    }
    if name in SETTINGS:
        settings = (ROOT / "docs/settings.md").read_text()
        flags = {flag for flag in flags if f"`{flag}`" not in settings} - {"--config"}
    documented = set(re.findall(r"`(?:-\w, |-\w \w, )?(--[a-z-]+)", section + server))
    assert flags - documented - {"--json"} == set()
    assert set(re.findall(r"^\| `(?:-\w, |-\w N`, `)?(--[a-z-]+)", section, re.MULTILINE)) <= flags


# The server refuses to delete the only snapshot that it keeps.
NEVER_DONE = {"snapshot delete"}
(SECTION,) = re.findall(r"^### The JSON contract$(.+?)^##", PAGE, re.MULTILINE | re.DOTALL)
CONTRACT = dict(re.findall(r"^\| `([a-z ]+)` \| [^|]+ \| (.+) \|$", SECTION, re.MULTILINE))
# Their documents have sections of their own.
OTHERWISE = {"config", "top"}


def test_every_command_is_in_the_json_contract() -> None:
    assert set(CONTRACT) == set(ALL) - OTHERWISE


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """What every command really prints."""
    with serving(tmp_path_factory.mktemp("cli json")) as command:
        return {name: _documents(command, name) for name in EXAMPLES}


# In this order; several commands are separated by semicolons.
EXAMPLES = {
    "bucket create": "bucket create json1",
    "create": "create json1/a --content-type text/plain; create json1/b",
    "append": "append json1/a hello; append json1/b hello",
    "read": "read json1/a; read json1/b; read json1/c",
    "tail": "tail json1/a; tail json1/b; tail json1/c",
    "info": "info json1/a",
    "fork": "fork json1/a json1/d",
    "ls": "ls json1",
    "bucket info": "bucket info json1",
    "bucket changes": "bucket changes json1",
    "bucket scan": "bucket scan json1",
    "snapshot publish": "snapshot publish json1/c 00000000000000000003 state.json --content-type "
    "application/json; snapshot publish json1/b 00000000000000000005 state.json; "
    "snapshot publish json1/a 00000000000000000005 state.json --content-type text/plain",
    "snapshot get": "snapshot get json1/a; snapshot get json1/b; snapshot get json1/c",
    "bootstrap": "bootstrap json1/c; bootstrap json1/d; bootstrap json1/e",
    "close": "close json1/a",
    "delete": "delete json1/d; delete json1/a; delete json1/b; delete json1/c; delete json1/e",
    "bucket delete": "bucket delete json1",
    "proxy connect": "proxy connect json-1",
    "proxy request": f"proxy request {UPSTREAM}/v1/messages --session json-1 --no-follow",
    "proxy follow": "proxy follow --session json-1 --sse; "
    "proxy follow --session json-1 --frames --exit",
    "proxy abort": "proxy abort --session json-1",
    "context add": "context add one http://127.0.0.1:1",
    "context use": "context use one",
    "context list": "context list",
    "context remove": "context remove one",
    "completion": "completion fish",
    "token create": "token create --name me --scope read:demo1",
    "serve": "serve --durability memory --listen 127.0.0.1:0",
    "check": "check --data-dir kept",
    "backup": "backup ./place --data-dir kept",
    "restore": "restore ./place --data-dir restored",
}


def _documents(command: Command, name: str) -> list[dict[str, object]]:
    if name == "append":
        (command.home / "state.json").write_text("[1]")
        command("create", "json1/c", "--content-type", "application/json", "--data", "11")
        command("create", "json1/e", "--data", "bytes")
        command("append", "json1/c", "22")
    if name == "proxy follow":
        # A body of bytes, and one that is cut off.
        for query in ("/bytes?count=9", "/fixed?body=xy&piece=1&framing=chunked&after=1&end=cut"):
            url = command.env["UPSTREAM"] + query
            command.run("proxy", "request", url, "--session", "json-1")
    if name == "check":
        with ServerProcess(command.home / "kept"):
            pass
    return [
        document
        for line in EXAMPLES[name].split("; ")
        for document in _printed(command, line.split())
    ]


def _printed(command: Command, arguments: list[str]) -> list[dict[str, object]]:
    if arguments[0] == "serve":
        process = command.start(*arguments, "--json")
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
        return [json.loads(line)]
    arguments = [each.replace(UPSTREAM, command.env["UPSTREAM"]) for each in arguments]
    printed = command(*arguments, "--json")
    if arguments[0] in {"check", "backup", "restore"}:
        return [json.loads(printed)]
    return [json.loads(line) for line in printed.splitlines()]


@for_each("name", sorted(set(CONTRACT) - NEVER_DONE))
def test_documents_have_the_keys_that_the_page_says(
    name: str, documents: dict[str, list[dict[str, object]]]
) -> None:
    cell = CONTRACT[name].replace("(as of `snapshot get`)", "")
    assert {key for document in documents[name] for key in document} == set(
        re.findall(r"`(\w+)`", cell)
    )


def test_documents_of_payloads_have_one_of_three_keys(
    documents: dict[str, list[dict[str, object]]],
) -> None:
    for name in ("read", "tail", "snapshot get"):
        found = [set(each) & {"json", "text", "base64"} for each in documents[name]]
        assert all(len(each) == 1 for each in found), name


def test_the_snapshot_of_a_bootstrap_is_as_the_page_says(
    documents: dict[str, list[dict[str, object]]],
) -> None:
    first = documents["bootstrap"][0]["snapshot"]
    assert isinstance(first, dict)
    assert set(first) == {"stream", "offset", "content_type", "json"}


def test_config_has_a_value_and_a_source_for_each_key(command: Command) -> None:
    tables = json.loads(command("config", "--json"))
    assert all(
        set(each) == {"value", "source"} for keys in tables.values() for each in keys.values()
    )


def test_every_link_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE) if "://" not in link]
    assert links
    for link in links:
        page, _, section = link.partition("#")
        path: Path = ROOT / "docs" / (page or "cli.md")
        headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
        assert not section or section in anchors, link
