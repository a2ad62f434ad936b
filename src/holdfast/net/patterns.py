"""Patterns that name what may be called: `[SCHEME://]HOST[:PORT][/PATH]`.

Rules:

- HOST is a name, `*.` and the end of names (at least one label comes before it), an address, or a
  range of addresses. A slash and a number after an IPv4 address are its range, if nothing, a colon
  or another slash follows; an IPv6 range is written in the brackets: `10.0.0.0/8:*`, `[fc00::/7]`.
- PORT is a number or `*`, and the scheme's default if left out.
- PATH is a glob. `*` matches anything within a segment, and at least one character if it is all of
  a segment. `**` matches anything, and so does a `*` at the very end: `/v1/*` is everything below
  `/v1/`. Everything else matches itself, in the same case. `/`, `/*` and `/**` mean every path, as
  no path does. A glob never matches a path that is not plain: see `has_plain_segments`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final
from urllib.parse import unquote_to_bytes

from holdfast.errors import SettingsError
from holdfast.net.addresses import Address, Network, parse_address

_TOKEN: Final = re.compile(r"\*+|[^*]")


class PathGlob:
    """A glob over the paths of URLs.

    It is matched in one pass that follows all possible positions at once (the bits of a number): a
    hostile path can make a regular expression with several stars very slow.
    """

    def __init__(self, text: str) -> None:
        self._any = self._within = self._one = 0
        self._literal: defaultdict[str, int] = defaultdict(int)
        place = 1
        for found in _TOKEN.finditer(text):
            token, end = found[0], found.end()
            if token[0] != "*":
                self._literal[token] |= place
            elif len(token) > 1 or end == len(text):
                self._any |= place
            else:
                if text[found.start() - 1 : found.start()] == "/" == text[end]:
                    self._one |= place
                    place <<= 1
                self._within |= place
            place <<= 1
        self._end = place

    def matches(self, path: str) -> bool:
        literal, within, stars = self._literal, self._within, self._any | self._within
        places = 1 | (1 & stars) << 1
        for character in path:
            onward, staying = places & literal.get(character, 0), places & self._any
            if character != "/":
                onward |= places & self._one
                staying |= places & within
            places = onward << 1 | staying
            # A star may match nothing.
            places |= (places & stars) << 1
            if not places:
                return False
        return bool(places & self._end)


PORTS: Final = {"http": 80, "https": 443}
NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
# What resolvers take for an IPv4 address in another notation: 127.1, 0x7f000001, 017.
NUMERIC: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)")

_PATTERN: Final = re.compile(
    r"(?:(?P<scheme>https?)://)?"
    r"(?P<host>\[[0-9A-Fa-f:./]+\]|(?:\d+\.){3}\d+/\d+(?=[:/]|\Z)|[^\s:/\[\]@?#]+)"
    r"(?::(?P<port>\d{1,5}|\*))?"
    r"(?P<path>/[!-~]*)?"
)
_EVERY_PATH: Final = frozenset({"", "/", "/*", "/**"})
# A segment after one decoding, where a pattern restricts the path. It has no `%`, control bytes,
# slashes, backslashes or bytes beyond ASCII, because servers differ in what they make of them, and
# dots at its start are part of a name.
_PLAIN_SEGMENT: Final = re.compile(
    rb"(?:(?:[. ]*[A-Za-z0-9_-]|[~!$&'()*+,;=:@])[A-Za-z0-9_.~!$&'()*+,;=:@ -]*)?"
)
_BOUNDARY: Final = r"(?:/|%(?:25)*(?:2f|5c))"
# Also if encoded twice, or followed by what some servers take for a parameter: `/..;x/`.
_DOT_SEGMENT: Final = re.compile(
    rf"{_BOUNDARY}(?:\.|%(?:25)*2e){{1,2}}(?={_BOUNDARY}|;|%(?:25)*3b|\Z)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class TargetPattern:
    """Has either a name or a network; a `port` or `path` of None matches every one."""

    scheme: str
    port: int | None
    name: str = ""
    network: Network | None = None
    path: PathGlob | None = None

    def names_host(self, host: str, port: int) -> bool:
        if not self.name or self.port not in {None, port}:
            return False
        if self.name.startswith("*."):
            return host.endswith(self.name[1:]) and len(host) >= len(self.name)
        return host == self.name

    def names_address(self, address: Address, port: int) -> bool:
        return self.network is not None and self.port in {None, port} and address in self.network

    def names_path(self, path: str) -> bool:
        """Whether the pattern covers this path, as it is sent."""
        return self.path is None or (has_plain_segments(path) and self.path.matches(path))


def has_dot_segments(path: str) -> bool:
    """Whether a path has `.` or `..` between slashes, in any encoding."""
    return _DOT_SEGMENT.search(path) is not None


def has_plain_segments(path: str) -> bool:
    """Whether a path leads to the same place on every server, however it decodes its segments."""
    return all(_PLAIN_SEGMENT.fullmatch(unquote_to_bytes(each)) for each in path.split("/"))


def parse_pattern(text: str, *, paths: bool = False) -> TargetPattern:
    """The pattern, or SettingsError. With `paths` it may have a path, and `https` is optional."""
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
            return TargetPattern(scheme, port, network=ip_network(host), path=path)
        except ValueError as error:
            raise _wrong(text, str(error)) from None
    if NUMERIC.fullmatch(host) or not NAME.fullmatch(host.removeprefix("*.")):
        raise _bad_pattern(text, paths)
    return TargetPattern(scheme, port, name=host, path=path)


def _path(text: str, path: str) -> PathGlob | None:
    if path in _EVERY_PATH:
        return None
    if re.search(r"[?#\\]", path):
        raise _wrong(text, "a path has no ?, # or backslash; the query is not compared")
    if not has_plain_segments(path):
        raise _wrong(text, "URLs with dot segments or unusual characters in the path are refused")
    return PathGlob(path)


def _wrong(text: str, reason: str) -> SettingsError:
    return SettingsError(f"The target pattern {text!r} is not valid: {reason}.")


def _bad_pattern(text: str, paths: bool) -> SettingsError:
    form, example = (
        ("[SCHEME://]HOST[:PORT][/PATH]", "https://*.example.com/v1/*")
        if paths
        else ("SCHEME://HOST[:PORT]", "https://*.internal.example:8443")
    )
    return SettingsError(
        f"The target pattern {text!r} is not valid: expected {form}, such as http://127.0.0.1:*, "
        f"{example} or https://10.0.0.0/8. Write names beyond ASCII in their xn-- form."
    )
