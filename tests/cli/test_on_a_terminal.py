"""What commands do differently where somebody watches."""

import os
import subprocess

import pytest

from tests.cli.terminal_session import CTRL_C, CTRL_D, Terminal

ESCAPE = "\x1b["


def test_help_fits_the_terminal_and_has_colours(command):
    with Terminal(command, "append", "--help") as terminal:
        assert terminal.wait() == 0
        assert ESCAPE in terminal.written
        assert "--producer" in terminal.text
        assert max(map(len, terminal.text.splitlines())) <= 80


def test_no_color_is_respected(command):
    with Terminal(command.with_env(NO_COLOR="1"), "read", "--help") as terminal:
        assert terminal.wait() == 0
        assert f"{ESCAPE}3" not in terminal.written


def test_no_colours_in_a_pipe(command):
    assert ESCAPE not in command("--help")


def test_every_help_fits_80_columns(command):
    assert max(map(len, command.with_env(COLUMNS="80")("--help").splitlines())) <= 80


@pytest.mark.parametrize("arguments", [("tail", "-f"), ("read", "-f")])
def test_ctrl_c_ends_what_follows(command, new_stream, arguments):
    stream = new_stream()
    command.here("append", stream, "no line break")
    with Terminal(command, arguments[0], stream, *arguments[1:]) as terminal:
        terminal.wait_for("no line break")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        # The shell's prompt starts on a line of its own.
        assert terminal.text.endswith("\n")
        assert "Traceback" not in terminal.text


def test_typing_messages(command, new_stream):
    stream = new_stream()
    with Terminal(command, "append", stream, "--lines") as terminal:
        terminal.wait_for("Reading from the terminal; end with Ctrl-D.")
        terminal.type(b"hello\n" + CTRL_D)
        assert terminal.wait() == 0
        terminal.wait_for("appended 1 message ")
    assert command.here("read", stream) == "hello\n"


def test_ctrl_c_ends_typing(command, new_stream):
    stream = new_stream()
    with Terminal(command, "append", stream, "--lines") as terminal:
        terminal.wait_for("Ctrl-D")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.text


def test_a_long_append_shows_how_far_it_is(command, new_stream):
    stream = new_stream()
    (command.home / "input").write_text("line\n" * 300)
    with Terminal(command, "append", stream, "--lines", "--file", "input") as terminal:
        assert terminal.wait() == 0
        terminal.wait_for("appending")
        assert terminal.text.rstrip().endswith(f"to {stream}, next offset 00000000000000001500")


def test_a_read_into_a_file_shows_how_far_it_is(command, new_stream):
    stream = new_stream()
    command.here("append", stream, "line\n" * 1000)
    path = command.home / "output"
    with (
        path.open("wb") as file,
        Terminal(command, "read", stream, stdout=file.fileno()) as terminal,
    ):
        assert terminal.wait() == 0
        terminal.wait_for("reading")
    assert path.read_text() == "line\n" * 1000


def test_no_bar_where_the_data_goes_on_through_a_pipe(command, new_stream):
    stream = new_stream()
    command.here("append", stream, "line\n")
    reader, writer = os.pipe()
    with Terminal(command, "read", stream, stdout=writer) as terminal:
        os.close(writer)
        assert terminal.wait() == 0
        assert terminal.text == "next offset 00000000000000000005\n"
    assert os.read(reader, 100) == b"line\n"
    os.close(reader)


def test_no_bar_where_nobody_watches(command, new_stream):
    stream = new_stream()
    (command.home / "input").write_text("line\n" * 10)
    done = command.run("append", stream, "--lines", "--file", "input")
    assert done.stderr == f"appended 10 messages to {stream}, next offset 00000000000000000050\n"


@pytest.mark.parametrize("verb", [("read",), ("tail", "-n", "1"), ("bootstrap",)])
def test_binary_data_does_not_go_to_a_terminal(command, new_stream, verb):
    stream = new_stream("application/octet-stream")
    command("append", stream, stdin=b"\0\x1b[2J")
    with Terminal(command, verb[0], stream, *verb[1:]) as terminal:
        assert terminal.wait() == 1
        assert "binary data" in terminal.text
        assert "\x1b[2J" not in terminal.written


def test_errors_on_a_terminal_are_one_line(command):
    with Terminal(command, "read", "tests/missing", stdin=subprocess.DEVNULL) as terminal:
        assert terminal.wait() == 3
        assert terminal.text.count("\n") == 1
