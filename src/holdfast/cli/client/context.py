"""Named servers in a file, so that no command has to repeat an address and a token.

version = 1
current = "local"

[contexts.local]
url = "http://127.0.0.1:4437"

[contexts.prod]
url = "https://streams.example.com"
token_file = "/run/secrets/holdfast-token"
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from holdfast.cli.client.output import Output
from holdfast.client.urls import parse_base
from holdfast.errors import HoldfastError, SettingsError

VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Context:
    """A server, and who calls it."""

    url: str
    token: str = ""
    token_file: str = ""
    ca_file: str = ""


def shown_url(url: str) -> str:
    """A server's URL without the user and password that may be in it."""
    scheme, slashes, rest = url.partition("//")
    if not slashes:
        scheme, rest = "", url
    place, slash, path = rest.partition("/")
    return scheme + slashes + place.rpartition("@")[2] + slash + path


@dataclass(slots=True)
class Contexts:
    """All that are known, and the one in use."""

    current: str = ""
    contexts: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        """The context of this name, or an error that says which there are."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise SettingsError(
                f"there is no context {name!r}; known: {known}. "
                "Add one with: holdfast context add NAME URL"
            )
        return self.contexts[name]


def contexts_path(env: Mapping[str, str]) -> Path:
    """Where the file is: HOLDFAST_CONTEXTS, or with the user's other configuration."""
    if env.get("HOLDFAST_CONTEXTS"):
        return Path(env["HOLDFAST_CONTEXTS"])
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME", "~"), ".config")  # noqa: PTH118
    # Unlike that of Path, it leaves the tilde of somebody who has no home: then there is no file.
    return Path(os.path.expanduser(home)) / "holdfast" / "contexts.toml"  # noqa: PTH111


def load_contexts(path: Path) -> Contexts:
    """What the file says; nothing if there is none."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"the contexts in {path} cannot be read: {error}") from None
    if found.get("version") != VERSION:
        raise SettingsError(f"{path} needs `version = {VERSION}`")
    unknown = set(found) - {"version", "current", "contexts"}
    if unknown:
        raise SettingsError(f"{path} has unknown keys: {', '.join(sorted(unknown))}")
    current, entries = found.get("current", ""), found.get("contexts", {})
    if not isinstance(current, str) or not isinstance(entries, dict):
        raise SettingsError(f"in {path} `current` must be a text, and `contexts` a table")
    return Contexts(current, {name: _parse(path, name, each) for name, each in entries.items()})


def _parse(path: Path, name: str, entry: Any) -> Context:
    known = {each.name for each in fields(Context)}
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise SettingsError(f"the context {name!r} in {path} must be a table of texts")
    if set(entry) - known or not entry.get("url"):
        raise SettingsError(
            f"the context {name!r} in {path} needs a url, and may have {', '.join(sorted(known))}"
        )
    return Context(**entry)


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Write the file anew, for its owner's eyes only, since it may hold tokens."""
    lines = [f"version = {VERSION}", f"current = {_quote(contexts.current)}"]
    for name, context in sorted(contexts.contexts.items()):
        lines += ["", f"[contexts.{_quote(name)}]"]
        given = {key: value for key, value in asdict(context).items() if value}
        lines += [f"{key} = {_quote(value)}" for key, value in given.items()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".new")
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        beside.replace(path)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be written: {error.strerror}.") from None


def _quote(text: str) -> str:
    """A text of TOML, which writes it as JSON does, but for surrogates and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_name(name: str) -> None:
    """Raise unless this can name a context."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} cannot name a context: use up to 64 letters, digits, '.', '_' and '-'"
        )


context = App(name="context", help="Name servers, and choose one.", help_format="plaintext")
Name = Annotated[str, Parameter(help="Name of the context.")]
AsJson = Annotated[bool, Parameter(negative="", help="Print JSON, one document a line.")]


@context.command
def add(
    name: Name,
    url: Annotated[str, Parameter(help="The server's URL.")],
    /,
    *,
    token: Annotated[str, Parameter(help="Bearer token to keep in the file.")] = "",
    token_file: Annotated[str, Parameter(help="File to read the token from, each time.")] = "",
    ca_file: Annotated[str, Parameter(help="Certificates to trust, PEM.")] = "",
    use: Annotated[bool, Parameter(negative="", help="Use it from now on.")] = False,
    json: AsJson = False,
) -> int:
    """Add a server under a name, or change it; the first one is used from then on."""
    check_name(name)
    parse_base(url)
    path = contexts_path(os.environ)
    known = load_contexts(path)
    known.contexts[name] = Context(url, token, token_file, ca_file)
    if use or not known.current:
        known.current = name
    save_contexts(path, known)
    _output(json).say(
        {"context": name, "url": shown_url(url), "current": known.current == name},
        f"{name} is {shown_url(url)}" + (", and in use" if known.current == name else ""),
    )
    return 0


@context.command
def use(name: Name, /, *, json: AsJson = False) -> int:
    """Use a server from now on."""
    path = contexts_path(os.environ)
    known = load_contexts(path)
    found = known.find(name)
    known.current = name
    save_contexts(path, known)
    url = shown_url(found.url)
    _output(json).say({"context": name, "url": url, "current": True}, f"using {url}")
    return 0


@context.command(name="list")
def list_(*, json: AsJson = False) -> int:
    """List the servers; a star marks the one in use. Tokens are not shown."""
    known = load_contexts(contexts_path(os.environ))
    output = _output(json)
    for name, found in sorted(known.contexts.items()):
        is_current, url = name == known.current, shown_url(found.url)
        output.show(
            {"context": name, "url": url, "current": is_current},
            f"{'*' if is_current else ' '} {name:16} {url}",
        )
    if not known.contexts:
        output.notice("There are none. Add one with: holdfast context add NAME URL")
    return 0


@context.command
def remove(name: Name, /, *, json: AsJson = False) -> int:
    """Forget a server."""
    path = contexts_path(os.environ)
    known = load_contexts(path)
    known.find(name)
    del known.contexts[name]
    if known.current == name:
        known.current = ""
    save_contexts(path, known)
    _output(json).say({"context": name, "removed": True}, f"forgot {name}")
    return 0


def _output(as_json: bool) -> Output:
    return Output(as_json=as_json, quiet=False)
