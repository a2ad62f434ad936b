"""The other commands of streams and buckets, and how commands fail."""

import json
import socket

import pytest

from tests.cli.holdfast_command import Command
from tests.thorough import some_of


def test_five_commands(command):
    command("bucket", "create", "demo1")
    command("create", "demo1/hello", "--content-type", "text/plain")
    numbers = "".join(f"{number}\n" for number in range(1, 1001))
    done = command.shell("seq 1000 | holdfast append demo1/hello --lines")
    assert (
        done.stderr == "appended 1000 messages to demo1/hello, next offset 00000000000000003893\n"
    )
    assert command("read", "demo1/hello") == numbers
    (listed,) = command.json("ls", "demo1")
    assert listed.pop("created_at_ms") <= listed.pop("last_write_at_ms")
    assert listed == {
        "stream_id": "hello",
        "status": "open",
        "content_type": "text/plain",
        "tail_offset": 3893,
    }


def test_a_stream_from_its_creation_to_its_end(command):
    command("bucket", "create", "life")
    flags = ("--content-type", "text/plain", "--ttl", "3600", "--data", "hello")
    done = command.run("create", "life/one", *flags)
    assert (done.stdout, done.stderr) == ("", "created life/one (text/plain)\n")
    assert command.run("create", "life/one", *flags).stderr.startswith("already exists:")
    assert "ttl s         3600\n" in command("info", "life/one")
    command("fork", "life/one", "life/two", "--offset", "00000000000000000000", "--sub-offset", "4")
    assert command("read", "life/two") == "hell"
    command("close", "life/one", "--quiet")
    assert command("ls", "life") == "one\ntwo\n"
    assert command("ls", "life", "--limit", "1", "--after", "one", "--long").startswith("open ")
    assert command("ls", "life", "--prefix", "x") == ""
    assert (
        command("bucket", "changes", "life", "--prefix", "one")
        .splitlines()[0]
        .startswith("created\tone\t")
    )
    assert "streams     2" in command("bucket", "info", "life")
    assert "next cursor" in command("bucket", "scan", "life")
    command("delete", "life/two")
    command("delete", "life/one")
    command("bucket", "delete", "life")
    assert command.run("ls", "life").returncode == 3


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("read", "tests/missing"), 3, "stream_not_found"),
        (("append", "tests/missing", "x"), 3, "stream_not_found"),
        (("bucket", "info", "missing"), 3, "bucket_not_found"),
        (("bucket", "create", "x"), 2, "invalid_bucket_id"),
        (("read", "a/../b"), 2, "invalid_request"),
        (("ls", "--url", "ftp://x"), 2, "invalid_request"),
        (("ls", "--url", "http://x:99999"), 2, "invalid_request"),
        (("ls", "--context", "nowhere"), 2, "invalid_settings"),
        (("ls", "--limit", "-1"), 2, "invalid_settings"),
        (("ls", "--retries", "-1"), 2, "invalid_settings"),
        (("tail", "a", "--number", "-1"), 2, "invalid_settings"),
        (("read", "a", "--framing", "x"), 2, "invalid_settings"),
        (("append", "a", "x", "--batch", "0"), 2, "invalid_settings"),
        (("context", "add", "a b", "http://x"), 2, "invalid_settings"),
        (("context", "add", "a", "nowhere://x"), 2, "invalid_request"),
        (("ls", "--limit", "x"), 2, "usage"),
        (("ls", "--nonsense"), 2, "usage"),
        (("read",), 2, "usage"),
        (("fork", "a"), 2, "usage"),
        (("nonsense",), 2, "usage"),
        (("completion", "tcsh"), 2, "usage"),
        (("ls", "--ca-file", "nowhere.pem"), 2, "invalid_settings"),
    ],
)
def test_failures_are_one_line_with_a_code(command, capsys, monkeypatch, arguments, status, code):
    """In this process: there are many."""
    from holdfast.cli.main import main

    monkeypatch.setenv("HOLDFAST_URL", command.env["HOLDFAST_URL"])
    monkeypatch.setenv("HOME", command.env["HOME"])
    assert main([*arguments, "--json"]) == status
    output = capsys.readouterr()
    assert output.out == ""
    assert json.loads(output.err)["error"]["code"] == code
    assert main(arguments) == status
    said = capsys.readouterr().err
    assert said.startswith("holdfast: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [("nonsense",), ("read",), ("tail", "x", "-n", "many")])
def test_wrong_usage_in_a_process(command, arguments):
    done = command.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_server_that_cannot_be_reached(command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    done = command.run("ls", "--url", url, "--retries", "2")
    assert done.returncode == 6
    first, second, last = done.stderr.splitlines()
    assert first.startswith(f"{url} cannot be connected to: Connection refused. Trying again in ")
    assert second.startswith("Trying again in ")
    assert (
        last == f"holdfast: {url} cannot be connected to: Connection refused. Tried again 2 times."
    )
    quiet = command.run("ls", "--url", url, "--retries", "0", "--quiet", "--json")
    assert json.loads(quiet.stderr)["error"]["code"] == "outbound_failed"


def test_something_else_that_listens(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        process = Command(tmp_path, url).start("ls", "--retries", "0")
        connection, _ = other.accept()
        connection.recv(1000)
        connection.sendall(b"220 mail.example.com ESMTP\r\n")
        connection.close()
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 6
    assert stderr.count(b"\n") == 1


def test_stdout_that_is_closed(command):
    done = command.shell("holdfast ls >&-")
    assert (done.returncode, done.stderr) == (1, "holdfast: stdout is closed\n")


@pytest.mark.parametrize(
    "arguments",
    some_of(
        [
            "config",
            "completion bash",
            "top --once --interval 0.1",
            "token create --name a --scope read:*",
        ],
        1,
    ),
)
def test_stdout_that_is_full(command, arguments):
    done = command.shell(f"holdfast {arguments} >/dev/full")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "holdfast: stdout cannot be written: No space left on device."
    ]


@pytest.mark.parametrize("elsewhere", some_of(["2>&-", "2>/dev/full"], 1))
def test_stderr_that_takes_nothing(command, new_stream, elsewhere):
    stream = new_stream()
    done = command.shell(f"holdfast append {stream} one {elsewhere}; exit $?")
    assert (done.returncode, done.stdout) == (0, "")
    done = command.shell(f"holdfast read {stream} {elsewhere}; exit $?")
    assert (done.returncode, done.stdout) == (0, "one")
    assert command.shell(f"holdfast read tests/missing {elsewhere}; exit $?").returncode == 3


def test_a_snapshot_of_another_state_is_refused(command, new_stream):
    stream = new_stream()
    (etag,) = {each["etag"] for each in command.json("info", stream)}
    publish = ("snapshot", "publish", stream, f"{0:020d}", "--if-match")
    assert command.run(*publish, '"0:0"', stdin="state").returncode == 4
    command(*publish, etag, stdin="state")


def test_a_snapshot_from_a_stdin_that_is_closed(command, new_stream):
    done = command.shell(f"holdfast snapshot publish {new_stream()} {0:020d} <&-")
    assert (done.returncode, done.stderr) == (1, "holdfast: There is no stdin to read from.\n")
