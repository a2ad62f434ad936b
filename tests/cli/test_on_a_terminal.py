"""What commands do differently where somebody watches."""

import os
import subprocess

import pytest

from tests.cli.holdfast_command import HOLDFAST
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal
from tests.thorough import some_of

ESCAPE = "\x1b["


def on_terminal(command, *arguments, **streams):
    """A command on a terminal of its own."""
    options = {"env": dict(command.env), "cwd": command.home}
    return Terminal([HOLDFAST, *arguments], options=options, streams=streams)


def test_help_fits_the_terminal_and_has_colours(command):
    with on_terminal(command, "append", "--help") as terminal:
        assert terminal.end() == 0
        assert ESCAPE in terminal.written
        assert "--producer" in terminal.plain
        assert max(map(len, terminal.plain.splitlines())) <= 80


def test_no_color_is_respected(command):
    with on_terminal(command.with_env(NO_COLOR="1"), "read", "--help") as terminal:
        assert terminal.end() == 0
        assert f"{ESCAPE}3" not in terminal.written


def test_no_colours_in_a_pipe(command):
    assert ESCAPE not in command("--help")


def test_every_help_fits_80_columns(command):
    assert max(map(len, command.with_env(COLUMNS="80")("--help").splitlines())) <= 80


@pytest.mark.parametrize("arguments", some_of([("tail", "-f"), ("read", "-f")], 1))
def test_ctrl_c_ends_what_follows(command, new_stream, arguments):
    stream = new_stream()
    command("append", stream, "no line break")
    with on_terminal(command, arguments[0], stream, *arguments[1:]) as terminal:
        terminal.wait_for("no line break")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        # The shell's prompt starts on a line of its own.
        assert terminal.plain.endswith("\n")
        assert "Traceback" not in terminal.plain


def test_typing_messages(command, new_stream):
    stream = new_stream()
    with on_terminal(command, "append", stream, "--lines") as terminal:
        terminal.wait_for("Reading from the terminal; end with Ctrl-D.")
        terminal.type(b"hello\n" + CTRL_D)
        assert terminal.end() == 0
        assert "appended 1 message " in terminal.plain
    assert command("read", stream) == "hello\n"


@pytest.mark.slow
def test_nothing_is_drawn_over_what_is_typed(command, new_stream):
    stream = new_stream()
    with on_terminal(command, "append", stream) as terminal:
        terminal.wait_for("Ctrl-D")
        terminal.type(b"hello\n" + CTRL_D)
        assert terminal.end() == 0
        assert ESCAPE not in terminal.written
    with on_terminal(command, "append", stream, "an argument") as terminal:
        assert terminal.end() == 0
        assert terminal.plain.startswith("appended 1 message ")


@pytest.mark.parametrize("verb", some_of([("append",), ("snapshot", "publish")], 1))
def test_ctrl_c_ends_typing(command, new_stream, verb):
    stream = new_stream()
    rest = ("--lines",) if verb == ("append",) else ("0" * 20,)
    with on_terminal(command, *verb, stream, *rest) as terminal:
        terminal.wait_for("Ctrl-D")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.plain


def test_a_long_append_shows_how_far_it_is(command, new_stream):
    stream = new_stream()
    (command.home / "input").write_text("line\n" * 300)
    with on_terminal(command, "append", stream, "--lines", "--file", "input") as terminal:
        assert terminal.end() == 0
        assert "appending" in terminal.plain
        assert terminal.plain.rstrip().endswith(f"to {stream}, next offset 00000000000000001500")


@pytest.mark.slow
def test_a_read_into_a_file_shows_how_far_it_is(command, new_stream):
    stream = new_stream()
    command("append", stream, "line\n" * 1000)
    path = command.home / "output"
    with (
        path.open("wb") as file,
        on_terminal(command, "read", stream, stdout=file.fileno()) as terminal,
    ):
        assert terminal.end() == 0
        assert "reading" in terminal.plain
    assert path.read_text() == "line\n" * 1000


@pytest.mark.slow
def test_no_bar_where_the_data_goes_on_through_a_pipe(command, new_stream):
    stream = new_stream()
    command("append", stream, "line\n")
    reader, writer = os.pipe()
    with on_terminal(command, "read", stream, stdout=writer) as terminal:
        os.close(writer)
        assert terminal.end() == 0
        assert terminal.plain == "next offset 00000000000000000005\n"
    assert os.read(reader, 100) == b"line\n"
    os.close(reader)


def test_no_bar_where_nobody_watches(command, new_stream):
    stream = new_stream()
    (command.home / "input").write_text("line\n" * 10)
    done = command.run("append", stream, "--lines", "--file", "input")
    assert done.stderr == f"appended 10 messages to {stream}, next offset 00000000000000000050\n"


@pytest.mark.parametrize("verb", some_of([("read",), ("tail", "-n", "1"), ("bootstrap",)], 1))
def test_binary_data_does_not_go_to_a_terminal(command, new_stream, verb):
    stream = new_stream("application/octet-stream")
    command("append", stream, stdin=b"\0\x1b[2J")
    with on_terminal(command, verb[0], stream, *verb[1:]) as terminal:
        assert terminal.end() == 1
        assert "binary data" in terminal.plain
        assert "\x1b[2J" not in terminal.written


def test_a_terminal_does_not_obey_the_names_of_streams(command):
    command("create", "odd-names/a\x1b[2J\nb")
    for verb in (
        ("ls", "odd-names"),
        ("ls", "odd-names", "-l"),
        ("bucket", "changes", "odd-names"),
    ):
        with on_terminal(command, *verb) as terminal:
            assert terminal.end() == 0
            assert "a?[2J?b" in terminal.plain
    assert command("ls", "odd-names") == "a\x1b[2J\nb\n"


def test_errors_on_a_terminal_are_one_line(command):
    with on_terminal(command, "read", "tests/missing", stdin=subprocess.DEVNULL) as terminal:
        assert terminal.end() == 3
        assert terminal.plain.count("\n") == 1
