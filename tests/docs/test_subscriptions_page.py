"""The commands and programs of docs/subscriptions.md do what it says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server_process import ServerProcess
from tests.webhook_receiver import WebhookReceiver
from tools.coverage_page import ROOT

PAGE = (ROOT / "docs/subscriptions.md").read_text()
WEBHOOKS, PULL_WAKE = re.findall(r"```sh\n(.+?)```", PAGE, re.DOTALL)
CHECK, WORKER = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", webhooks_allow="http://127.0.0.1:*") as process:
        yield process


def run(server: ServerProcess, commands: str) -> str:
    """Run a block of commands, each of which must succeed."""
    script = commands.replace("http://127.0.0.1:4437", server.url).replace("curl ", "curl -sSf ")
    done = subprocess.run(
        ["sh", "-e", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.spec("subscriptions 7.1-3")
def test_webhooks_arrive_and_can_be_checked(server: ServerProcess) -> None:
    scope: dict[str, object] = {}
    exec(CHECK, scope)
    check = scope["check"]
    assert callable(check)
    with WebhookReceiver() as receiver:
        shown = run(server, WEBHOOKS.replace("http://127.0.0.1:9000/hook", receiver.url))
        assert '"path":"orders/1"' in shown
        received = receiver.next()
    jwks = httpx.get(f"{server.url}/v1/stream/__ds/jwks.json").json()
    check(received.raw, received.signature, jwks)
    with pytest.raises(Exception, match=r"^$"):
        check(received.raw + b" ", received.signature, jwks)
    with pytest.raises(ValueError, match="too old"):
        check(received.raw, re.sub(r"t=\d+", "t=1", received.signature), jwks)


def test_the_example_checks_in_a_few_lines() -> None:
    body = CHECK[CHECK.index("def check") :]
    assert len(body.splitlines()) <= 15


def test_the_worker_works(server: ServerProcess) -> None:
    assert '"subscription_id":"indexer"' in run(server, PULL_WAKE)
    done = subprocess.run(
        [sys.executable, "-c", WORKER.replace("http://127.0.0.1:4437", server.url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "pages/home ['hello']" in done.stdout
    assert "{'ok': True, 'next_wake': False}" in done.stdout
