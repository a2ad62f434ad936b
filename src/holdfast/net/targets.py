"""Which URLs this server may call.

Rules:

- `https`, to hosts all of whose addresses are public. Nothing else, unless a pattern names it.
- A pattern is `SCHEME://HOST[:PORT]`; `patterns.py` says more.
- `http` needs a pattern that names the host as the URL spells it: a name, or an address.
- A pattern with a name admits private and loopback addresses behind that name. Link-local addresses
  (where clouds keep their metadata) need a pattern that names the address or its range.
- An `https` pattern with an address or a range holds for names that lead there, too. An `http` one
  holds for URLs that spell the address.
- A URL is checked twice: its text by `check_url`, and each address, when it is connected to, by
  `check_address`. The second check is the one that counts: a name can change its address at will.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, Protocol
from urllib.parse import urlsplit

from holdfast.errors import OutboundRefusedError
from holdfast.net.addresses import INSIDE, Address, Kind, kind_of, parse_address
from holdfast.net.patterns import NAME, NUMERIC, PORTS, parse_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable

URL_BYTES_MAX: Final = 4096
_AUTHORITY: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:]+)(?::\d*)?")


@dataclass(frozen=True, slots=True)
class Target:
    """The part of a URL that the policy is about; `host` is lower-case, without brackets."""

    scheme: Literal["http", "https"]
    host: str
    port: int

    def __str__(self) -> str:
        """`scheme://host:port`: all of a URL that may be written down, since paths hold secrets."""
        return f"{self.scheme}://{self._bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """What the Host header says: the port only where it is not the scheme's own."""
        is_usual = self.port == PORTS[self.scheme]
        return self._bracketed if is_usual else f"{self._bracketed}:{self.port}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


class Policy(Protocol):
    """What decides whether a URL may be called, and an address connected to."""

    def check_url(self, url: str) -> Target:
        """The URL's target, or OutboundRefusedError."""

    def check_address(self, host: str, port: int, address: str) -> None:
        """Raise OutboundRefusedError if `address` must not be connected to."""


class AnyTarget:
    """For a client: it calls what its user names, wherever that is."""

    def check_url(self, url: str) -> Target:
        """The URL's target; any will do that is well-formed."""
        return parse_target(url)

    def check_address(self, host: str, port: int, address: str) -> None:
        """Any address will do."""


class TargetPolicy:
    """What may be called: public hosts over `https`, and what the patterns name."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = [parse_pattern(text) for text in patterns]

    def check_url(self, url: str) -> Target:
        """The URL's target, or OutboundRefusedError. Names are not resolved here."""
        target = parse_target(url)
        address = parse_address(target.host)
        if address is not None:
            self._check_literal(target, address)
        elif target.scheme == "http" and not self._is_named(target):
            raise OutboundRefusedError(
                f"{target} is not https. Use https, or have the operator name it as allowed."
            )
        elif is_localhost(target.host) and not self._is_named(target):
            raise _not_public(str(target), Kind.LOOPBACK)
        return target

    def check_address(self, host: str, port: int, address: str) -> None:
        """Raise OutboundRefusedError if `address` must not be connected to on behalf of `host`."""
        found = parse_address(address)
        if found is None:
            raise OutboundRefusedError(f"{host}:{port} has an address that is none.")
        kind = kind_of(found)
        literal = parse_address(host) is not None
        if kind is Kind.PUBLIC or any(
            (literal or each.scheme == "https") and each.names_address(found, port)
            for each in self._patterns
        ):
            return
        host = host.lower().rstrip(".")
        if kind in INSIDE and any(each.names_host(host, port) for each in self._patterns):
            return
        raise _not_public(f"{host}:{port}", kind)

    def _check_literal(self, target: Target, address: Address) -> None:
        named = any(
            each.scheme == target.scheme and each.names_address(address, target.port)
            for each in self._patterns
        )
        if named:
            return
        kind = kind_of(address)
        if kind is not Kind.PUBLIC:
            raise _not_public(str(target), kind)
        if target.scheme == "http":
            raise OutboundRefusedError(
                f"{target} is not https. Use https, or have the operator name it as allowed."
            )

    def _is_named(self, target: Target) -> bool:
        return any(
            each.scheme == target.scheme and each.names_host(target.host, target.port)
            for each in self._patterns
        )


def parse_target(url: str) -> Target:
    """Take a URL apart, or raise OutboundRefusedError. Nothing of it is repeated in errors."""
    if len(url) > URL_BYTES_MAX:
        raise OutboundRefusedError(f"The URL is longer than {URL_BYTES_MAX} bytes.")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise OutboundRefusedError(
            "The URL holds white space, control characters, backslashes or non-ASCII characters. "
            "Percent-encode them; write a host in its xn-- form."
        )
    if "#" in url:
        raise OutboundRefusedError("The URL has a fragment (#…). Leave it out.")
    # Mostly the same place is called again, with another query.
    return _parse_place(url.partition("?")[0])


@lru_cache(maxsize=1024)
def _parse_place(url: str) -> Target:
    """The target of a URL without its query."""
    try:
        parsed = urlsplit(url)
        host, port = parsed.hostname, parsed.port
    except ValueError:
        raise OutboundRefusedError("The URL cannot be parsed. Use https://HOST/PATH.") from None
    if parsed.scheme not in PORTS or not host:
        raise OutboundRefusedError("The URL must be absolute: https://HOST/PATH.")
    if "@" in parsed.netloc:
        raise OutboundRefusedError("The URL holds a user or password. Leave them out.")
    if not _AUTHORITY.fullmatch(parsed.netloc):
        # Around brackets the parser overlooks all sorts of things.
        raise OutboundRefusedError("The URL's host is no valid name or address.")
    if port is None:
        port = PORTS[parsed.scheme]
    if not 0 < port < 65_536:
        raise OutboundRefusedError("The URL's port is none. Use one from 1 to 65535.")
    scheme: Literal["http", "https"] = "https" if parsed.scheme == "https" else "http"
    return Target(scheme, _clean_host(host), port)


def path_of(url: str) -> str:
    """The path as it is sent, without the query; of a URL that `parse_target` took."""
    return "/" + url.partition("?")[0].partition("://")[2].partition("/")[2]


def sent_path(url: str) -> bytes:
    """Path and query as they are sent; of a URL that `parse_target` took."""
    _, question, query = url.partition("?")
    return f"{path_of(url)}{question}{query}".encode("ascii")


def _clean_host(host: str) -> str:
    """The host in lower case, without the dot at its end; or an error if it is none."""
    host = host.lower().removesuffix(".")
    if parse_address(host) is not None and "%" not in host:
        return host
    if NUMERIC.fullmatch(host):
        raise OutboundRefusedError("The URL's address is unusual. Write IPv4 addresses as a.b.c.d.")
    if len(host) > 253 or not NAME.fullmatch(host) or not _is_encoded_well(host):
        raise OutboundRefusedError("The URL's host is no valid name or address.")
    return host


def _is_encoded_well(host: str) -> bool:
    """Whether the labels that stand for letters beyond ASCII (`xn--`) stand for any."""
    try:
        for label in host.split("."):
            if label.startswith("xn--"):
                import idna  # noqa: PLC0415 (slow to load, and rarely needed)

                idna.decode(label)
    except UnicodeError:
        return False
    return True


def is_localhost(host: str) -> bool:
    """Whether a name stands for this machine, whatever resolvers say."""
    return host == "localhost" or host.endswith(".localhost")


def _not_public(what: str, kind: Kind) -> OutboundRefusedError:
    return OutboundRefusedError(
        f"{what} is or has a {kind.value} address, which this server does not call. "
        "Use a public host, or have the operator name it as allowed."
    )
