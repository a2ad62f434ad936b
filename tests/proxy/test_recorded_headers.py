"""Which headers of an upstream's response are in the Start frame, and in what form."""

import pytest

from tests.upstreams import Reply


def recorded(proxy, upstream, *headers: tuple[str, str], **query: object) -> dict[str, str]:
    upstream.routes["/mine"] = lambda _request: Reply(b"x", headers=list(headers))
    (start, *_) = proxy.recorded(upstream.url("/mine", **query))
    assert start.type == "S"
    assert set(start.json) == {"status", "headers"}
    return start.json["headers"]


@pytest.mark.spec("proxy 5.2-2", "proxy 5.2-3")
def test_names_are_in_lower_case(proxy, upstream) -> None:
    headers = recorded(proxy, upstream, ("X-Request-ID", "Abc"), ("ETAG", '"Q"'), ("x-b", "C"))
    assert headers == {
        "content-type": "text/plain",
        "x-request-id": "Abc",
        "etag": '"Q"',
        "x-b": "C",
    }


@pytest.mark.spec("proxy 5.2-2")
def test_repeated_headers_are_joined(proxy, upstream) -> None:
    headers = recorded(proxy, upstream, ("X-A", "1"), ("x-a", "2, 3"), ("X-A", ""), ("X-B", "4"))
    assert headers["x-a"] == "1, 2, 3, "
    assert headers["x-b"] == "4"


@pytest.mark.spec("proxy 6.2-1", "proxy 5.2-2")
def test_hop_by_hop_headers_are_left_out(proxy, upstream) -> None:
    headers = recorded(
        proxy,
        upstream,
        ("Connection", "X-Private, keep-alive"),
        ("X-Private", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authenticate", "Basic"),
        ("Proxy-Connection", "keep-alive"),
        ("Trailer", "X-Late"),
        ("Upgrade", "h2c"),
        ("X-Other", "kept"),
    )
    assert headers == {"content-type": "text/plain", "x-other": "kept"}


def test_cookies_are_left_out(proxy, upstream) -> None:
    """They are credentials for one client, and a stream has many readers."""
    headers = recorded(proxy, upstream, ("Set-Cookie", "a=b; HttpOnly"), ("Set-Cookie2", "c=d"))
    assert headers == {"content-type": "text/plain"}


def test_a_length_is_kept(proxy, upstream) -> None:
    assert recorded(proxy, upstream, framing="length")["content-length"] == "1"


@pytest.mark.parametrize(
    "value", ["grüße", "\xff", 'quoted "x" \\ y', "\t", "会话".encode().decode("latin-1")]
)
def test_values_of_any_bytes(proxy, upstream, value) -> None:
    told = recorded(proxy, upstream, ("X-Value", value))["x-value"]
    raw = value.encode("latin-1").strip()
    try:
        assert told == raw.decode()
    except UnicodeDecodeError:
        assert told == raw.decode("latin-1")


def test_odd_content_types_break_nothing(proxy, upstream) -> None:
    for value in ("text/plain; a=\xfc", "a" * 1000, "", "\t"):
        upstream.routes["/typed"] = lambda _request, value=value: Reply(b"x", content_type=value)
        answer = proxy.create(upstream.url("/typed"))
        assert answer.status_code == 201
        assert answer.headers["upstream-content-type"] == value.strip()


def test_an_error_with_an_odd_content_type(proxy, upstream) -> None:
    upstream.routes["/typed"] = lambda _request: Reply(b"x", 500, content_type="text/\xfc")
    answer = proxy.create(upstream.url("/typed"))
    assert (answer.status_code, answer.content) == (502, b"x")
