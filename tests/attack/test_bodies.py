"""Hundreds of large bodies at once, which never end."""

import time
from pathlib import Path

import httpx
import pytest

from holdfast.cli.main import main
from tests.attack.flood import Flood
from tests.attack.probe import Probe, peak_bytes, resident_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MB = 1_000_000
CONNECTIONS = 300
BODY_BYTES = 8 * 1024 * 1024
MISSING_BYTES = 600
BUDGET_BYTES = 256 * 1024 * 1024
# A connection with its transport and parser, and what it had read when it was refused.
CONNECTION_BYTES = 400_000
SLACK_BYTES = 50 * MB
WAIT_S_MAX = 2.0


def unfinished(path: str, size: int = BODY_BYTES - MISSING_BYTES) -> bytes:
    """A request whose body has not arrived completely."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
    return f"{head}Content-Length: {BODY_BYTES}\r\n\r\n".encode() + bytes(size)


def check_others_went_on(probe: Probe) -> None:
    assert probe.waits.failures == []
    assert probe.waits.requests > 0
    assert probe.waits.worst_health_s < WAIT_S_MAX
    assert probe.waits.worst_append_s < WAIT_S_MAX


def wait_until_small(pid: int, bytes_max: int) -> None:
    """The memory of bodies is given back within seconds."""
    ends_s = time.monotonic() + 10
    while (held := resident_bytes(pid)) > bytes_max:
        assert time.monotonic() < ends_s, f"{held / MB:.0f} MB are still held"
        time.sleep(0.2)


def test_bodies_without_a_token_are_not_read(start_server, tmp_path: Path, capsys) -> None:
    file = tmp_path / "tokens.toml"
    scope = ("--name", "writer", "--scope", "write:*", "--file", str(file))
    assert main(["token", "create", *scope]) == 0
    token = capsys.readouterr().out.strip()
    server = start_server(access_tokens_file=file, durability="memory")
    path = "/v1/stream/demo/probe"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "text/plain"}
    created = httpx.put(f"{server.url}{path}", headers=headers)
    assert created.status_code == 201
    before = peak_bytes(server.pid)
    with Probe(server.port, path, token) as probe, Flood(server.port, CONNECTIONS) as flood:
        flood.send(unfinished("/v1/stream/demo/other"), timeout_s=120)
        flood.read(timeout_s=20)
    assert set(flood.statuses()) == {401}
    assert all(each.ended for each in flood.connections)
    assert peak_bytes(server.pid) < before + SLACK_BYTES
    check_others_went_on(probe)


def test_bodies_fit_into_their_budget_and_are_given_back(start_server, stream_on) -> None:
    server = start_server(durability="memory")
    path = stream_on(server).url
    before = resident_bytes(server.pid)
    with Probe(server.port, path) as probe:
        with Flood(server.port, CONNECTIONS) as flood:
            flood.send(unfinished("/v1/stream/other"), timeout_s=120)
            flood.read(timeout_s=5)
            statuses = flood.statuses()
            page = httpx.get(f"{server.url}/metrics").text
            refused = [each for each in flood.connections if each.statuses == [503]]
        wait_until_small(server.pid, before + SLACK_BYTES)
    # Those that fit wait for the rest of their body.
    assert set(statuses) == {0, 503}
    assert statuses.count(0) <= BUDGET_BYTES // (BODY_BYTES - MISSING_BYTES)
    assert all(b"retry-after: 1\r\n" in each.received.lower() for each in refused)
    assert f"holdfast_http_body_refusals_total {len(refused)}.0" in page
    spare = CONNECTIONS * CONNECTION_BYTES + SLACK_BYTES
    assert peak_bytes(server.pid) < before + BUDGET_BYTES + spare
    check_others_went_on(probe)


def test_bodies_that_come_too_slowly_are_ended(start_server) -> None:
    server = start_server(body_timeout=2, body_rate_min=1024)
    with Flood(server.port, 50) as flood:
        flood.send(unfinished("/v1/stream/other", 100_000), timeout_s=20)
        ends_s = time.monotonic() + 20
        while not all(each.ended for each in flood.connections):
            assert time.monotonic() < ends_s, flood.statuses()
            flood.send(b"x", timeout_s=1)
            flood.read(timeout_s=0.5)
    assert set(flood.statuses()) == {408}
