"""Which server a command talks to and with what credentials, and how its errors end it.

The address is the first of `--url`, `--context`, HOLDFAST_URL, HOLDFAST_CONTEXT, the current
context, and the default. The token goes to that server only, even if a stream is named by the URL
of another one. Contexts are named servers in a file:

version = 1
current = "local"

[contexts.local]
url = "http://127.0.0.1:4437"

[contexts.prod]
url = "https://streams.example.com"
token_file = "/run/secrets/holdfast-token"
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Group, Parameter

from holdfast.cli.client.output import Output
from holdfast.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from holdfast.client import Bearer, Client, Retry
from holdfast.client.auth import tls_trusting
from holdfast.client.client import DEFAULT_URL
from holdfast.client.messages import LENGTH_PREFIXED
from holdfast.errors import (
    BadAnswerError,
    ConflictError,
    ForbiddenError,
    GoneError,
    HoldfastError,
    InvalidRequestError,
    NotFoundError,
    OutboundError,
    PipelineBusyError,
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
EXIT_BUSY: Final = 7

_EXITS: Final[list[tuple[tuple[type[HoldfastError], ...], int]]] = [
    ((NotFoundError, GoneError), EXIT_NOT_FOUND),
    ((ConflictError, PreconditionFailedError, ProducerFencedError), EXIT_CONFLICT),
    ((UnauthorizedError, ForbiddenError), EXIT_NOT_ALLOWED),
    (
        (OutboundError, UnavailableError, RateLimitedError, RequestTimeoutError, BadAnswerError),
        EXIT_UNREACHABLE,
    ),
    ((SettingsError, InvalidRequestError), EXIT_USAGE),
    ((PipelineBusyError,), EXIT_BUSY),
]
_GROUP: Final = Group("Server", sort_key=100)
CONTEXTS_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server and the credentials for it."""

    url: Annotated[str, msgspec.Meta(min_length=1)]
    token: str = ""
    token_file: str = ""
    ca_file: str = ""


def shown_url(url: str) -> str:
    """A server's URL without the credentials in it."""
    scheme, slashes, rest = url.partition("//")
    if not slashes:
        scheme, rest = "", url
    host, slash, path = rest.partition("/")
    return scheme + slashes + host.rpartition("@")[2] + slash + path


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """The contexts of the file, and the name of the current one."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """The context of this name; the error lists the known ones."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise SettingsError(
                f"there is no context {name!r}; known: {known}. "
                "Add one with: holdfast context add NAME URL"
            )
        return self.contexts[name]


def contexts_path(env: Mapping[str, str]) -> Path:
    """The file's path: HOLDFAST_CONTEXTS, or in the user's configuration directory."""
    if env.get("HOLDFAST_CONTEXTS"):
        return Path(env["HOLDFAST_CONTEXTS"])
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME", "~"), ".config")  # noqa: PTH118
    # Unlike Path.expanduser it does not fail without a home directory; then there is no file.
    return Path(os.path.expanduser(home)) / "holdfast" / "contexts.toml"  # noqa: PTH111


def load_contexts(path: Path) -> Contexts:
    """Read the contexts; a missing file holds none."""
    import tomllib  # noqa: PLC0415 (not needed with --url or HOLDFAST_URL)

    try:
        found = tomllib.loads(path.read_text("utf-8"))
        if found.pop("version", None) != CONTEXTS_VERSION:
            raise SettingsError(f"{path} needs `version = {CONTEXTS_VERSION}`")
        return msgspec.convert(found, Contexts)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (
        OSError,
        UnicodeDecodeError,
        tomllib.TOMLDecodeError,
        msgspec.ValidationError,
    ) as error:
        raise SettingsError(f"the contexts in {path} cannot be read: {error}") from None


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file, readable by its owner only since it may hold tokens."""
    lines = [f"version = {CONTEXTS_VERSION}", f"current = {_quote(contexts.current)}"]
    for name, context in sorted(contexts.contexts.items()):
        lines += ["", f"[contexts.{_quote(name)}]"]
        given = {key: value for key, value in msgspec.structs.asdict(context).items() if value}
        lines += [f"{key} = {_quote(value)}" for key, value in given.items()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        new.replace(path)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be written: {error.strerror}.") from None


def _quote(text: str) -> str:
    """A TOML string; it is written as in JSON, except for surrogates and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is not a valid name: use up to 64 letters, digits, '.', '_' and '-'"
        )


@dataclass(frozen=True)
class _Server:
    """The flags of every command that talks to a server."""

    url: Annotated[
        str | None, Parameter(help=f"Server URL. Or set HOLDFAST_URL. (default {DEFAULT_URL})")
    ] = None
    context: Annotated[
        str | None, Parameter(help="Named server, see `holdfast context`. Or HOLDFAST_CONTEXT.")
    ] = None
    token: Annotated[str | None, Parameter(help="Bearer token. Or set HOLDFAST_TOKEN.")] = None
    ca_file: Annotated[
        Path | None, Parameter(help="PEM certificates to trust besides the system's.")
    ] = None
    retries: Annotated[
        int, Parameter(help="Retries after network errors, 429 and 5xx. (default 5)")
    ] = 5
    json: Annotated[bool, Parameter(negative="", help="Print JSON, one document a line.")] = False
    quiet: Annotated[bool, Parameter(negative="", help="Print no notices on stderr.")] = False


Server = Annotated[_Server, Parameter(name="*", group=_GROUP)]
DEFAULT_SERVER: Final = _Server()
StreamName = Annotated[str, Parameter(help="Stream: BUCKET/ID, an ID alone, or a URL.")]


def resolve(server: _Server, env: Mapping[str, str]) -> Context:
    """The server that the flags and the environment name."""
    token = _sendable(server.token or env.get("HOLDFAST_TOKEN", ""))
    ca_file = str(server.ca_file or "")
    if server.url or (not server.context and env.get("HOLDFAST_URL")):
        return Context(server.url or env["HOLDFAST_URL"], token=token, ca_file=ca_file)
    known = load_contexts(contexts_path(env))
    name = server.context or env.get("HOLDFAST_CONTEXT") or known.current
    if not name:
        return Context(DEFAULT_URL, token=token, ca_file=ca_file)
    found = known.find(name)
    if not token and not found.token and found.token_file:
        token = _sendable(read_secret(found.token_file, "the token"))
    return Context(
        found.url, token=token or _sendable(found.token), ca_file=ca_file or found.ca_file
    )


def _sendable(token: str) -> str:
    """Check that a header can hold the token."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise SettingsError(
            "the token (--token, HOLDFAST_TOKEN or the context's) must be printable ASCII "
            "characters without spaces"
        )
    return token


def read_secret(file: str, what: str) -> str:
    """The content of a file, without white space around it."""
    try:
        return Path(file).expanduser().read_text("utf-8").strip()
    # RuntimeError: the home directory is unknown.
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise SettingsError(f"{what} in {file} cannot be read: {error}") from None


def connect(server: _Server, output: Output) -> Client:
    """A client of the server that the flags name; retries are reported as notices."""
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


def check_framing_flag(framing: str | None) -> None:
    if framing not in {None, LENGTH_PREFIXED}:
        raise SettingsError(f"--framing must be {LENGTH_PREFIXED}, not {framing!r}")


def client_command(function: Callable[..., Awaitable[int | None]]) -> Callable[..., int]:
    """Make a command of an async function whose first arguments are a client and an output.

    The command has the function's other parameters as its own, and the flags of a server.
    """
    signature = inspect.signature(function)
    flags = inspect.Parameter(
        "server", inspect.Parameter.KEYWORD_ONLY, default=DEFAULT_SERVER, annotation=Server
    )

    @wraps(function)
    def command(*arguments: Any, server: _Server = DEFAULT_SERVER, **options: Any) -> int:
        return run(server, lambda client, out: function(client, out, *arguments, **options))

    own = list(signature.parameters.values())[2:]
    command.__signature__ = signature.replace(parameters=[*own, flags])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in [*own, flags]}
    return command


def run(server: _Server, work: Callable[[Client, Output], Awaitable[int | None]]) -> int:
    """Run `work` with a client, and return the command's exit code."""
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
    for classes, code in _EXITS:
        if isinstance(error, classes):
            return code
    return EXIT_FAILED
