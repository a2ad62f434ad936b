"""The proxy on a server that has access control."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.proxy.proxying import (
    ALLOWLIST,
    PATH,
    SECRET,
    Proxy,
    body_of,
    check_error,
    ended,
    expired,
    id_of,
)
from tests.server_process import ServerProcess

GOOD = ("write:_proxy", "admin:_proxy", "write:*", "admin:*")
# Upstreams of one client at one time: more than any other test here has.
LIMIT = 5
SHORT = ("read:_proxy", "read:*", "write:demo1", "write:_proxy/a", "admin:demo1")


def token_of(scope: str) -> str:
    return f"token-of-{scope}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """The proxy of a server with tokens, asked without one."""
    path: Path = tmp_path_factory.mktemp("guarded")
    entries = [
        f'[[token]]\nname = "token-{number}"\nsha256 = "{digest}"\nscopes = ["{scope}"]\n'
        for number, scope in enumerate(GOOD + SHORT)
        for digest in [hashlib.sha256(token_of(scope).encode()).hexdigest()]
    ]
    (path / "tokens.toml").write_text("\n".join(entries))
    settings = {"proxy_secret": SECRET, "proxy_allowlist": ALLOWLIST}
    settings |= {"proxy_client_upstreams_max": LIMIT}
    with ServerProcess(
        path / "data", access_tokens_file=path / "tokens.toml", **settings
    ) as process:
        with httpx.Client(base_url=process.url, timeout=20) as client:
            yield Proxy(client)


def with_token(proxy: Proxy, scope: str) -> Proxy:
    return Proxy(proxy.client, token_of(scope))


@pytest.mark.spec("proxy 10.1-1")
@pytest.mark.parametrize("scope", GOOD)
def test_tokens_that_may_write_to_the_bucket(guarded, upstream, scope) -> None:
    proxy = with_token(guarded, scope)
    location = proxy.created(upstream.url("/fixed", body="hello"))
    assert not upstream.next().values("Authorization")
    assert body_of(proxy.frames(location)) == b"hello"
    assert proxy.appended(location, upstream.url()) == 2
    assert proxy.connect().status_code == 201
    path = f"{PATH}/{id_of(location)}"
    assert proxy.client.get(path, headers=proxy.service).status_code == 200
    assert proxy.client.head(path, headers=proxy.service).status_code == 200
    assert proxy.client.get(expired(location), headers=proxy.service).status_code == 200
    assert proxy.client.delete(path, headers=proxy.service).status_code == 204


@pytest.mark.parametrize("scope", SHORT)
def test_tokens_that_may_not(guarded, upstream, scope) -> None:
    proxy = with_token(guarded, scope)
    location = guarded.connected()
    path = f"{PATH}/{id_of(location)}"
    for answer in (
        proxy.create(upstream.url()),
        proxy.append(location, upstream.url()),
        proxy.connect(),
        proxy.client.get(path, headers=proxy.service),
        proxy.client.delete(path, headers=proxy.service),
        proxy.client.get(f"/v1/stream/_proxy/{id_of(location)}", headers=proxy.service),
        proxy.client.get("/_proxy/streams", headers=proxy.service),
    ):
        assert answer.status_code == 403, (answer.request, answer.text)
        assert "write:_proxy" in answer.json()["error"]["message"]
    assert proxy.client.head(path, headers=proxy.service).status_code == 403
    assert not upstream.requests


@pytest.mark.spec("proxy 12.2-1")
def test_tokens_that_nobody_knows(guarded, upstream) -> None:
    proxy = Proxy(guarded.client, "unknown")
    for answer in (
        proxy.create(upstream.url()),
        proxy.connect(),
        proxy.client.get(f"{PATH}/x", headers=proxy.service),
        proxy.client.get("/v1/stream/_proxy/x", headers=proxy.service),
        proxy.client.get(f"{PATH}/x?secret={token_of('write:_proxy')}"),
    ):
        check_error(answer, 401, "INVALID_SECRET")
    assert not upstream.requests


def test_the_secret_still_counts(guarded, upstream) -> None:
    location = guarded.created(upstream.url("/fixed", body="hello"))
    assert body_of(guarded.frames(location)) == b"hello"
    path = f"{PATH}/{id_of(location)}"
    assert guarded.client.head(f"{path}?secret={SECRET}").status_code == 200
    assert guarded.client.get(guarded.base_path(location), headers=guarded.service).is_success
    assert id_of(location) in guarded.streams()


def test_the_secret_is_good_for_nothing_else(guarded) -> None:
    for path in ("/v1/stream/demo1/a", "/demo1/streams", "/cluster/packs", "/metrics"):
        assert guarded.client.get(path, headers=guarded.service).status_code == 401


def test_signed_urls_need_no_token(guarded, upstream) -> None:
    location = guarded.created(upstream.url("/fixed", body="hello"))
    assert guarded.client.get(location).status_code == 200
    assert guarded.abort(location).status_code == 204
    check_error(guarded.client.get(expired(location)), 401, "SIGNATURE_EXPIRED")


def test_a_token_that_will_not_do_does_not_spoil_a_signed_url(guarded) -> None:
    location = guarded.connected()
    for token in (token_of("read:*"), "unknown"):
        headers = {"Authorization": f"Bearer {token}"}
        assert guarded.client.get(location, headers=headers).status_code == 200
        error = check_error(
            guarded.client.get(expired(location), headers=headers), 401, "SIGNATURE_EXPIRED"
        )
        assert error["renewable"] is True, "that is what the page has to know"


def test_preflights_need_no_token(guarded) -> None:
    for path in (PATH, f"{PATH}/x", "/v1/stream/_proxy/x"):
        assert guarded.client.options(path).status_code == 204


def test_packs_are_behind_tokens(guarded) -> None:
    """Of the server, as without the proxy: a token for one bucket does not do."""
    for scope, status in (("write:_proxy", 403), ("read:*", 200)):
        headers = {"Authorization": f"Bearer {token_of(scope)}"}
        assert guarded.client.get("/cluster/packs", headers=headers).status_code == status


@pytest.mark.spec("proxy 13.1-5")
def test_a_client_has_so_many_upstreams_at_one_time(guarded, upstream) -> None:
    proxy = with_token(guarded, "write:_proxy")
    location = proxy.connected()
    requests = []
    for _ in range(LIMIT):
        proxy.appended(location, upstream.url("/bytes", count=1, gate=1))
        requests.append(upstream.next())
    for answer in (
        proxy.append(location, upstream.url()),
        proxy.create(upstream.url()),
        proxy.connect(headers={"Upstream-URL": upstream.url("/auth")}),
    ):
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1
    assert len(upstream.requests) == LIMIT
    assert proxy.connect().status_code == 201, "nobody has to be asked"
    for other in (with_token(guarded, "write:*"), guarded):
        assert other.create(upstream.url()).status_code == 201
    requests[0].release_all()
    proxy.frames(location)
    answer = proxy.append(location, upstream.url())
    assert answer.headers["stream-response-id"] == str(LIMIT + 1)
    for request in requests:
        request.release_all()
    proxy.frames(location, ended(*range(1, LIMIT + 2)))


@pytest.mark.spec("proxy 13.1-5")
def test_calls_without_an_answer_count_as_well(guarded, upstream) -> None:
    proxy = with_token(guarded, "admin:_proxy")
    with ThreadPoolExecutor(LIMIT) as pool:
        waiting = [pool.submit(proxy.create, upstream.url("/never")) for _ in range(LIMIT)]
        requests = [upstream.next() for _ in range(LIMIT)]
        assert proxy.create(upstream.url()).status_code == 503
        for request in requests:
            request.release_all()
        assert {each.result().status_code for each in waiting} == {201}
