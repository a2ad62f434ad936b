"""Names of streams as URLs, and back to the same stream on the server."""

from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import Client
from holdfast.client.auth import Basic
from holdfast.client.urls import (
    below,
    encode_path,
    is_url,
    parse_base,
    same_origin,
    split_name,
    with_query,
)
from holdfast.errors import InvalidRequestError

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


class TestBase:
    @pytest.mark.parametrize(
        ("url", "base"),
        [
            ("http://127.0.0.1:4437", "http://127.0.0.1:4437"),
            ("http://127.0.0.1:4437/", "http://127.0.0.1:4437"),
            ("https://host/behind/a/proxy/", "https://host/behind/a/proxy"),
            ("localhost:4437", "http://localhost:4437"),
            ("host", "http://host"),
            ("http://[::1]:80/x", "http://[::1]:80/x"),
        ],
    )
    def test_is_what_paths_are_appended_to(self, url, base):
        assert parse_base(url) == (base, "", "")

    @pytest.mark.parametrize(
        ("url", "user", "password"),
        [
            ("http://me:secret@host", "me", "secret"),
            ("http://me@host", "me", ""),
            ("me:secret@host", "me", "secret"),
            ("http://m%40e:s%2Fec%3Aret%25@host", "m@e", "s/ec:ret%"),
        ],
    )
    def test_user_is_taken_out(self, url, user, password):
        assert parse_base(url) == ("http://host", user, password)

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "http://",
            "ftp://host",
            "file:///etc/passwd",
            "http://host?a=b",
            "http://host#a",
            "http:///path",
            "//",
            "http://[::1",
            "http://[nonsense]/",
        ],
    )
    def test_what_is_no_server_is_refused(self, url):
        with pytest.raises(InvalidRequestError, match="server's URL"):
            parse_base(url)

    def test_user_becomes_basic_authentication(self):
        client = Client("http://me:secret@host/x")
        assert client.url == "http://host/x"
        assert isinstance(client._calls._auth, Basic)
        assert client._calls._auth._value == "Basic bWU6c2VjcmV0"
        assert "secret" not in client.stream("a/b").url

    def test_authentication_that_is_given_wins_over_the_user(self):
        auth = Basic("other", "one")
        assert Client("http://me:secret@host", auth=auth)._calls._auth is auth


class TestPaths:
    @pytest.mark.parametrize(
        ("name", "path"),
        [
            ("demo/hello", "demo/hello"),
            ("hello", "hello"),
            ("a/b/c", "a/b/c"),
            ("with space", "with%20space"),
            ("what?", "what%3F"),
            ("50%", "50%25"),
            ("%2e%2e", "%252e%252e"),
            ("a#b", "a%23b"),
            ("ä/€", "%C3%A4/%E2%82%AC"),
            ("a\\b", "a%5Cb"),
            ("a:b@c,d;e=f~g", "a:b@c,d;e=f~g"),
            ("line\nend", "line%0Aend"),
            ("...", "..."),
            (".hidden", ".hidden"),
        ],
    )
    def test_odd_names_are_encoded(self, name, path):
        assert encode_path(name) == path
        assert unquote(path) == name

    @pytest.mark.parametrize("name", ["", "/", "/a", ".", "..", "a/..", "../a", "a/./b", "a/../b"])
    def test_what_leads_elsewhere_is_refused(self, name):
        with pytest.raises(InvalidRequestError, match="is not a stream"):
            encode_path(name)
        with pytest.raises(InvalidRequestError, match="is not a stream"):
            Client("http://host").stream(name)

    @given(names)
    def test_any_name_stays_one_path(self, name):
        try:
            path = encode_path(name)
        except InvalidRequestError:
            return
        url = f"http://host/v1/stream/{path}"
        parts = urlsplit(url)
        assert path.isascii()
        assert unquote(parts.path) == f"/v1/stream/{name}"
        assert (parts.query, parts.fragment) == ("", "")

    def test_streams_of_a_client(self):
        client = Client("http://host/x/", streams_path="/other/")
        stream = client.stream("b/s 1")
        assert stream.url == "http://host/x/other/b/s%201"
        assert stream.path == "/x/other/b/s%201"
        assert stream._bucketed_url == "http://host/x/b/s%201"
        assert Client("http://host", streams_path="").stream("s").url == "http://host/s"
        assert Client("http://host").stream("s")._bucketed_url == "http://host/_default/s"
        assert Client("http://host").bucket("b/1").url == "http://host/b%2F1"

    def test_whole_urls_are_taken_as_they_are(self):
        url = "https://elsewhere/any/path?key=a%20b"
        stream = Client("http://host").stream(url)
        assert stream.url == url
        assert stream.path == "/any/path"
        assert is_url(url)
        assert not is_url("httpx/stream")

    @pytest.mark.parametrize(
        ("name", "parts"),
        [("a/b", ("a", "b")), ("a/b/c", ("a", "b/c")), ("a", ("_default", "a"))],
    )
    def test_bucket_and_id(self, name, parts):
        assert split_name(name) == parts

    def test_below_keeps_the_query_at_the_end(self):
        assert below("http://host/a", "b c", "d/e") == "http://host/a/b%20c/d%2Fe"
        assert below("http://host/a?k=v", "b") == "http://host/a/b?k=v"
        assert below("http://host", "b") == "http://host/b"


class TestQuery:
    @pytest.mark.spec("base 8.1-8")
    def test_is_sorted(self):
        url = with_query("http://host/a", {"offset": "-1", "live": "sse", "cursor": "5"})
        assert url == "http://host/a?cursor=5&live=sse&offset=-1"

    def test_what_the_url_has_stays_unless_it_is_given_anew(self):
        url = with_query("http://host/a?z=1&offset=5&b=", {"offset": "7"})
        assert url == "http://host/a?b=&offset=7&z=1"

    def test_what_the_url_has_several_times_stays_so(self):
        url = with_query("http://host/a?tag=y&tag=x&a=1", {"offset": "7"})
        assert url == "http://host/a?a=1&offset=7&tag=y&tag=x"

    def test_nothing_is_added_where_there_is_nothing(self):
        assert with_query("http://host/a?b=2&a=1", {}) == "http://host/a?b=2&a=1"

    @pytest.mark.spec("base 6-7")
    @given(st.dictionaries(names, names, min_size=1, max_size=5))
    def test_any_values_arrive(self, params):
        url = with_query("http://host/a", params)
        assert url.isascii()
        assert " " not in url
        found = parse_qsl(urlsplit(url).query, keep_blank_values=True, strict_parsing=True)
        assert found == sorted(params.items())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://host/a", "http://host/b?c", True),
        ("http://host", "https://host", False),
        ("http://host", "http://host:81", False),
        ("http://host", "http://host.example", False),
        ("http://host", "http://host@evil", False),
        ("http://HOST/a", "http://host/a", True),
        ("http://host/a", "http://host:80/a", True),
        ("https://host:443/a", "https://host/a", True),
        ("http://host:443/a", "http://host/a", False),
    ],
)
def test_same_origin(one, other, same):
    assert same_origin(one, other) is same
    assert same_origin(other, one) is same
