"""Patterns that name what may be called: `[SCHEME://]HOST[:PORT][/PATH]`.

Rules:

- HOST is a name, `*.` and the end of names (any number of labels before it, but at least one), an
  address, or a range of addresses. A slash and a number behind an IPv4 address are its range, if
  nothing follows, or a colon, or another slash; a range of IPv6 stands in the brackets:
  `10.0.0.0/8:*`, `[fc00::/7]`.
- PORT is a number or `*`, and the scheme's own if left out.
- PATH is a glob (`path_globs.py`). `/`, `/*` and `/**` mean every path, like none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from holdfast.errors import SettingsError
from holdfast.net.addresses import Address, Network, parse_address
from holdfast.net.path_globs import PathGlob

PORTS: Final = {"http": 80, "https": 443}
NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
# What resolvers take for an IPv4 address although it is not spelt as one: 127.1, 0x7f000001, 017.
NUMERIC: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)")

_PATTERN: Final = re.compile(
    r"(?:(?P<scheme>https?)://)?"
    r"(?P<host>\[[0-9A-Fa-f:./]+\]|(?:\d+\.){3}\d+/\d+(?=[:/]|\Z)|[^\s:/\[\]@?#]+)"
    r"(?::(?P<port>\d{1,5}|\*))?"
    r"(?P<path>/[!-~]*)?"
)
_EVERY_PATH: Final = frozenset({"", "/", "/*", "/**"})
_BOUNDARY: Final = r"(?:/|%(?:25)*(?:2f|5c))"
# Encoded twice counts, too, and so does what some servers take for a parameter: `/..;x/`.
_DOT_SEGMENT: Final = re.compile(
    rf"{_BOUNDARY}(?:\.|%(?:25)*2e){{1,2}}(?={_BOUNDARY}|;|%(?:25)*3b|\Z)", re.IGNORECASE
)
_ENCODED_SLASH: Final = re.compile(r"%(?:25)*(?:2f|5c)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern: either a name or a network; `port` and `path` None for every one."""

    scheme: str
    port: int | None
    name: str = ""
    network: Network | None = None
    path: PathGlob | None = None

    def names_host(self, host: str, port: int) -> bool:
        """Whether the host is meant by its name."""
        if not self.name or self.port not in {None, port}:
            return False
        if self.name.startswith("*."):
            return host.endswith(self.name[1:]) and len(host) >= len(self.name)
        return host == self.name

    def names_address(self, address: Address, port: int) -> bool:
        """Whether the address is meant, alone or in a range."""
        return self.network is not None and self.port in {None, port} and address in self.network

    def names_path(self, path: str) -> bool:
        """Whether the path is meant, as it is sent. Slashes in disguise are never."""
        if self.path is None:
            return True
        return not _ENCODED_SLASH.search(path) and self.path.matches(path)


def has_dot_segments(path: str) -> bool:
    """Whether a path has `.` or `..` between slashes, in any disguise."""
    return _DOT_SEGMENT.search(path) is not None


def parse_pattern(text: str, *, paths: bool = False) -> Pattern:
    """Read a pattern, or raise SettingsError.

    With `paths` it may have a path, and `https` may be left out.
    """
    match = _PATTERN.fullmatch(text)
    if match is None or (not paths and not (match["scheme"] and match["path"] is None)):
        raise _bad_pattern(text, paths)
    scheme, port_text = match["scheme"] or "https", match["port"]
    port = None if port_text == "*" else int(port_text or PORTS[scheme])
    if port is not None and not 0 < port < 65_536:
        raise _bad_pattern(text, paths)
    host = match["host"].lower().strip("[]").removesuffix(".")
    path = _path(text, match["path"] or "")
    if "/" in host or parse_address(host) is not None:
        if ":" in host and "/" not in host and re.fullmatch(r"/\d+", match["path"] or ""):
            raise _wrong(text, f"a range is written [{host}{match['path']}]")
        try:
            return Pattern(scheme, port, network=ip_network(host), path=path)
        except ValueError as error:
            raise _wrong(text, str(error)) from None
    if NUMERIC.fullmatch(host) or not NAME.fullmatch(host.removeprefix("*.")):
        raise _bad_pattern(text, paths)
    return Pattern(scheme, port, name=host, path=path)


def _path(text: str, path: str) -> PathGlob | None:
    if path in _EVERY_PATH:
        return None
    if re.search(r"[?#\\]", path):
        raise _wrong(text, "a path has no ?, # or backslash; the query is not looked at")
    if has_dot_segments(path) or _ENCODED_SLASH.search(path):
        raise _wrong(text, "dot segments and encoded slashes are always refused")
    return PathGlob(path)


def _wrong(text: str, reason: str) -> SettingsError:
    return SettingsError(f"The target pattern {text!r} is wrong: {reason}.")


def _bad_pattern(text: str, paths: bool) -> SettingsError:
    form, example = (
        ("[SCHEME://]HOST[:PORT][/PATH]", "https://*.example.com/v1/*")
        if paths
        else ("SCHEME://HOST[:PORT]", "https://*.internal.example:8443")
    )
    return SettingsError(
        f"The target pattern {text!r} is none: expected {form}, such as http://127.0.0.1:*, "
        f"{example} or https://10.0.0.0/8. Names beyond ASCII are written in their xn-- form."
    )
