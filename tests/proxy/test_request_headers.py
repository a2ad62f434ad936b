"""Which headers of a request go on to the upstream."""

import pytest

from tests.proxy.proxying import PATH, SECRET
from tests.upstreams import Upstream

HOP_BY_HOP = {
    "Keep-Alive": "timeout=5",
    "Proxy-Authenticate": "Basic",
    "Proxy-Authorization": "Basic eDp5",
    "Proxy-Connection": "keep-alive",
    "TE": "trailers, deflate",
    "Trailer": "X-Checksum",
    "Trailers": "X-Checksum",
    "Upgrade": "websocket",
}
FOR_PROXY = {
    "Stream-Signed-URL-TTL": "60",
    "Upstream-Authorization": "Bearer theirs",
    "Upstream-Method": "POST",
}


def ask(proxy, upstream, headers, **more):
    """The request as the upstream got it."""
    answer = proxy.create(upstream.url("/echo"), headers=headers, **more)
    assert answer.status_code == 201, answer.text
    return upstream.next()


@pytest.mark.spec("proxy 4.2-4", "proxy 4.2-5", "proxy 6.1-1", "proxy 6.1-2", "proxy 6.2-2")
def test_authorization_is_the_proxys_and_upstream_authorization_goes_on(proxy, upstream) -> None:
    asked = ask(proxy, upstream, {"Upstream-Authorization": "Bearer sk-theirs"})
    assert asked.values("Authorization") == ["Bearer sk-theirs"]
    assert not asked.values("Upstream-Authorization")


@pytest.mark.spec("proxy 4.2-5", "proxy 6.1-1", "proxy 6.2-2")
def test_without_upstream_authorization_there_is_none(proxy, upstream) -> None:
    asked = ask(proxy, upstream, {})
    assert not asked.values("Authorization")
    assert not any(SECRET in value for _, value in asked.headers)


def test_a_secret_in_the_query_does_not_go_on(proxy, upstream) -> None:
    headers = {"Upstream-URL": upstream.url("/echo"), "Upstream-Method": "GET"}
    assert proxy.client.post(f"{PATH}?secret={SECRET}", headers=headers).status_code == 201
    asked = upstream.next()
    assert SECRET not in asked.target
    assert not any(SECRET in value for _, value in asked.headers)


@pytest.mark.spec("proxy 6.1-3", "proxy 6.1-4", "proxy 6.2-3")
def test_what_is_meant_for_the_proxy_does_not_go_on(proxy, upstream) -> None:
    location = proxy.connected()
    headers = FOR_PROXY | {"Session-Id": "a session"}
    assert proxy.append(location, upstream.url("/echo", a="b"), headers=headers).status_code == 200
    asked = upstream.next()
    assert (asked.method, asked.target) == ("POST", "/echo?a=b")
    for name in (*headers, "Upstream-URL", "Use-Stream-URL"):
        assert not asked.values(name)


@pytest.mark.spec("proxy 6.1-5", "proxy 6.2-2")
def test_the_host_is_the_upstreams(proxy, upstream) -> None:
    asked = ask(proxy, upstream, {"Host": "elsewhere.example", "X-Forwarded-Host": "kept.example"})
    assert asked.values("Host") == [f"127.0.0.1:{upstream.port}"]
    assert asked.header("X-Forwarded-Host") == "kept.example"


@pytest.mark.spec("proxy 6.2-1", "proxy 13.1-2")
@pytest.mark.parametrize("name", HOP_BY_HOP)
@pytest.mark.parametrize("spell", [str, str.lower, str.upper])
def test_hop_by_hop_headers_do_not_go_on(proxy, upstream, name, spell) -> None:
    asked = ask(proxy, upstream, {spell(name): HOP_BY_HOP[name], "X-Other": "kept"}, content=b"x")
    assert not asked.values(name)
    assert asked.header("X-Other") == "kept"
    assert asked.body == b"x"


@pytest.mark.spec("proxy 6.2-1")
def test_the_connection_does_not_go_on_nor_does_what_it_names(proxy, upstream) -> None:
    headers = {
        "Connection": "keep-alive, X-Private,  x-also ,",
        "X-Private": "1",
        "X-Also": "2",
        "X-Other": "kept",
    }
    asked = ask(proxy, upstream, headers)
    assert not asked.values("Connection")
    assert not asked.values("X-Private")
    assert not asked.values("X-Also")
    assert asked.header("X-Other") == "kept"


@pytest.mark.spec("proxy 6.2-1")
def test_offers_of_another_protocol_do_not_go_on(proxy, upstream) -> None:
    """The server starts the request over without the offer, and must not lose anything else."""
    headers = {
        "Connection": "Upgrade, HTTP2-Settings, X-Private",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAMAAABkAAQAAP__",
        "X-Private": "1",
        "X-Other": "kept",
    }
    asked = ask(proxy, upstream, headers, content=b"the body")
    assert asked.body == b"the body"
    assert asked.header("X-Other") == "kept"
    for name in ("Connection", "Upgrade", "HTTP2-Settings", "X-Private"):
        assert not asked.values(name), name


@pytest.mark.spec("proxy 4.2-6", "proxy 6.1-6")
def test_all_other_headers_go_on(proxy, upstream) -> None:
    headers = {
        "Content-Type": "application/vnd.x+json; charset=utf-8",
        "Accept": "text/event-stream",
        "User-Agent": "a browser",
        "X-Api-Key": "key",
        "Anthropic-Version": "2023-06-01",
        "If-None-Match": '"a"',
        "If-Match": '"b"',
        "Last-Event-ID": "7",
        "Stream-Seq": "8",
        "Stream-TTL": "9",
        "Stream-Closed": "true",
        "Producer-Id": "p",
        "Origin": "https://page.example",
        "Referer": "https://page.example/chat",
        "Traceparent": "00-a-b-01",
        "X-Empty": "",
        "X-Comma": "a,b,  c",
        "x!#$%&'*+.^_`|~1": "odd name",
    }
    asked = ask(proxy, upstream, headers, content=b"{}")
    for name, value in headers.items():
        assert asked.values(name) == [value], name


@pytest.mark.spec("proxy 6.1-6")
def test_repeated_headers_are_joined(proxy, upstream) -> None:
    headers = [
        *proxy.service.items(),
        ("Upstream-URL", upstream.url("/echo")),
        ("Upstream-Method", "GET"),
        ("X-Many", "a"),
        ("x-many", "b, c"),
        ("X-MANY", "d"),
        ("Cookie", "a=1"),
        ("Cookie", "b=2; c=3"),
    ]
    assert proxy.client.post(PATH, headers=headers).status_code == 201
    asked = upstream.next()
    assert asked.values("X-Many") == ["a, b, c, d"]
    assert asked.values("Cookie") == ["a=1; b=2; c=3"]


@pytest.mark.spec("proxy 6.1-6")
@pytest.mark.parametrize("value", ["grüße".encode(), b"\xff\xfe", "会话".encode(), b"a\tb"])
def test_values_go_on_as_bytes(proxy, upstream, value) -> None:
    asked = ask(proxy, upstream, {"X-Value": value, "Upstream-Authorization": b"Bearer " + value})
    assert asked.header("X-Value").encode("latin-1") == value
    assert asked.header("Authorization").encode("latin-1") == b"Bearer " + value


def test_nothing_encoded_is_asked_for(proxy, upstream) -> None:
    asked = ask(proxy, upstream, {"Accept-Encoding": "gzip, br"})
    assert asked.values("Accept-Encoding") == ["identity"]


def test_a_get_without_a_body_announces_none(proxy, upstream) -> None:
    proxy.create(upstream.url("/echo"), "GET")
    asked = upstream.next()
    assert not asked.values("Content-Length")
    assert not asked.values("Transfer-Encoding")


def test_the_url_goes_on_as_it_is(proxy, upstream) -> None:
    for target in ("/echo?a=%2F&a=b+c&q=%C3%BC&x", "/%65cho/%20a;b=c?", "/a//b", "/echo?a=/../b"):
        assert proxy.create(f"{upstream.base_url}{target}").status_code in {201, 502}
        assert upstream.next().target == target
    proxy.create(upstream.base_url)
    assert upstream.next().target == "/"


def test_connections_to_upstreams_are_used_again(proxy) -> None:
    with Upstream() as upstream:
        for _ in range(5):
            proxy.recorded(upstream.url("/fixed", body="x"))
        assert upstream.connections == 1
