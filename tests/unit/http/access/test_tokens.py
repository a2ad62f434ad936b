"""Tokens: how they are made and written down, and what is wrong with a file."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import SystemClock
from holdfast.http.access.scopes import parse_scope, parse_scopes
from holdfast.http.access.tokens import (
    check_name,
    digest_of,
    new_token,
    parse_token_settings,
    parse_tokens_file,
    token_entry,
)
from holdfast.testing import FakeClock

TOKEN = new_token(FakeClock())
DIGEST = digest_of(TOKEN.encode()).hex()
GOOD = f'[[token]]\nname = "app"\nsha256 = "{DIGEST}"\nscopes = ["read:demo"]\n'


def test_tokens_are_long_and_never_the_same():
    made = {new_token(SystemClock()) for _ in range(100)}
    assert len(made) == 100
    # 256 bits take 43 characters of base64.
    assert all(len(token) == len("holdfast_") + 43 for token in made)
    assert all(token.isascii() and " " not in token for token in made)


def test_an_entry_is_read_as_it_was_written():
    expires_at = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
    entry = token_entry("app", TOKEN, ["read:demo", "write:demo/x-*"], expires_at)
    assert TOKEN not in entry
    (identity,) = parse_tokens_file(entry.encode()).values()
    assert identity.name == "app"
    assert identity.scopes == parse_scopes(["read:demo", "write:demo/x-*"])
    assert identity.expires_at_s == expires_at.timestamp()


@given(st.from_regex(r"read:[^/*\s]{1,5}/[^*]{1,10}", fullmatch=True).filter(str.isprintable))
def test_any_scope_survives_the_file(text):
    entry = token_entry("app", TOKEN, [text], None)
    assert parse_tokens_file(entry.encode())[bytes.fromhex(DIGEST)].scopes == (parse_scope(text),)


def test_an_empty_file_has_no_tokens():
    assert parse_tokens_file(b"# nobody yet\n") == {}


def test_a_file_of_many():
    other = digest_of(b"other").hex()
    text = GOOD + f'[[token]]\nname = "b"\nsha256 = "{other.upper()}"\nscopes = []\n'
    tokens = parse_tokens_file(text.encode())
    assert {identity.name for identity in tokens.values()} == {"app", "b"}
    assert tokens[digest_of(b"other")].scopes == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "not valid TOML"),
        ("\xff", "not valid TOML"),
        ("a = 1", "unknown field `a`"),
        ("[token]\nname = 'x'", "Expected `array`"),
        (GOOD.replace('name = "app"\n', ""), "missing required field `name`"),
        (GOOD.replace(f'sha256 = "{DIGEST}"\n', ""), "missing required field `sha256`"),
        (GOOD.replace('scopes = ["read:demo"]', ""), "missing required field `scopes`"),
        (GOOD.replace('["read:demo"]', '"read:demo"'), "Expected `array`"),
        (GOOD.replace("read:demo", "read"), "token 1: 'read' is not a scope"),
        (GOOD.replace(DIGEST, DIGEST[:-1]), "token 1: sha256 must be 64"),
        (GOOD.replace(DIGEST, TOKEN), "token 1: sha256 must be 64"),
        (GOOD.replace('"app"', '"a b"'), "token 1: a token's name"),
        (GOOD.replace('"app"', '""'), "token 1: a token's name"),
        (GOOD.replace('"app"', f'"{TOKEN}"'), "token 1: a token's name"),
        (GOOD + f'token = "{TOKEN}"\n', "unknown field `token`"),
        (GOOD + "expires_at = 2030-01-01T00:00:00\n", "timezone"),
        (GOOD + f'expires_at = "{TOKEN}"\n', "datetime"),
        (GOOD + GOOD, "'app' is listed twice"),
        (GOOD + GOOD.replace("app", "b"), "'b' is listed twice"),
    ],
)
def test_what_is_wrong_is_said_without_repeating_secrets(text, says):
    with pytest.raises(ValueError, match=r".") as caught:
        parse_tokens_file(text.encode("latin-1"))
    assert says in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert DIGEST not in str(caught.value)


def test_tokens_can_stand_in_a_setting():
    tokens = parse_token_settings([f"app {DIGEST} read:demo write:x"])
    assert tokens[bytes.fromhex(DIGEST)].scopes == parse_scopes(["read:demo", "write:x"])
    assert parse_token_settings([]) == {}


@pytest.mark.parametrize("text", ["", "app", f"app {DIGEST}", f"{TOKEN} {TOKEN} read:x", "a b c"])
def test_a_setting_that_is_no_token_is_refused(text):
    with pytest.raises(ValueError, match="token 1") as caught:
        parse_token_settings([text])
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("name", ["a", "app-1", "me@example.com", "A.b_c"])
def test_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a b", "a:b", "jwt:x", "a" * 65, "a\n", "ä", TOKEN])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="name"):
        check_name(name)
