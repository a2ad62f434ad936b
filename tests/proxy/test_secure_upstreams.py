"""Upstreams over TLS, which speak HTTP/2."""

import httpx
import pytest

from tests.proxy.proxying import SECRET, Proxy, body_of, check_error, ended, kinds_of
from tests.server_process import ServerProcess
from tests.upstreams import Upstream, pattern


@pytest.fixture(scope="module")
def secure():
    """An upstream whose authority the server trusts."""
    with Upstream(tls=True) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(secure, tmp_path_factory):
    directory = tmp_path_factory.mktemp("secure")
    settings = {"proxy_secret": SECRET, "proxy_allowlist": "https://127.0.0.1:*"}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(secure.write_authority(directory)))
        with ServerProcess(directory / "data", **settings) as process:
            with httpx.Client(base_url=process.url, timeout=20) as client:
                yield Proxy(client)


def test_a_response_over_http2(proxy, secure) -> None:
    url = secure.url("/bytes", count=300_000, piece=5000, header="X-Request-ID: 7")
    location = proxy.created(url, content=b"x" * 200_000, headers={"X-Api-Key": "key"})
    asked = secure.next()
    assert asked.http_version == "2"
    assert asked.body == b"x" * 200_000
    assert asked.header("X-Api-Key") == "key"
    assert asked.values("Host") == [f"127.0.0.1:{secure.port}"]
    for name in ("Connection", "Transfer-Encoding", "Upstream-URL"):
        assert not asked.values(name)
    frames = proxy.frames(location)
    assert frames[0].json["headers"]["x-request-id"] == "7"
    assert kinds_of(frames) == "SDC"
    assert body_of(frames) == pattern(300_000)


def test_an_abort_leaves_the_connection_to_the_others(proxy, secure) -> None:
    location = proxy.connected()
    requests = []
    for _ in range(3):
        proxy.appended(location, secure.url("/bytes", count=20, piece=10, gate=1))
        requests.append(secure.next())
        requests[-1].release()
    proxy.frames(
        location, lambda frames: all(body_of(frames, each) == pattern(10) for each in (1, 2, 3))
    )
    before = secure.connections
    assert proxy.abort(location, response=2).status_code == 204
    requests[1].wait_for_disconnect()
    for request in (requests[0], requests[2]):
        request.release_all()
    frames = proxy.frames(location, ended(1, 2, 3))
    assert [kinds_of(frames, number) for number in (1, 2, 3)] == ["SDC", "SDA", "SDC"]
    assert body_of(frames, 1) == body_of(frames, 3) == pattern(20)
    assert secure.connections == before


@pytest.mark.parametrize("end", ["cut", "reset"])
def test_a_stream_that_breaks_off(proxy, secure, end) -> None:
    url = secure.url("/bytes", count=20, piece=10, after=1, end=end)
    *_, error = proxy.recorded(url)
    assert (error.type, error.json["code"]) == ("E", "UPSTREAM_ERROR")
    assert kinds_of(proxy.recorded(secure.url("/fixed", body="again"))) == "SDC"


def test_errors_and_redirects(proxy, secure) -> None:
    answer = proxy.create(secure.url("/error", status=429))
    assert (answer.status_code, answer.headers["upstream-status"]) == (502, "429")
    check_error(proxy.create(secure.url("/redirect")), 400, "REDIRECT_NOT_ALLOWED")


def test_an_upstream_that_nobody_vouches_for(proxy) -> None:
    with Upstream(tls=True) as stranger:
        error = check_error(proxy.create(stranger.url()), 502, "UPSTREAM_ERROR")
    assert "certificate" in error["message"]
    assert not stranger.requests
