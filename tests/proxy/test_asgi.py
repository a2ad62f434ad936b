"""The proxy in an ASGI application: mounted under uvicorn, and over HTTP/2 under hypercorn."""

import ssl
from base64 import b64decode

import httpx
import pytest
import trustme

from tests.asgi.host_process import HostProcess
from tests.http.streams import EventStream
from tests.proxy.proxying import (
    ALLOWLIST,
    DEADLINE_S,
    PATH,
    SECRET,
    Proxy,
    answers,
    body_of,
    check_error,
    ended,
    expired,
    expires_of,
    frames_of,
    id_of,
    kinds_of,
    sign,
)
from tests.upstreams import pattern


@pytest.fixture(scope="module", params=["uvicorn-fastapi", "hypercorn-root"])
def host(request, tmp_path_factory):
    """A host, and a client of it."""
    server, app = request.param.split("-")
    directory = tmp_path_factory.mktemp(server)
    context, options = ssl.create_default_context(), {}
    if server == "hypercorn":
        authority = trustme.CA()
        authority.configure_trust(context)
        issued = authority.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
        issued.private_key_pem.write_to_path(str(directory / "key.pem"))
        options = {"certfile": str(directory / "cert.pem"), "keyfile": str(directory / "key.pem")}
    settings = {"proxy_secret": SECRET, "proxy_allowlist": ALLOWLIST}
    settings |= {"proxy_request_bytes_max": 3_000_000}
    with HostProcess(
        directory / "data", server=server, app=app, options=options, **settings
    ) as process:
        with httpx.Client(
            base_url=process.streams_root, http2=True, verify=context, timeout=DEADLINE_S
        ) as client:
            yield process, client


@pytest.fixture
def proxy(host) -> Proxy:
    return Proxy(host[1])


def test_create_append_and_read(host, proxy, upstream) -> None:
    answer = proxy.create(upstream.url("/bytes", count=100_000, piece=7000))
    assert answer.status_code == 201, answer.text
    assert answer.http_version == ("HTTP/2" if host[0].scheme == "https" else "HTTP/1.1")
    location, stream_id = answer.headers["location"], id_of(answer.headers["location"])
    signed = sign(stream_id, expires_of(location))
    assert location == f"{host[0].streams_root}{PATH}/{stream_id}?{signed}"
    assert body_of(proxy.frames(location)) == pattern(100_000)
    assert proxy.appended(location, upstream.url("/fixed", body="two")) == 2
    assert body_of(proxy.frames(location, ended(2)), 2) == b"two"
    read = proxy.client.get(location)
    assert read.headers["cache-control"].startswith("private")
    assert proxy.client.head(location, headers=proxy.service).status_code == 200
    assert proxy.client.head(location).status_code == 401


def test_the_answer_comes_before_the_body_and_abort_ends_it(proxy, upstream) -> None:
    before = answers(proxy)
    location = proxy.created(upstream.url("/bytes", count=100, piece=10, gate=1))
    request = upstream.next()
    request.release()
    proxy.frames(location, lambda frames: body_of(frames) == pattern(10))
    assert proxy.abort(location).status_code == 204
    request.wait_for_disconnect()
    assert kinds_of(proxy.now(location)) == "SDA"
    assert answers(proxy) - before == {"201": 1, "204": 1}


def test_connect(proxy, upstream) -> None:
    headers = {"Upstream-URL": upstream.url("/auth")}
    for status in (201, 200):
        answer = proxy.connect("an ASGI session", headers=headers, content=b"ticket")
        assert answer.status_code == status
        asked = upstream.next()
        assert asked.header("Stream-Id") == id_of(answer.headers["location"])
        assert asked.body == b"ticket"
    error = check_error(
        proxy.client.get(expired(answer.headers["location"])), 401, "SIGNATURE_EXPIRED"
    )
    assert error["renewable"] is True


@pytest.mark.parametrize("size", [0, 10, 70_000, 2_500_000])
@pytest.mark.parametrize("announced", [True, False])
def test_bodies(proxy, upstream, size, announced) -> None:
    """Over HTTP/2 a body need not say how long it is, and has no chunks either."""
    body = pattern(size)
    pieces = [body[at : at + 50_000] for at in range(0, size, 50_000)]
    content = body if announced else iter(pieces)
    assert proxy.create(upstream.url("/echo"), content=content).status_code == 201
    assert upstream.next().body == body


def test_a_get_has_no_body(proxy, upstream) -> None:
    proxy.create(upstream.url("/echo"), "GET")
    asked = upstream.next()
    assert not asked.values("Transfer-Encoding")
    assert asked.body == b""


def test_bodies_that_are_too_large(host, proxy, upstream) -> None:
    body = [b"x" * 100_000] * 31
    # A connection of its own: hosts may break it off, since not all of the body was received.
    with httpx.Client(verify=False, http2=True, timeout=DEADLINE_S) as another:
        headers = {"Upstream-URL": upstream.url("/echo"), "Upstream-Method": "POST"}
        try:
            answer = another.post(
                f"{host[0].streams_root}{PATH}", headers=proxy.service | headers, content=iter(body)
            )
        except httpx.TransportError:
            pass
        else:
            assert answer.status_code == 413
    assert proxy.create(upstream.url("/fixed")).status_code == 201
    assert [request.path for request in upstream.requests] == ["/fixed"]


def test_headers_go_on_or_do_not(proxy, upstream) -> None:
    headers = {
        "Upstream-Authorization": "Bearer theirs",
        "X-Api-Key": "key",
        "Proxy-Authorization": "Basic eDp5",
        "TE": "trailers",
        "Stream-Signed-URL-TTL": "60",
        "Cookie": "a=1; b=2",
    }
    assert proxy.create(upstream.url("/echo"), headers=headers).status_code == 201
    asked = upstream.next()
    assert asked.values("Authorization") == ["Bearer theirs"]
    assert asked.header("X-Api-Key") == "key"
    assert asked.values("Cookie") == ["a=1; b=2"]
    assert asked.values("Host") == [f"127.0.0.1:{upstream.port}"]
    assert not any(name.startswith(":") for name, _ in asked.headers)
    for name in ("Proxy-Authorization", "TE", "Stream-Signed-URL-TTL", "Upstream-URL"):
        assert not asked.values(name), name


def test_errors(proxy, upstream) -> None:
    answer = proxy.create(upstream.url("/error", status=429, count=100_000))
    assert (answer.status_code, answer.headers["upstream-status"]) == (502, "429")
    assert len(answer.content) == 65_536
    check_error(proxy.create(upstream.url("/redirect")), 400, "REDIRECT_NOT_ALLOWED")
    check_error(proxy.create("http://192.0.2.1/"), 403, "UPSTREAM_NOT_ALLOWED")
    check_error(proxy.client.post(PATH), 401, "MISSING_SECRET")
    twice = [*proxy.service.items(), ("Session-Id", "a"), ("Session-Id", "b")]
    assert proxy.client.post(PATH, headers=twice).status_code == 400


def test_the_other_surfaces(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="x"))
    proxy.frames(location)
    path = proxy.base_path(location)
    check_error(proxy.client.get(path), 401, "MISSING_SECRET")
    assert frames_of(proxy.client.get(path, headers=proxy.service).content)
    assert id_of(location) in proxy.streams()
    assert proxy.close(location).status_code == 204
    check_error(proxy.append(location, upstream.url()), 409, "STREAM_CLOSED")
    with proxy.client.stream("GET", f"{location}&offset=-1&live=sse") as response:
        data = [event for event in EventStream(response) if event.type == "data"]
    assert kinds_of(frames_of(b"".join(b64decode(each.data) for each in data))) == "SDC"
    assert proxy.client.delete(location, headers=proxy.service).status_code == 204
    check_error(proxy.client.get(location), 404, "STREAM_NOT_FOUND")


def test_a_client_that_leaves_does_not_end_its_response(host, proxy, upstream) -> None:
    """Nor does it before it is answered."""
    location = proxy.connected()
    headers = {"Use-Stream-URL": location, "Upstream-Method": "GET"}
    headers |= {"Upstream-URL": upstream.url("/fixed", body="late", gate="headers")}
    patience = httpx.Timeout(DEADLINE_S, read=0.3)
    with httpx.Client(verify=False, timeout=patience) as impatient:
        with pytest.raises(httpx.ReadTimeout):
            impatient.post(f"{host[0].streams_root}{PATH}", headers=proxy.service | headers)
    request = upstream.next()
    assert not request.disconnected
    request.release_all()
    assert body_of(proxy.frames(location)) == b"late"
