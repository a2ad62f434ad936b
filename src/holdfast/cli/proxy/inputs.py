"""The inputs of the proxy's commands: headers, bodies, credentials, signed URLs."""

from __future__ import annotations

import os
from typing import Annotated, Final
from urllib.parse import parse_qs, urlsplit

import msgspec
from cyclopts import Parameter

from holdfast.cli.client.connection import read_secret
from holdfast.cli.client.output import Output
from holdfast.cli.client.sources import STDIN, Sources
from holdfast.client.urls import is_url
from holdfast.errors import SettingsError
from holdfast.protocol.content import DEFAULT, JSON

VARIABLE: Final = "HOLDFAST_UPSTREAM_AUTHORIZATION"
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode

Headers = Annotated[
    list[str] | None,
    Parameter(
        name=["--header", "-H"],
        negative="",
        allow_leading_hyphen=True,
        help="`Name: value`, sent to the upstream. Repeatable.",
    ),
]
Data = Annotated[
    str | None,
    Parameter(
        name=["--data", "-d"],
        allow_leading_hyphen=True,
        help="Body: text, @FILE for the content of a file, or - for stdin.",
    ),
]
Authorization = Annotated[
    str | None,
    Parameter(
        help=f"Authorization header for the upstream, or @FILE with it. Or set {VARIABLE}.",
    ),
]
Ttl = Annotated[int | None, Parameter(help="Lifetime of the signed URL in seconds.")]
SessionId = Annotated[str | None, Parameter(help="Session id.")]
ResponseId = Annotated[int | None, Parameter(help="Number of the response in its stream.")]
SignedUrl = Annotated[
    str | None, Parameter(help="Signed URL of a stream, in quotes; or use --session.")
]


def parse_headers(lines: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines or ():
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise SettingsError(f"--header {line[:40]!r} must be 'Name: value'")
        if name.strip().lower() in {each.lower() for each in found}:
            raise SettingsError(f"--header {name.strip()} is given twice; join its values")
        if name.strip().lower() == "authorization":
            raise SettingsError(
                "Authorization is for the proxy: pass the upstream's with --upstream-authorization"
            )
        found[name.strip()] = value.strip()
    return found


def authorization_of(given: str | None) -> str | None:
    """The upstream's credentials from the flag, a file, or the environment."""
    value = given or os.environ.get(VARIABLE, "")
    if value.startswith("@"):
        value = read_secret(value[1:], "the upstream's authorization")
    if not (value.isascii() and value.isprintable()):
        raise SettingsError(
            f"the upstream's authorization (--upstream-authorization or {VARIABLE}) must be "
            "printable ASCII characters"
        )
    return value or None


class RequestBody:
    """The body of a request, which may come from a file or stdin."""

    def __init__(self, data: str | None) -> None:
        self.is_given = data is not None
        self._text = data or ""
        self._sources: Sources | None = None
        if data == STDIN:
            self._sources = Sources((), [STDIN], lines=False, framed=False)
        elif data is not None and data.startswith("@"):
            if data == "@":
                raise SettingsError("--data @ names no file; write @FILE, or - for stdin")
            self._sources = Sources((), [data[1:]], lines=False, framed=False)
        if self._sources is not None:
            self._sources.check()

    async def read(self, output: Output) -> bytes:
        if self._sources is None:
            return self._text.encode()
        self._sources.invite(output)
        return b"".join([piece async for piece in self._sources.messages(DEFAULT)])


def typed(headers: dict[str, str], body: bytes) -> dict[str, str]:
    """The headers with a content type if the body is JSON and they have none."""
    if not body or "content-type" in {name.lower() for name in headers}:
        return headers
    try:
        _check_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return headers
    return headers | {"Content-Type": JSON}


def check_ttl(ttl: int | None) -> None:
    if ttl is not None and ttl < 0:
        raise SettingsError("--ttl must be at least 0")


def check_stream(url: str | None, session: str | None, response_id: int | None) -> None:
    """Raise unless a stream is named by its signed URL or its session, and the id is valid."""
    if url is not None:
        check_signed_url(url)
    elif session is None:
        raise SettingsError("name the stream by its signed URL, or by its --session")
    if response_id is not None and response_id < 1:
        raise SettingsError("--response must be at least 1: responses count from 1")


def check_signed_url(url: str) -> None:
    if not is_url(url):
        raise SettingsError(
            f"{url[:40]!r} is not a signed URL; it starts with http:// or https://, as printed by "
            "`holdfast proxy request --no-follow` and `holdfast proxy connect`"
        )
    query = parse_qs(urlsplit(url).query)
    if "expires" in query and "signature" not in query:
        raise SettingsError("the URL has no signature: put it in quotes, because it contains an &")
