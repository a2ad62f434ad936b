"""The entry point of `holdfast`: the commands, and how their errors end the process.

Commands are named by import path, so that each loads only what it needs.
"""

import inspect
import json as json_module
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from holdfast.cli.terminal import (
    EXIT_BROKEN_PIPE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    failure_line,
    give_up,
    say,
)
from holdfast.errors import HoldfastError, InvalidRequestError, SettingsError
from holdfast.version import __version__

app = App(
    name="holdfast",
    help="Durable, URL-addressable, append-only streams over plain HTTP.",
    version=f"holdfast {__version__}",
    result_action="return_value",
    help_format="plaintext",
    # The help texts explain defaults; the bare value often says little.
    default_parameter=Parameter(show_default=False),
)
_SERVER = Group("A server and its data", sort_key=1)
_STREAMS = Group("Streams", sort_key=2)
_MORE = Group("More", sort_key=3)
# Import path, name, help, and the group in which the help lists it.
_COMMANDS = (
    ("serve:serve", "serve", "Start the server.", _SERVER),
    ("config:config", "config", "Print the settings in effect.", _SERVER),
    ("token:commands", "token", "Create bearer tokens.", _SERVER),
    ("check:check", "check", "Check a data directory, or repair it.", _SERVER),
    ("backup:backup", "backup", "Back up a data directory.", _SERVER),
    ("restore:restore", "restore", "Restore a backup.", _SERVER),
    ("client.streams:create", "create", "Create a stream.", _STREAMS),
    ("client.append:append", "append", "Append messages: arguments, files, stdin.", _STREAMS),
    ("client.read:read", "read", "Print a stream from an offset on.", _STREAMS),
    ("client.read:tail", "tail", "Print the last messages, and follow.", _STREAMS),
    ("client.streams:info", "info", "Show a stream's metadata.", _STREAMS),
    ("client.streams:close", "close", "Close a stream.", _STREAMS),
    ("client.streams:delete", "delete", "Delete a stream and its data.", _STREAMS),
    ("client.streams:fork", "fork", "Create a stream from another one.", _STREAMS),
    ("client.buckets:ls", "ls", "List the streams of a bucket.", _STREAMS),
    ("client.buckets:bucket", "bucket", "Create, show, delete, watch buckets.", _STREAMS),
    ("client.streams:snapshot", "snapshot", "Publish, get, delete snapshots.", _STREAMS),
    ("client.streams:bootstrap", "bootstrap", "Print a snapshot and the messages since.", _STREAMS),
    ("proxy.commands:commands", "proxy", "Call upstreams, record their responses.", _STREAMS),
    ("top.command:top", "top", "Watch a server.", _MORE),
    ("bench.command:commands", "bench", "Measure a server.", _MORE),
    ("pipeline:commands", "pipeline", "Run jobs on Spark.", _MORE),
    ("client.context:context", "context", "Manage named servers.", _MORE),
    ("main:completion", "completion", "Print a shell completion script.", _MORE),
)
for _path, _name, _help, _group in _COMMANDS:
    app.command(f"holdfast.cli.{_path}", name=_name, help=_help, group=_group)


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    if sys.stderr is None:
        # print(file=None) would write to stdout.
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open until exit)
    if sys.stdout is None:
        return _fail(arguments, "usage", "stdout is closed", EXIT_FAILED)
    if isinstance(sys.stdout, TextIOWrapper):
        # Do not fail on characters that the locale cannot encode.
        sys.stdout.reconfigure(errors="backslashreplace")
    if list(arguments) == ["--version"]:
        # cyclopts would load rich to print it.
        print(app.version)
        return 0
    try:
        _check_text(arguments)
        _show_docstring(arguments)
        code = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except (SettingsError, InvalidRequestError) as error:
        return _fail(arguments, error.code, error.message, EXIT_USAGE)
    except UnusedCliTokensError as error:
        return _fail(arguments, "usage", _unused(error), EXIT_USAGE)
    except CycloptsError as error:
        return _fail(arguments, "usage", str(error), EXIT_USAGE)
    except HoldfastError as error:
        return _fail(arguments, error.code, error.message, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe.
        give_up(sys.stdout)
        return EXIT_BROKEN_PIPE
    except OSError as error:
        give_up(sys.stdout)
        # An error without a file name is about the output.
        what = error.filename or "stdout cannot be written"
        return _fail(arguments, HoldfastError.code, f"{what}: {error.strerror}.", EXIT_FAILED)
    return code if isinstance(code, int) else 0


def _check_text(arguments: Sequence[str]) -> None:
    for number, argument in enumerate(arguments, 1):
        if not argument.isprintable() and any("\ud800" <= each <= "\udfff" for each in argument):
            raise SettingsError(f"argument {number} is not UTF-8 text: {argument!a}")


def _show_docstring(arguments: Sequence[str]) -> None:
    """Let `holdfast COMMAND --help` show the docstring, of which the list has one short line."""
    if {"--help", "-h"} & set(arguments) and arguments[0] in app:
        command = app[arguments[0]]
        if command.default_command is not None:
            command.help = inspect.getdoc(command.default_command)


def _unused(error: UnusedCliTokensError) -> str:
    command = " ".join(["holdfast", *(error.command_chain or ())])
    return f"{command} takes no {' '.join(error.unused_tokens or ())!r} here; see {command} --help"


def _fail(arguments: Sequence[str], error_code: str, message: str, code: int) -> int:
    """Print the error, as JSON if the command was given --json, and return the exit code."""
    say(failure_line(error_code, message, as_json="--json" in arguments))
    return code


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="bash, zsh or fish.")],
    /,
    *,
    json: Annotated[bool, Parameter(negative="", help="Print one JSON document.")] = False,
) -> int:
    """Print a shell completion script.

    bash: holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
    zsh: holdfast completion zsh > a directory of $fpath, as _holdfast
    fish: holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    script = app.generate_completion(prog_name="holdfast", shell=shell)
    print(json_module.dumps({"shell": shell, "script": script}) if json else script)
    return 0


def run() -> None:
    sys.exit(main(sys.argv[1:]))
