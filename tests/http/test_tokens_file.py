"""A server with a tokens file: answers on the wire, revocation while it runs, and its log."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from holdfast.cli.main import main
from tests.http.raw import RawConnection
from tests.server_process import ServerProcess

# Against hangs: the file is looked at once a second.
DEADLINE_S = 15.0

StartServer = Callable[..., ServerProcess]
ClientOf = Callable[[ServerProcess], httpx.Client]


def create_token(file: Path, name: str, scope: str, capsys) -> dict[str, str]:
    """Make a token with the command, and return the header that carries it."""
    assert main(["token", "create", "--name", name, "--scope", scope, "--file", str(file)]) == 0
    return {"Authorization": f"Bearer {capsys.readouterr().out.strip()}"}


@pytest.mark.spec("base 10.1-2", "base 10.2-1")
def test_tokens_from_the_command_to_their_revocation(
    tmp_path: Path, start_server: StartServer, client_of: ClientOf, capsys
) -> None:
    file = tmp_path / "tokens.toml"
    writer = create_token(file, "writer", "write:demo", capsys)
    only_writer = file.read_bytes()
    reader = create_token(file, "reader", "read:demo/a*", capsys)
    server = start_server(access_tokens_file=file)
    client = client_of(server)
    url = "/v1/stream/demo/a"

    anonymous = client.put(url)
    assert anonymous.status_code == 401
    assert anonymous.json()["error"]["code"] == "unauthorized"
    assert anonymous.headers["WWW-Authenticate"].startswith("Bearer")
    assert client.put(url, headers={"Authorization": "Bearer sesame"}).status_code == 401
    assert client.put(url, params={"access_token": "sesame"}).status_code == 401

    assert client.put(url, headers=writer).status_code == 201
    refused = client.delete(url, headers=reader)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "forbidden"
    assert "write:demo/a" in refused.json()["error"]["message"]
    read = client.get(url, params={"offset": "-1"}, headers=reader)
    assert read.status_code == 200
    assert "public" not in read.headers["Cache-Control"]
    assert client.get("/healthz").status_code == 200

    file.write_bytes(only_writer)
    deadline_s = time.monotonic() + DEADLINE_S
    while client.head(url, headers=reader).status_code != 401:
        assert time.monotonic() < deadline_s, "the token was not revoked"
        time.sleep(0.05)
    assert client.head(url, headers=writer).status_code == 200

    said = server.stderr()
    assert "was read again" in said
    for header in (reader, writer):
        assert header["Authorization"].removeprefix("Bearer ") not in said


@pytest.mark.slow
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_revoked_token_ends_live_reads_within_five_seconds(
    tmp_path: Path, start_server: StartServer, client_of: ClientOf, capsys, live: str
) -> None:
    file = tmp_path / "tokens.toml"
    writer = create_token(file, "writer", "write:demo", capsys)
    admin = create_token(file, "admin", "read:*", capsys)
    only_others = file.read_bytes()
    reader = create_token(file, "reader", "read:demo", capsys)
    server = start_server(access_tokens_file=file, long_poll_timeout=60)
    client = client_of(server)
    assert client.put("/v1/stream/demo/a", headers=writer).status_code == 201
    with RawConnection(server.port) as connection:
        token = f"Authorization: {reader['Authorization']}"
        connection.request("GET", f"/v1/stream/demo/a?offset=now&live={live}", token)
        while b"holdfast_live_readers 1.0" not in client.get("/metrics", headers=admin).content:
            assert server.running
        started_s = time.monotonic()
        file.write_bytes(only_others)
        assert connection.response().status == (200 if live == "sse" else 401)
        assert time.monotonic() - started_s < 5


@pytest.mark.spec("base 10.5-1")
def test_too_many_requests_are_told_when_to_come_back(
    start_server: StartServer, client_of: ClientOf
) -> None:
    client = client_of(start_server(client_rate=1, client_burst=3))
    answers = [client.head("/v1/stream/demo/a") for _ in range(6)]
    limited = [answer for answer in answers if answer.status_code == 429]
    assert len(limited) in {2, 3}
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in limited)
    assert client.get("/healthz").status_code == 200
