"""`holdfast token`: create bearer tokens for the file named by `access.tokens_file`."""

import os
from datetime import UTC, datetime, timedelta
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from holdfast.cli.terminal import say
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError
from holdfast.http.access.scopes import parse_scopes
from holdfast.http.access.tokens import check_name, new_token, parse_tokens_file, token_entry

commands = App(name="token", help="Create bearer tokens.", help_format="plaintext")


@commands.command
def create(
    *,
    name: Annotated[str, Parameter(help="Owner of the token; shown in logs and errors.")],
    scope: Annotated[
        list[str],
        Parameter(
            help="What it allows, such as read:demo, write:demo/logs-* or admin:*. Repeatable.",
            negative="",
        ),
    ],
    days: Annotated[float | None, Parameter(help="Days until it expires. (default never)")] = None,
    file: Annotated[
        Path | None, Parameter(help="Tokens file to add the entry to; created if missing.")
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="Print one JSON document.")] = False,
) -> int:
    """Create a token and print it this once: only its hash is stored.

    Prints the token and the entry for the tokens file; with --file only the token.
    """
    clock = SystemClock()
    try:
        check_name(name)
        scopes = [str(each) for each in parse_scopes(scope)]
        expires_at = _expiry(clock, days)
    except ValueError as error:
        raise SettingsError(f"{error}") from None
    token = new_token(clock)
    entry = token_entry(name, token, scopes, expires_at)
    if file is not None:
        _add(file, entry)
    if json:
        document = {"token": token, "name": name, "scopes": scopes, "entry": entry}
        print(dumps(document, ensure_ascii=False))
    else:
        print(token)
    if file is None:
        if not json:
            print(f"\n{entry}", end="")
        say("Add the entry to your tokens file (access.tokens_file), and keep the token safe:")
    else:
        say(f"The entry is in {file}. Keep the token safe:")
    say("it is not stored anywhere and cannot be shown again.")
    return 0


def _expiry(clock: SystemClock, days: float | None) -> datetime | None:
    if days is None:
        return None
    if not 0 < days <= 36_500:
        raise ValueError("--days must be greater than 0 and at most 36500")
    now = datetime.fromtimestamp(clock.now_ms() // 1000, tz=UTC)
    return (now + timedelta(days=days)).replace(microsecond=0)


def _add(file: Path, entry: str) -> None:
    """Add an entry to a valid file. A new file is readable by its owner only."""
    try:
        before = file.read_bytes() if file.exists() else b""
        added = (b"\n" if before else b"") + entry.encode()
        if before and not before.endswith(b"\n"):
            added = b"\n" + added
        parse_tokens_file(before + added)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(added)
    except OSError as error:
        raise HoldfastError(f"{file} cannot be written: {error.strerror}.") from None
    except ValueError as error:
        raise HoldfastError(f"{file} cannot hold this token: {error}.") from None
