"""The entry point: which commands there are, and how their errors end the process.

Commands are named by import path, so that `holdfast --version` does not load a server.
"""

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from holdfast import __version__
from holdfast.errors import HoldfastError, SettingsError

__all__ = ["app", "main", "run"]

EXIT_FAILED = 1
EXIT_USAGE = 2

app = App(
    name="holdfast",
    help="Durable, URL-addressable, append-only streams over plain HTTP.",
    version=f"holdfast {__version__}",
    result_action="return_value",
    help_format="plaintext",
)
app.command("holdfast.cli.serve:serve", name="serve", help="Start the server.")
app.command("holdfast.cli.check:check", name="check", help="Check a data directory, or repair it.")
app.command("holdfast.cli.config:config", name="config", help="Print the settings in effect.")
app.command("holdfast.cli.backup:backup", name="backup", help="Copy a data directory to a place.")
app.command("holdfast.cli.restore:restore", name="restore", help="Turn a backup into data again.")
app.command("holdfast.cli.token:commands", name="token", help="Make bearer tokens.")


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
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    """Say what went wrong in one line, whatever the message contains."""
    print("holdfast:", " ".join(message.split()), file=sys.stderr)
    return code


def run() -> None:
    """Run the command line of this process and exit."""
    sys.exit(main(sys.argv[1:]))
