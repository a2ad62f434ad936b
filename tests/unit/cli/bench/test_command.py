"""Which server is meant."""

import pytest
import trustme

from holdfast.cli.bench.command import AppendFlags, CommonFlags, clean_prefix
from holdfast.cli.bench.connection import resolve_target
from holdfast.cli.bench.loads import payload
from holdfast.cli.client.connection import Context, Contexts, save_contexts
from holdfast.errors import SettingsError
from holdfast.settings.options import check_flags


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


def test_a_context_brings_its_token_and_certificates(tmp_path, monkeypatch):
    authority, path = tmp_path / "ca.pem", tmp_path / "contexts.toml"
    trustme.CA().cert_pem.write_to_path(authority)
    save_contexts(
        path, Contexts("", {"lab": Context("https://lab", "secret", ca_file=str(authority))})
    )
    monkeypatch.setenv("HOLDFAST_CONTEXTS", str(path))
    found = CommonFlags(context="lab").target()
    assert (found.url, found.token) == ("https://lab:443", "secret")
    context = found.tls_context()
    assert context is not None
    assert "trustme" in str(context.get_ca_certs())
    with pytest.raises(SettingsError, match=r"nowhere\.pem"):
        CommonFlags(url="https://lab", ca_file=tmp_path / "nowhere.pem").target()


def test_a_rate_that_no_process_can_keep_is_refused():
    CommonFlags(rate=2_000_000, processes=2).check()
    with pytest.raises(SettingsError, match="--processes"):
        CommonFlags(rate=2_000_000).check()


def test_prefixes_are_made_safe():
    assert clean_prefix("v1/stream/a b/") == "/v1/stream/a%20b"
    with pytest.raises(SettingsError, match="--path-prefix"):
        check_flags(AppendFlags(path_prefix="/"))


def test_the_same_seed_gives_the_same_payload():
    for content_type in ("application/octet-stream", "text/plain", "application/json"):
        made = payload(1, content_type, 100)
        assert len(made) == 100
        assert made == payload(1, content_type, 100) != payload(2, content_type, 100)
    parameters = "application/json; charset=utf-8"
    assert payload(1, parameters, 100) == payload(1, "application/json", 100)
