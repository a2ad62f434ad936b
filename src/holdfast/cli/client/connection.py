"""Which server a command talks to, as whom, and how its errors end it.

The address comes from `--url`, `--context`, HOLDFAST_URL, HOLDFAST_CONTEXT, the current context, or
is the default; the first that is there. The token goes to that server only, even if a stream is
named by the URL of another one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Group, Parameter

from holdfast.cli.client.context import Context, contexts_path, load_contexts
from holdfast.cli.client.output import Output
from holdfast.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from holdfast.client import Bearer, Client, Retry
from holdfast.client.auth import tls_trusting
from holdfast.client.client import DEFAULT_URL
from holdfast.errors import (
    BadAnswerError,
    ConflictError,
    ForbiddenError,
    GoneError,
    HoldfastError,
    InvalidRequestError,
    NotFoundError,
    OutboundError,
    PreconditionFailedError,
    ProducerFencedError,
    RateLimitedError,
    RequestTimeoutError,
    SettingsError,
    UnauthorizedError,
    UnavailableError,
)

EXIT_NOT_FOUND: Final = 3
EXIT_CONFLICT: Final = 4
EXIT_NOT_ALLOWED: Final = 5
EXIT_UNREACHABLE: Final = 6

_EXITS: Final[list[tuple[tuple[type[HoldfastError], ...], int]]] = [
    ((NotFoundError, GoneError), EXIT_NOT_FOUND),
    ((ConflictError, PreconditionFailedError, ProducerFencedError), EXIT_CONFLICT),
    ((UnauthorizedError, ForbiddenError), EXIT_NOT_ALLOWED),
    (
        (OutboundError, UnavailableError, RateLimitedError, RequestTimeoutError, BadAnswerError),
        EXIT_UNREACHABLE,
    ),
    ((SettingsError, InvalidRequestError), EXIT_USAGE),
]
_GROUP: Final = Group("Server", sort_key=100)


@dataclass(frozen=True)
class _Server:
    """The flags of every command that talks to a server."""

    url: Annotated[
        str | None, Parameter(help=f"Server. Also by HOLDFAST_URL. (default {DEFAULT_URL})")
    ] = None
    context: Annotated[
        str | None, Parameter(help="Named server, see `holdfast context`. Or HOLDFAST_CONTEXT.")
    ] = None
    token: Annotated[str | None, Parameter(help="Bearer token. Also by HOLDFAST_TOKEN.")] = None
    ca_file: Annotated[
        Path | None, Parameter(help="Certificates to trust besides the system's, PEM.")
    ] = None
    retries: Annotated[
        int, Parameter(help="Times to try again after network errors, 429 and 5xx. (default 5)")
    ] = 5
    json: Annotated[bool, Parameter(negative="", help="Print JSON, one document a line.")] = False
    quiet: Annotated[bool, Parameter(negative="", help="No notices on stderr.")] = False


Server = Annotated[_Server, Parameter(name="*", group=_GROUP)]
DEFAULT_SERVER: Final = _Server()


def resolve(server: _Server, env: Mapping[str, str]) -> Context:
    """The server that is meant."""
    token = _sendable(server.token or env.get("HOLDFAST_TOKEN", ""))
    ca_file = str(server.ca_file or "")
    if server.url or (not server.context and env.get("HOLDFAST_URL")):
        return Context(server.url or env["HOLDFAST_URL"], token=token, ca_file=ca_file)
    known = load_contexts(contexts_path(env))
    name = server.context or env.get("HOLDFAST_CONTEXT") or known.current
    if not name:
        return Context(DEFAULT_URL, token=token, ca_file=ca_file)
    found = known.find(name)
    return Context(
        found.url,
        token=token or _sendable(found.token or _token_in(found.token_file)),
        ca_file=ca_file or found.ca_file,
    )


def _sendable(token: str) -> str:
    """A token that a header can hold."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise SettingsError(
            "the token (--token, HOLDFAST_TOKEN or the context's) must be printable ASCII "
            "characters without spaces"
        )
    return token


def _token_in(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).expanduser().read_text().strip()
    # RuntimeError: there is no such user, or no home.
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise SettingsError(f"the token in {file} cannot be read: {error}") from None


def connect(server: _Server, output: Output) -> Client:
    """A client of the server that is meant; what goes wrong on the way is a notice."""
    context = resolve(server, os.environ)
    if not 0 <= server.retries <= 1000:
        raise SettingsError("--retries must be a number from 0 to 1000")
    return Client(
        context.url,
        auth=Bearer(context.token) if context.token else None,
        retry=Retry(attempts=server.retries + 1),
        on_retry=output.retries.note,
        tls=tls_trusting(context.ca_file),
    )


def run(server: _Server, work: Callable[[Client, Output], Awaitable[int | None]]) -> int:
    """Do something with a client, and return the exit code that says how it went."""
    output = Output(as_json=server.json, quiet=server.quiet)

    async def with_client() -> int | None:
        async with connect(server, output) as client:
            return await work(client, output)

    try:
        code = asyncio.run(with_client())
        output.flush()
    except HoldfastError as error:
        code = exit_code(error)
        if code == EXIT_UNREACHABLE:
            error.message += output.retries.summary()
        output.failure(error)
        return code
    except KeyboardInterrupt:
        output.end_line()
        return EXIT_INTERRUPTED
    return code or 0


def exit_code(error: HoldfastError) -> int:
    """The exit code of a command that an error ended."""
    for classes, code in _EXITS:
        if isinstance(error, classes):
            return code
    return EXIT_FAILED
