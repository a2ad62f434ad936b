"""What of a URL goes to the server, and which headers every request has."""

import pytest

from holdfast.net.exchange import sent_headers
from holdfast.net.targets import parse_target, sent_path


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("http://a.example", "/"),
        ("http://a.example/", "/"),
        ("http://a.example/b/c", "/b/c"),
        ("http://a.example/b?c=/d/e", "/b?c=/d/e"),
        ("http://a.example?c=d/e", "/?c=d/e"),
        ("http://a.example?", "/?"),
        ("https://a.example:8443/b%20c//d", "/b%20c//d"),
        ("http://[::1]:8080/x?y", "/x?y"),
    ],
)
def test_the_path_and_query_are_sent_as_they_are(url, sent):
    assert sent_path(url).decode() == sent


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://a.example/", "a.example"),
        ("http://a.example:80/", "a.example"),
        ("https://a.example/", "a.example"),
        ("https://a.example:80/", "a.example:80"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ],
)
def test_the_host_header_names_the_port_where_it_is_unusual(url, host):
    assert (b"Host", host.encode()) in sent_headers(parse_target(url), "GET", {}, b"")


def test_bodies_are_announced():
    target = parse_target("http://a.example/")

    async def pieces():
        yield b""

    def framing(method, body):
        names = {name.lower(): value for name, value in sent_headers(target, method, {}, body)}
        return names.get(b"content-length"), names.get(b"transfer-encoding")

    assert framing("GET", b"") == (None, None)
    assert framing("POST", b"") == (b"0", None)
    assert framing("PUT", b"abc") == (b"3", None)
    assert framing("PUT", pieces()) == (None, b"chunked")


def test_the_callers_headers_come_before_our_own():
    target = parse_target("http://a.example/")
    sent = sent_headers(target, "GET", {"user-agent": "mine", "X-Other": "1"}, b"")
    assert [value for name, value in sent if name.lower() == b"user-agent"] == [b"mine"]
    assert (b"X-Other", b"1") in sent
