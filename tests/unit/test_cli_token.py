"""`holdfast token create`: the token once, the entry for the file, and clear errors."""

import re
import stat
import tomllib
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.main import main
from holdfast.http.access.tokens import digest_of, parse_tokens_file

TOKEN = re.compile(r"holdfast_[A-Za-z0-9_-]{43}")


def test_token_and_entry_come_on_stdout_and_advice_on_stderr(capsys):
    assert (
        main(["token", "create", "--name", "app", "--scope", "read:a", "--scope", "write:b/x*"])
        == 0
    )
    output = capsys.readouterr()
    token, _, entry = output.out.partition("\n\n")
    assert TOKEN.fullmatch(token)
    (table,) = tomllib.loads(entry)["token"]
    assert table == {
        "name": "app",
        "sha256": digest_of(token.encode()).hex(),
        "scopes": ["read:a", "write:b/x*"],
    }
    assert "cannot be shown again" in output.err
    assert token not in output.err


def test_with_a_file_the_entry_goes_there(capsys, tmp_path):
    file = tmp_path / "tokens.toml"
    for name in ("a", "b"):
        assert (
            main(["token", "create", "--name", name, "--scope", "admin:*", "--file", str(file)])
            == 0
        )
    tokens = capsys.readouterr().out.split()
    assert len(tokens) == 2
    held = parse_tokens_file(file.read_bytes())
    assert [held[digest_of(token.encode())].name for token in tokens] == ["a", "b"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(token in file.read_text() for token in tokens)


def test_a_file_without_a_last_newline_is_continued(capsys, tmp_path):
    file = tmp_path / "tokens.toml"
    file.write_text("# ours")
    assert main(["token", "create", "--name", "a", "--scope", "read:a", "--file", str(file)]) == 0
    assert len(parse_tokens_file(file.read_bytes())) == 1


def test_days_set_the_end(capsys):
    assert main(["token", "create", "--name", "a", "--scope", "read:a", "--days", "1.5"]) == 0
    entry = capsys.readouterr().out.partition("\n\n")[2]
    expires_at = tomllib.loads(entry)["token"][0]["expires_at"]
    left = expires_at - datetime.now(tz=UTC)
    assert timedelta(days=1.4) < left < timedelta(days=1.6)


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--name", "a"], "--scope", 2),
        (["--scope", "read:a"], "--name", 2),
        (["--name", "a b", "--scope", "read:a"], "name", 2),
        (["--name", "a", "--scope", "red:a"], "'red:a' is not a scope", 2),
        (["--name", "a", "--scope", "read:a", "--days", "0"], "--days", 2),
        (["--name", "a", "--scope", "read:a", "--days", "nan"], "--days", 2),
        (["--name", "a", "--scope", "read:a", "--file", "/nowhere/x"], "/nowhere/x", 1),
    ],
)
def test_errors_are_one_line_and_nothing_on_stdout(capsys, arguments, says, code):
    assert main(["token", "create", *arguments]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert says in output.err


def test_a_name_is_used_once_and_the_file_stays_as_it_is(capsys, tmp_path):
    file = tmp_path / "tokens.toml"
    arguments = ["token", "create", "--name", "a", "--scope", "read:a", "--file", str(file)]
    assert main(arguments) == 0
    before = file.read_bytes()
    assert main(arguments) == 1
    assert "listed twice" in capsys.readouterr().err
    assert file.read_bytes() == before
