"""Which server is meant, and which exit code an error has."""

from pathlib import Path

import pytest

from holdfast.cli.client.connection import (
    DEFAULT_SERVER,
    Context,
    Contexts,
    exit_code,
    load_contexts,
    resolve,
    save_contexts,
    shown_url,
)
from holdfast.cli.client.output import Output, Retries, payload_field, time_text
from holdfast.errors import HoldfastError, SettingsError, error_classes
from holdfast.testing import FakeClock

SERVER_FLAGS = type(DEFAULT_SERVER)


@pytest.fixture
def env(tmp_path):
    """An environment with a contexts file."""
    path = tmp_path / "contexts.toml"
    (tmp_path / "token").write_text("from-file\n")
    contexts = {
        "one": Context("http://one", token="kept", ca_file="one.pem"),
        "two": Context("http://two", token_file=str(tmp_path / "token")),
    }
    save_contexts(path, Contexts("one", contexts))
    return {"HOLDFAST_CONTEXTS": str(path)}


@pytest.mark.parametrize(
    ("flags", "variables", "expected"),
    [
        ({}, {}, Context("http://one", token="kept", ca_file="one.pem")),
        ({}, {"HOLDFAST_CONTEXT": "two"}, Context("http://two", token="from-file")),
        ({}, {"HOLDFAST_URL": "http://v", "HOLDFAST_CONTEXT": "two"}, Context("http://v")),
        (
            {"context": "two"},
            {"HOLDFAST_URL": "http://v"},
            Context("http://two", token="from-file"),
        ),
        ({"url": "http://u", "context": "two"}, {"HOLDFAST_URL": "http://v"}, Context("http://u")),
        ({"url": "http://u"}, {"HOLDFAST_TOKEN": "v"}, Context("http://u", token="v")),
        (
            {"token": "f"},
            {"HOLDFAST_TOKEN": "v"},
            Context("http://one", token="f", ca_file="one.pem"),
        ),
        ({"ca_file": Path("x")}, {}, Context("http://one", token="kept", ca_file="x")),
        ({}, {"HOLDFAST_CONTEXTS": "/nowhere"}, Context("http://127.0.0.1:4437")),
    ],
)
def test_the_first_that_is_there_names_the_server(env, flags, variables, expected):
    assert resolve(SERVER_FLAGS(**flags), env | variables) == expected


def test_a_token_file_that_is_gone_is_named(env, tmp_path):
    (tmp_path / "token").unlink()
    with pytest.raises(SettingsError, match="token"):
        resolve(SERVER_FLAGS(context="two"), env)


def test_a_token_file_of_somebody_who_is_not_there_is_named(env, tmp_path):
    contexts = Contexts("one", {"one": Context("http://one", token_file="~no-such-user/token")})
    save_contexts(tmp_path / "contexts.toml", contexts)
    with pytest.raises(SettingsError, match="~no-such-user/token"):
        resolve(SERVER_FLAGS(), env)


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ü"])
def test_a_token_that_is_no_header_is_refused(env, tmp_path, token):
    with pytest.raises(SettingsError, match="--token"):
        resolve(SERVER_FLAGS(token=token), env)
    (tmp_path / "token").write_text(token)
    with pytest.raises(SettingsError, match="--token"):
        resolve(SERVER_FLAGS(context="two"), env)


@pytest.mark.parametrize("variables", [{"HOME": "/dev/null"}, {"HOME": "~no-such-user"}])
def test_nobody_needs_a_home(variables):
    assert resolve(SERVER_FLAGS(), variables) == Context("http://127.0.0.1:4437")


def test_contexts_come_back_as_they_were(tmp_path):
    path = tmp_path / "deep" / "contexts.toml"
    odd = 'a"b\\c\n\x7f\té 😀'
    saved = Contexts("a.b", {"a.b": Context("http://x", odd, odd, odd), "c": Context("http://y")})
    save_contexts(path, saved)
    save_contexts(path, saved)
    assert load_contexts(path) == saved
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["contexts.toml"]


def test_a_url_is_shown_without_its_password():
    assert shown_url("https://me:p%40ss@host:1/x@y") == "https://host:1/x@y"
    assert shown_url("host:1") == "host:1"
    assert shown_url("http://me:secret@host/a//b") == "http://host/a//b"
    assert shown_url("me:secret@host") == "host"


def test_every_error_has_an_exit_code():
    codes = {name: exit_code(cls.__new__(cls)) for name, cls in error_classes().items()}
    assert set(codes.values()) == {1, 2, 3, 4, 5, 6, 7}
    for status, expected in {
        400: 2,
        401: 5,
        404: 3,
        409: 4,
        410: 3,
        412: 4,
        429: 6,
        503: 6,
    }.items():
        found = {
            codes[name]
            for name, cls in error_classes().items()
            if cls.status == status and name.islower() and name != "target_refused"
        }
        assert found == {expected}, status


def test_the_same_trouble_is_told_once():
    said = []
    clock = FakeClock()
    retries = Retries(said.append, clock)
    assert retries.summary() == ""
    for message in ("A.", "A.", "B."):
        retries.note(HoldfastError(message), 0.25)
        # Of another request that was under way at the time.
        retries.note(HoldfastError(message), 0.2)
        clock.advance(0.25)
    assert said == [
        "A. Trying again in 0.2 s.",
        "Trying again in 0.2 s.",
        "B. Trying again in 0.2 s.",
    ]
    assert retries.summary() == " Tried again 3 times."


@pytest.mark.parametrize(
    ("payload", "content_type", "field"),
    [
        (b"a\xc3\xa9", "text/plain; charset=utf-8", {"text": "aé"}),
        (b"\xff", "text/plain", {"base64": "/w=="}),
        (b"a", "application/octet-stream", {"base64": "YQ=="}),
        (b"{", "application/json", {"base64": "ew=="}),
        (b'"\xff"', "application/json", {"base64": "Iv8i"}),
    ],
)
def test_payloads_say_how_they_are_written(payload, content_type, field):
    assert payload_field(payload, content_type) == field


def test_json_stays_as_it_is_but_on_one_line(capsysbinary):
    document = payload_field(b'{"a":\r\n1.0}\n', "application/json")
    Output(as_json=True, quiet=True).document(document)
    assert capsysbinary.readouterr().out == b'{"json":{"a":  1.0}}\n'


def test_times_for_people():
    assert (time_text(None), time_text(0)) == ("-", "1970-01-01 00:00:00")
