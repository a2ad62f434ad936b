"""What commands load: the commands of a client start fast, without the server or what draws."""

import subprocess
import sys

import pytest

SERVER = ("http", "engine", "log", "storage", "subscriptions", "settings")
HEAVY = {
    "uvloop", "obstore", "sqlite3", "textual", "rich", "cryptography", "jwt", "pyspark", "pyarrow",
    "prometheus_client", "h2", "certifi",
}  # fmt: skip
SHOW = """
import sys
from holdfast.cli.main import main
status = main(sys.argv[1:])
print(status, *sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("--help",),
        ("ls",),
        ("append", "tests/startup", "x"),
        ("read", "tests/startup"),
        ("bootstrap", "tests/startup"),
        ("context", "list"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_server_is_not_loaded(command, arguments):
    command("create", "tests/startup")
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *arguments],
        env=command.env,
        capture_output=True,
        text=True,
        check=True,
    )
    status, *modules = done.stderr.splitlines()[-1].split()
    assert status == "0", done.stderr
    unwanted = {f"holdfast.{name}" for name in SERVER} | HEAVY
    if arguments == ("--help",):
        unwanted -= {"rich"}
    assert unwanted & set(modules) == set()
