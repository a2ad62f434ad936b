"""The proxy's secrets: several of them, weak ones, none."""

import hashlib
import time
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from tests.proxy.proxying import (
    OLD_SECRET,
    PATH,
    SECRET,
    Proxy,
    check_error,
    expires_of,
    id_of,
    sign,
)
from tests.server_process import ServerProcess
from tests.storage_stats import flush

WEAK = "weak"
REPEATED = "ab" * 20
PACKS = ("/cluster/packs", "/cluster/packs/extents", "/cluster/packs/data")


def test_the_first_secret_signs(strict, upstream) -> None:
    location = strict.created(upstream.url())
    assert location.endswith(sign(id_of(location), expires_of(location), SECRET))


def test_urls_signed_before_the_secret_was_replaced_are_still_good(strict, upstream) -> None:
    stream_id = id_of(strict.connected())
    old = f"{PATH}/{stream_id}?{sign(stream_id, int(time.time()) + 100, OLD_SECRET)}"
    assert strict.client.get(old).status_code == 200
    assert strict.client.patch(f"{old}&action=abort").status_code == 204
    answer = strict.append(old, upstream.url())
    assert answer.status_code == 200
    fresh = answer.headers["location"]
    assert fresh.endswith(sign(stream_id, expires_of(fresh), SECRET))


def test_every_secret_is_good_for_services(strict) -> None:
    path = f"{PATH}/{id_of(strict.connected())}"
    for secret in (SECRET, OLD_SECRET):
        headers = {"Authorization": f"Bearer {secret}"}
        assert strict.client.head(path, headers=headers).status_code == 200
        assert strict.client.head(f"{path}?secret={secret}").status_code == 200
    for wrong in (f"{SECRET},{OLD_SECRET}", SECRET + OLD_SECRET, SECRET[:-1], ""):
        assert strict.client.head(f"{path}?secret={wrong}").status_code == 401


@pytest.mark.spec("proxy 10.1-1", "proxy 12.2-1")
@pytest.mark.parametrize(
    "value", ["Bearer", "Bearer ", "Bearer wrong", f"Basic {SECRET}", SECRET, f"Bearer {SECRET}x"]
)
def test_credentials_that_are_not_good(proxy, upstream, value) -> None:
    headers = {"Authorization": value.strip()}
    post = {"Upstream-URL": upstream.url(), "Upstream-Method": "GET"}
    for answer in (
        proxy.client.post(PATH, headers=headers | post),
        proxy.client.post(PATH, headers=headers | {"Session-Id": "x"}),
        proxy.client.delete(f"{PATH}/x", headers=headers),
        proxy.client.get(f"{PATH}/x", headers=headers),
    ):
        check_error(answer, 401, "INVALID_SECRET")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert not upstream.requests


@pytest.mark.spec("proxy 10.1-1", "proxy 12.2-1")
def test_no_credentials(proxy, upstream) -> None:
    post = {"Upstream-URL": upstream.url(), "Upstream-Method": "GET"}
    for answer in (
        proxy.client.post(PATH, headers=post),
        proxy.client.post(PATH, headers={"Session-Id": "x"}),
        proxy.client.post(PATH, headers=post | {"Use-Stream-URL": proxy.connected()}),
        proxy.client.post(PATH),
        proxy.client.delete(f"{PATH}/x"),
    ):
        check_error(answer, 401, "MISSING_SECRET")
    assert proxy.client.head(f"{PATH}/x").status_code == 401
    assert not upstream.requests


def test_one_good_credential_is_enough(proxy) -> None:
    path = f"{PATH}/{id_of(proxy.connected())}"
    wrong = {"Authorization": "Bearer wrong"}
    assert proxy.client.head(f"{path}?secret={SECRET}", headers=wrong).status_code == 200
    assert proxy.client.head(f"{path}?secret=wrong", headers=proxy.service).status_code == 200
    assert proxy.client.head(f"{path}?secret=wrong", headers=wrong).status_code == 401


@pytest.mark.spec("proxy 13.2-3")
def test_strong_secrets_are_nothing_to_warn_of(server, strict_server) -> None:
    for each in (server, strict_server):
        assert "weak" not in each.stderr()
        assert "allowlist" not in each.stderr()


@pytest.fixture(scope="module")
def careless(tmp_path_factory):
    """A server with secrets that can be guessed, and no allowlist."""
    data_dir: Path = tmp_path_factory.mktemp("careless") / "data"
    secrets = f"{WEAK},{SECRET},{REPEATED}"
    with ServerProcess(data_dir, proxy_secret=secrets) as process:
        yield process


@pytest.mark.spec("proxy 13.2-3")
def test_weak_secrets_are_warned_of(careless) -> None:
    text = careless.stderr()
    lines = [line for line in text.splitlines() if "weak" in line]
    assert len(lines) == 2
    assert all("WARNING" in line for line in lines)
    assert "secret 1 " in lines[0]
    assert "secret 3 " in lines[1]
    assert not any(secret in text for secret in (SECRET, REPEATED, f" {WEAK},"))


@pytest.mark.spec("proxy 7-2", "proxy 12.3-1")
def test_an_empty_allowlist_refuses_every_upstream(careless, upstream) -> None:
    assert "the proxy's allowlist is empty" in careless.stderr()
    service = {"Authorization": f"Bearer {WEAK}"}
    with httpx.Client(base_url=careless.url) as client:
        connected = client.post(PATH, headers=service | {"Session-Id": "x"})
        assert connected.status_code == 201
        location = connected.headers["location"]
        for url in (upstream.url(), "https://example.com/"):
            call = service | {"Upstream-URL": url, "Upstream-Method": "GET"}
            for headers in (
                call,
                call | {"Use-Stream-URL": location},
                call | {"Session-Id": "y"},
            ):
                check_error(client.post(PATH, headers=headers), 403, "UPSTREAM_NOT_ALLOWED")
    assert not upstream.requests
    assert UUID(id_of(location)).version == 5


@pytest.fixture(scope="module")
def off(tmp_path_factory):
    """A client of a server without a secret."""
    data_dir: Path = tmp_path_factory.mktemp("off") / "data"
    with ServerProcess(data_dir, proxy_allowlist="http://127.0.0.1:*") as process:
        with httpx.Client(base_url=process.url) as client:
            yield client


@pytest.mark.spec("proxy 12.6-1")
@pytest.mark.parametrize("path", [PATH, f"{PATH}/", f"{PATH}/x", f"{PATH}/x/y", f"{PATH}?secret="])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_without_a_secret_there_is_no_proxy(off, path, method) -> None:
    answer = off.request(method, path, headers={"Authorization": "Bearer x", "Session-Id": "x"})
    if method == "HEAD":
        assert answer.status_code == 404
    else:
        error = check_error(answer, 404, "NOT_FOUND")
        assert "HOLDFAST_PROXY_SECRET" in error["message"]


@pytest.mark.parametrize(
    "path", ["/_proxy", "/_proxy/streams", "/_proxy/x", "/v1/stream/_proxy/x", "/%5Fproxy/streams"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_nor_is_there_its_bucket(off, path, method) -> None:
    answer = off.request(method, path, headers={"Content-Type": "text/plain"}, content=b"x")
    assert answer.status_code in {400, 404, 405}, answer.text
    assert off.get("/_proxy/streams").status_code == 404


@pytest.mark.parametrize("path", PACKS)
def test_without_proxy_streams_packs_are_open(off, path) -> None:
    assert off.get(path).status_code in {200, 400, 404}


def test_what_was_recorded_stays_closed_without_a_secret(tmp_path, upstream) -> None:
    """Packs have the bytes of all streams; with access control they are for who has a token."""
    data_dir = tmp_path / "data"
    settings = {"proxy_secret": SECRET, "proxy_allowlist": "http://127.0.0.1:*"}
    with ServerProcess(data_dir, **settings) as process, httpx.Client() as client:
        client.base_url = process.url
        proxy = Proxy(client)
        location = proxy.created(upstream.url("/fixed", body="a secret answer"))
        proxy.frames(location)
        flush(client)
    with ServerProcess(data_dir) as process, httpx.Client(base_url=process.url) as client:
        for path in (*PACKS, "/cluster/packs?x"):
            answer = client.get(path, headers=proxy.service)
            assert answer.status_code == 403, path
            assert "proxy" in answer.json()["error"]["message"]
        check_error(client.get(proxy.at(location)), 404, "NOT_FOUND")
        for path in (proxy.base_path(location), f"/_proxy/{id_of(location)}", "/_proxy/streams"):
            assert client.get(path, headers=proxy.service).status_code in {400, 404}, path
    digest = hashlib.sha256(b"a token").hexdigest()
    with ServerProcess(data_dir, access_tokens=f"reader {digest} read:*") as process:
        with httpx.Client(base_url=process.url) as client:
            assert client.get("/cluster/packs").status_code == 401
            headers = {"Authorization": "Bearer a token"}
            assert client.get("/cluster/packs", headers=headers).status_code == 200
