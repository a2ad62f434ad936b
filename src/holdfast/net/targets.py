"""What may be called: the policies of webhooks, of the proxy and of the client.

A URL is checked twice: its text by `check_url`, and each address, on connecting, by
`check_address`. The second check is the one that counts: a name can change its address at will.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final, Literal, Protocol
from urllib.parse import urlsplit

from holdfast.errors import OutboundRefusedError
from holdfast.net.addresses import INSIDE, Address, AddressKind, kind_of, parse_address
from holdfast.net.patterns import (
    NAME,
    NUMERIC,
    PORTS,
    TargetPattern,
    has_dot_segments,
    parse_pattern,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

URL_BYTES_MAX: Final = 4096
_AUTHORITY: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:]+)(?::\d*)?")


@dataclass(frozen=True, slots=True)
class Target:
    """The part of a URL that a policy decides about; `host` is lower-case, without brackets."""

    scheme: Literal["http", "https"]
    host: str
    port: int

    def __str__(self) -> str:
        """`scheme://host:port`: all of a URL that may be logged, since paths may hold secrets."""
        return f"{self.scheme}://{self._bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """The Host header: with the port unless it is the scheme's default."""
        is_usual = self.port == PORTS[self.scheme]
        return self._bracketed if is_usual else f"{self._bracketed}:{self.port}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


class Policy(Protocol):
    """Decides whether a URL may be called, and an address connected to."""

    def check_url(self, url: str) -> Target:
        """The URL's target, or OutboundRefusedError."""

    def check_address(self, host: str, port: int, address: str) -> None:
        """Raise OutboundRefusedError if `address` must not be connected to."""


class AnyTarget:
    """The policy of a client, which calls what its user names."""

    def check_url(self, url: str) -> Target:
        return parse_target(url)

    def check_address(self, host: str, port: int, address: str) -> None:
        """Every address may be connected to."""


class TargetPolicy:
    """The policy of the server itself: public hosts over `https`, and what the patterns name.

    - `http` needs a pattern that names the host as the URL spells it: a name, or an address.
    - A pattern with a name admits private and loopback addresses behind that name. Link-local
      addresses (where clouds keep their metadata) need a pattern with the address or its range.
    - An `https` pattern with an address or a range also covers names that lead there. An `http` one
      covers URLs that spell the address.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = [parse_pattern(text) for text in patterns]

    def check_url(self, url: str) -> Target:
        target = parse_target(url)
        address = parse_address(target.host)
        for each in self._patterns:
            if each.scheme == target.scheme and (
                each.names_host(target.host, target.port)
                if address is None
                else each.names_address(address, target.port)
            ):
                return target
        if address is not None:
            kind = kind_of(address)
        else:
            kind = AddressKind.LOOPBACK if is_localhost(target.host) else AddressKind.PUBLIC
        if kind is not AddressKind.PUBLIC:
            raise _not_public(str(target), kind)
        if target.scheme == "http":
            raise OutboundRefusedError(
                f"{target} is not https. Use https, or ask the operator to allow it."
            )
        return target

    def check_address(self, host: str, port: int, address: str) -> None:
        parsed = parse_address(address)
        if parsed is None:
            raise OutboundRefusedError(f"{host}:{port} has an address that is not valid.")
        kind = kind_of(parsed)
        literal = parse_address(host) is not None
        if kind is AddressKind.PUBLIC or any(
            (literal or each.scheme == "https") and each.names_address(parsed, port)
            for each in self._patterns
        ):
            return
        host = host.lower().rstrip(".")
        if kind in INSIDE and any(each.names_host(host, port) for each in self._patterns):
            return
        raise _not_public(f"{host}:{port}", kind)


def parse_target(url: str) -> Target:
    """The target of a URL, or OutboundRefusedError. Errors do not quote the URL."""
    if len(url) > URL_BYTES_MAX:
        raise OutboundRefusedError(f"The URL is longer than {URL_BYTES_MAX} bytes.")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise OutboundRefusedError(
            "The URL holds white space, control characters, backslashes or non-ASCII characters. "
            "Percent-encode them; write a host in its xn-- form."
        )
    if "#" in url:
        raise OutboundRefusedError("The URL has a fragment (#…). Leave it out.")
    # Calls mostly go to the same place with different queries.
    return _parse_place(url.partition("?")[0])


@lru_cache(maxsize=1024)
def _parse_place(url: str) -> Target:
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
        # The parser overlooks all sorts of things around brackets.
        raise OutboundRefusedError("The URL's host is not a valid name or address.")
    if port is None:
        port = PORTS[parsed.scheme]
    if not 0 < port < 65_536:
        raise OutboundRefusedError("The URL's port is not valid. Use one from 1 to 65535.")
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
    """The host in lower case, without a final dot; raises if it is not valid."""
    host = host.lower().removesuffix(".")
    if parse_address(host) is not None and "%" not in host:
        return host
    if NUMERIC.fullmatch(host):
        raise OutboundRefusedError(
            "The URL's address has an unusual notation. Write IPv4 addresses as a.b.c.d."
        )
    if len(host) > 253 or not NAME.fullmatch(host) or not _is_encoded_well(host):
        raise OutboundRefusedError("The URL's host is not a valid name or address.")
    return host


def _is_encoded_well(host: str) -> bool:
    """Whether all `xn--` labels can be decoded."""
    try:
        for label in host.split("."):
            if label.startswith("xn--"):
                import idna  # noqa: PLC0415 (slow to load, and rarely needed)

                idna.decode(label)
    except UnicodeError:
        return False
    return True


def is_localhost(host: str) -> bool:
    """Whether a name means this machine, whatever resolvers say."""
    return host == "localhost" or host.endswith(".localhost")


def _not_public(what: str, kind: AddressKind) -> OutboundRefusedError:
    return OutboundRefusedError(
        f"{what} is or has a {kind.value} address, which this server does not call. "
        "Use a public host, or ask the operator to allow it."
    )


class Allowlist:
    """The policy of the proxy, whose URLs strangers choose: only what the patterns name.

    - Patterns may have paths: `api.openai.com`, `https://*.example.com/v1/*`, `http://127.0.0.1:*`.
      A URL that matches none is refused, public or not.
    - Addresses that are not public (loopback, private, link-local, metadata servers, and so on) are
      refused unless a pattern names the address, or a range that holds it, with the port.
    - A pattern with a name admits public addresses only: the owner of a name may point it anywhere.
      An internal name needs two patterns of the same scheme, one for the name and one for its
      address or range.
    - The exception is `localhost`, and names below it, if a pattern names exactly that: it may have
      loopback addresses.
    - An IPv4 address in an IPv6 one (`::ffff:a.b.c.d`) counts as itself.
    - Dot segments in a path are always refused. Where the pattern restricts the path, it is
      compared as it is sent, without the query, and its segments may only hold, after decoding, the
      ASCII characters that RFC 3986 allows there, and spaces.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [parse_pattern(text, paths=True) for text in patterns]

    def check_url(self, url: str) -> Target:
        target = parse_target(url)
        path = path_of(url)
        if has_dot_segments(path):
            raise OutboundRefusedError("The URL's path has dot segments (. or ..). Resolve them.")
        if not self._patterns:
            raise OutboundRefusedError(
                "The allowlist is empty, so no upstream may be called. Ask the operator to fill it."
            )
        meant = [
            each for each in self._naming(target.host, target.port) if each.scheme == target.scheme
        ]
        if not meant:
            raise _not_named(str(target))
        if not any(each.names_path(path) for each in meant):
            raise OutboundRefusedError(
                f"The allowlist names {target}, but not this path of it; it never covers encoded "
                "slashes, control characters, non-ASCII characters and double encodings. Ask the "
                "operator to add a pattern for the path."
            )
        return target

    def check_address(self, host: str, port: int, address: str) -> None:
        parsed = parse_address(address)
        host = host.lower().removesuffix(".")
        if parsed is None:
            raise OutboundRefusedError(f"{host}:{port} has an address that is not valid.")
        naming = list(self._naming(host, port))
        if not naming:
            raise _not_named(f"{host}:{port}")
        kind = kind_of(parsed)
        schemes = {each.scheme for each in naming}
        if kind is AddressKind.PUBLIC or any(
            each.scheme in schemes and _names(each, parsed, port) for each in self._patterns
        ):
            return
        is_here = is_localhost(host) and any(each.name == host for each in naming)
        if is_here and kind is AddressKind.LOOPBACK:
            return
        raise OutboundRefusedError(
            f"{host}:{port} has a {kind.value} address, and a pattern with a name admits public "
            "ones only. Ask the operator to add the address or its range to the allowlist."
        )

    def _naming(self, host: str, port: int) -> Iterator[TargetPattern]:
        address = parse_address(host)
        for each in self._patterns:
            if address is None:
                if each.names_host(host, port):
                    yield each
            elif _names(each, address, port):
                yield each


def _names(pattern: TargetPattern, address: Address, port: int) -> bool:
    if pattern.names_address(address, port):
        return True
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return inner is not None and pattern.names_address(inner, port)


def _not_named(what: str) -> OutboundRefusedError:
    return OutboundRefusedError(
        f"{what} is not in the allowlist. Ask the operator to add a pattern for it."
    )
