"""Which server is meant."""

import pytest

from holdfast.cli.bench.options import clean_prefix
from holdfast.cli.bench.payload import payload
from holdfast.cli.bench.target import resolve_target
from holdfast.errors import SettingsError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)


def test_flags_come_before_the_environment_and_that_before_the_default(monkeypatch):
    assert resolve_target(None, None).url == "http://127.0.0.1:4437"
    monkeypatch.setenv("HOLDFAST_URL", "https://streams.example/base/")
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    found = resolve_target(None, None)
    assert (found.url, found.token) == ("https://streams.example:443/base", "secret")
    assert resolve_target("http://[::1]:1", "other").url == "http://[::1]:1"


@pytest.mark.parametrize(
    "url", ["ftp://x", "127.0.0.1:4437", "http://", "http://x:99999", "http://x/?a=b", "http://u@x"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(SettingsError, match="--url"):
        resolve_target(url, None)


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ü"])
def test_a_token_that_is_no_header_is_refused(token):
    with pytest.raises(SettingsError, match="--token"):
        resolve_target(None, token)


def test_a_request_starts_with_where_it_goes_and_who_asks():
    head = resolve_target("http://[::1]:8080/base", "secret").head("PUT", "/a/b")
    assert head.startswith(b"PUT /base/a/b HTTP/1.1\r\nHost: [::1]:8080\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in head


def test_prefixes_are_made_safe():
    assert clean_prefix("v1/stream/a b/") == "/v1/stream/a%20b"
    with pytest.raises(SettingsError, match="--path-prefix"):
        clean_prefix("/")


def test_the_same_seed_gives_the_same_payload():
    for content_type in ("application/octet-stream", "text/plain", "application/json"):
        made = payload(1, content_type, 100)
        assert len(made) == 100
        assert made == payload(1, content_type, 100) != payload(2, content_type, 100)
