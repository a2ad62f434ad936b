"""The command line: version, usage errors and exit codes."""

import subprocess
import sys

import pytest

from holdfast import __version__
from holdfast.cli.main import app, main, run
from holdfast.errors import LogCorruptError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    monkeypatch.delenv("HOLDFAST_CONFIG", raising=False)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["config", "--listn", "x:1"], "--listen"),
        (["config", "stray"], "takes no 'stray' here; see holdfast config --help"),
        (["token", "create", "--name", "a", "--scope", "b", "c", "d"], "holdfast token create --h"),
        (["config", "--listen"], "--listen"),
        (["config", "--listen", "x"], "--listen: expected HOST:PORT"),
        (["config", "--long-poll-timeout", "-3"], "--long-poll-timeout: expected a number"),
        (["config", "--config", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(capsys, arguments, says):
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.err.startswith("holdfast: ")
    assert output.err.count("\n") == 1
    assert says in output.err
    assert output.out == ""


def test_other_errors_exit_1(capsys, monkeypatch):
    def broken():
        raise LogCorruptError("segment 3\nis damaged")

    app.command(broken, name="broken")
    monkeypatch.setattr(sys, "argv", ["holdfast", "broken"])
    with pytest.raises(SystemExit) as ended:
        run()
    del app["broken"]
    assert ended.value.code == 1
    assert capsys.readouterr().err == "holdfast: segment 3 is damaged\n"


def test_help_of_a_command_is_its_docstring(capsys):
    assert main(["check", "--help"]) == 0
    assert "Exits with 0 if there is no damage" in " ".join(capsys.readouterr().out.split())


def test_the_entry_point_does_not_load_the_server():
    code = "import sys, holdfast.cli.main; print([m for m in sys.modules if m == 'uvloop'])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert output.stdout.strip() == b"[]"
