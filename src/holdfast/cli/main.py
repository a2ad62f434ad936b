"""The entry point: which commands there are, and how their errors end the process.

Commands are named by import path, so that `holdfast --version` does not load a server.
"""

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter

from holdfast import __version__
from holdfast.errors import HoldfastError, SettingsError

__all__ = ["app", "main", "run"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

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
    ("client.context:context", "context", "Name servers, and choose one.", _MORE),
    ("completion:completion", "completion", "Print a shell's completion script.", _MORE),
)
for _place, _name, _help, _group in _COMMANDS:
    app.command(f"holdfast.cli.{_place}", name=_name, help=_help, group=_group)


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the process's exit code."""
    try:
        code = app(arguments, exit_on_error=False, print_error=False)
    except SettingsError as error:
        return _fail(error.message, EXIT_USAGE)
    except CycloptsError as error:
        return _fail(str(error), EXIT_USAGE)
    except HoldfastError as error:
        return _fail(error.message, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    """Say what went wrong in one line, whatever the message contains."""
    print("holdfast:", " ".join(message.split()), file=sys.stderr)
    return code


def run() -> None:
    """Run the command line of this process and exit."""
    sys.exit(main(sys.argv[1:]))
