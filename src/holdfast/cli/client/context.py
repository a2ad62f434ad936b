"""`holdfast context`: manage named servers."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import App, Parameter

from holdfast.cli.client.connection import (
    Context,
    check_name,
    contexts_path,
    load_contexts,
    save_contexts,
    shown_url,
)
from holdfast.cli.client.output import Output
from holdfast.client.urls import parse_base

context = App(name="context", help="Manage named servers.", help_format="plaintext")
Name = Annotated[str, Parameter(help="Name of the context.")]
AsJson = Annotated[bool, Parameter(negative="", help="Print JSON, one document a line.")]


@context.command
def add(
    name: Name,
    url: Annotated[str, Parameter(help="The server's URL.")],
    /,
    *,
    token: Annotated[str, Parameter(help="Bearer token to store in the file.")] = "",
    token_file: Annotated[str, Parameter(help="File to read the token from at each use.")] = "",
    ca_file: Annotated[str, Parameter(help="PEM certificates to trust besides the system's.")] = "",
    use: Annotated[bool, Parameter(negative="", help="Make it the current context.")] = False,
    json: AsJson = False,
) -> int:
    """Add or change a named server; the first one becomes current."""
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
        f"{name} is {shown_url(url)}" + (", and current" if known.current == name else ""),
    )
    return 0


@context.command
def use(name: Name, /, *, json: AsJson = False) -> int:
    """Make a named server the current one."""
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
    """List the named servers; a star marks the current one. Tokens are not shown."""
    known = load_contexts(contexts_path(os.environ))
    output = _output(json)
    for name, found in sorted(known.contexts.items()):
        is_current, url = name == known.current, shown_url(found.url)
        output.show(
            {"context": name, "url": url, "current": is_current},
            f"{'*' if is_current else ' '} {name:16} {url}",
        )
    if not known.contexts:
        output.notice("There are no contexts. Add one with: holdfast context add NAME URL")
    return 0


@context.command
def remove(name: Name, /, *, json: AsJson = False) -> int:
    """Remove a named server."""
    path = contexts_path(os.environ)
    known = load_contexts(path)
    known.find(name)
    del known.contexts[name]
    if known.current == name:
        known.current = ""
    save_contexts(path, known)
    _output(json).say({"context": name, "removed": True}, f"removed {name}")
    return 0


def _output(as_json: bool) -> Output:
    return Output(as_json=as_json, quiet=False)
