"""Which server is measured: its address, what to send with each request, how to connect to it."""

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from holdfast.errors import HoldfastError, SettingsError

__all__ = ["Target", "connect", "failure_kind", "resolve_target", "unreachable"]

CONNECT_TIMEOUT_S = 10.0

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class Target(Struct, frozen=True):
    """A server: where it listens, and the path that its surface starts with."""

    host: str
    port: int
    tls: bool
    base_path: str
    token: str | None
    ca_file: str = ""
    """Certificates to trust besides the system's."""

    @property
    def url(self) -> str:
        """The address as one would write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base_path}"

    def head(self, method: str, path: str) -> bytes:
        """The start of a request, up to its own headers; the path is percent-encoded already."""
        authority = f"[{self.host}]" if ":" in self.host else self.host
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        return (
            f"{method} {self.base_path}{path} HTTP/1.1\r\n"
            f"Host: {authority}:{self.port}\r\n"
            f"User-Agent: holdfast-bench\r\n{token}"
        ).encode()

    def tls_context(self) -> ssl.SSLContext | None:
        """What connections to it are secured with; None for plain ones."""
        if not self.tls:
            return None
        # Brings a whole HTTP client with it, so only where it is needed.
        from holdfast.net.outbound import tls_context  # noqa: PLC0415

        context = tls_context()
        if self.ca_file:
            context.load_verify_locations(self.ca_file)
        return context


def resolve_target(
    url: str | None,
    token: str | None,
    context_name: str | None = None,
    ca_file: Path | None = None,
) -> Target:
    """Find the server that a command is about, as every other command does."""
    # Brings the client with it, which the load processes have no use for.
    from holdfast.cli.client.connection import DEFAULT_SERVER, resolve  # noqa: PLC0415
    from holdfast.client.auth import tls_trusting  # noqa: PLC0415

    server = replace(DEFAULT_SERVER, url=url, token=token, context=context_name, ca_file=ca_file)
    context = resolve(server, os.environ)
    # What is wrong with the file is said here, before there are processes that read it.
    tls_trusting(context.ca_file)
    parts = _split(context.url)
    tls = parts.scheme == "https"
    return Target(
        host=parts.hostname or "",
        port=parts.port or (443 if tls else 80),
        tls=tls,
        base_path=parts.path.rstrip("/"),
        token=context.token or None,
        ca_file=context.ca_file,
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isascii():
        raise SettingsError(f"--url: expected http://HOST:PORT or https://HOST:PORT, got {url!r}")
    if parts.query or parts.fragment or parts.username is not None:
        raise SettingsError("--url: a query, a fragment or a user name has no place in it")
    return parts


async def connect(
    target: Target, context: ssl.SSLContext | None, make: Callable[[], ProtocolT]
) -> ProtocolT:
    """Open one connection. What goes wrong is an OSError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        _, protocol = await loop.create_connection(make, target.host, target.port, ssl=context)
    return protocol


def failure_kind(error: BaseException | None) -> str:
    """Name what happened to a connection, in a word that results can be counted by."""
    match error:
        case None:
            return "connection_closed"
        case TimeoutError():
            return "timeout"
        case ConnectionRefusedError():
            return "connection_refused"
        case ConnectionResetError() | BrokenPipeError():
            return "connection_reset"
        case ssl.SSLError():
            return "tls_failed"
        case _:
            return "connection_failed"


def unreachable(target: Target, error: OSError) -> HoldfastError:
    """The sentence for a server that cannot be talked to at all."""
    match error:
        case TimeoutError():
            why = "it does not answer"
        case ConnectionRefusedError():
            why = "nothing listens there"
        case ssl.SSLCertVerificationError():
            why = f"its certificate is not accepted: {error.verify_message}"
        case _:
            why = (error.strerror or str(error) or type(error).__name__).lower()
    return HoldfastError(f"{target.url} cannot be reached: {why}.")
