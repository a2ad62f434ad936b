"""The entry point: which commands there are, and how their errors end the process.

Commands are named by import path, so that `holdfast --version` does not load a server.
"""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from holdfast.cli.failures import (
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

__all__ = ["app", "main", "run"]

app = App(
    name="holdfast",
    help="Durable, URL-addressable, append-only streams over plain HTTP.",
    version=f"holdfast {__version__}",
    result_action="return_value",
    help_format="plaintext",
    # The help says what a default means; the value alone often does not.
    default_parameter=Parameter(show_default=False),
)
_SERVER = Group("A server and its data", sort_key=1)
_STREAMS = Group("Streams", sort_key=2)
_MORE = Group("More", sort_key=3)
# Where a command is, its name, what it does, and where the help lists it.
_COMMANDS = (
    ("serve:serve", "serve", "Start the server.", _SERVER),
    ("config:config", "config", "Print the settings in effect.", _SERVER),
    ("token:commands", "token", "Make bearer tokens.", _SERVER),
    ("check:check", "check", "Check a data directory, or repair it.", _SERVER),
    ("backup:backup", "backup", "Copy a data directory to a place.", _SERVER),
    ("restore:restore", "restore", "Turn a backup into data again.", _SERVER),
    ("client.streams:create", "create", "Create a stream.", _STREAMS),
    ("client.append:append", "append", "Append messages: arguments, files, stdin.", _STREAMS),
    ("client.read:read", "read", "Print a stream from an offset on.", _STREAMS),
    ("client.read:tail", "tail", "Print the last messages, and those that come.", _STREAMS),
    ("client.streams:info", "info", "Show what is known of a stream.", _STREAMS),
    ("client.streams:close", "close", "Close a stream.", _STREAMS),
    ("client.streams:delete", "delete", "Delete a stream and its data.", _STREAMS),
    ("client.streams:fork", "fork", "Create a stream from another one.", _STREAMS),
    ("client.buckets:ls", "ls", "List the streams of a bucket.", _STREAMS),
    ("client.buckets:bucket", "bucket", "Create, show, delete, watch buckets.", _STREAMS),
    ("client.snapshots:snapshot", "snapshot", "Publish, get, delete snapshots.", _STREAMS),
    ("client.snapshots:bootstrap", "bootstrap", "Print a snapshot and what came since.", _STREAMS),
    ("proxy.command:commands", "proxy", "Call upstreams, and keep their responses.", _STREAMS),
    ("client.top:top", "top", "Watch a server.", _MORE),
    ("bench.command:commands", "bench", "Measure a server.", _MORE),
    ("pipeline:commands", "pipeline", "Run jobs on Spark.", _MORE),
    ("client.context:context", "context", "Name servers, and choose one.", _MORE),
    ("completion:completion", "completion", "Print a shell's completion script.", _MORE),
)
for _place, _name, _help, _group in _COMMANDS:
    app.command(f"holdfast.cli.{_place}", name=_name, help=_help, group=_group)


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the process's exit code."""
    if sys.stderr is None:
        # What is printed to no file at all would go to stdout.
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the end)
    if sys.stdout is None:
        return _fail(arguments, "usage", "stdout is closed", EXIT_FAILED)
    if isinstance(sys.stdout, TextIOWrapper):
        # A character that the locale does not have is no reason to fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _check_text(arguments)
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
        # Whoever read our output has seen enough.
        give_up(sys.stdout)
        return EXIT_BROKEN_PIPE
    except OSError as error:
        give_up(sys.stdout)
        # Files have names; what is written to without one is the output.
        what = error.filename or "stdout cannot be written"
        return _fail(arguments, HoldfastError.code, f"{what}: {error.strerror}.", EXIT_FAILED)
    return code if isinstance(code, int) else 0


def _check_text(arguments: Sequence[str]) -> None:
    for number, argument in enumerate(arguments, 1):
        if not argument.isprintable() and any("\ud800" <= each <= "\udfff" for each in argument):
            raise SettingsError(f"argument {number} is not UTF-8 text: {argument!a}")


def _unused(error: UnusedCliTokensError) -> str:
    command = " ".join(["holdfast", *(error.command_chain or ())])
    return f"{command} takes no {' '.join(error.unused_tokens or ())!r} here; see {command} --help"


def _fail(arguments: Sequence[str], error_code: str, message: str, code: int) -> int:
    """Say what went wrong, to programs as they asked for it."""
    say(failure_line(error_code, message, as_json="--json" in arguments))
    return code


def run() -> None:
    """Run the command line of this process and exit."""
    sys.exit(main(sys.argv[1:]))
