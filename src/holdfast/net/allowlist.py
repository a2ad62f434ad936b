"""Which URLs the proxy may call: those that its allowlist names, and nothing else.

Rules:

- Patterns are those of `patterns.py`, with paths: `api.openai.com`, `https://*.example.com/v1/*`,
  `http://127.0.0.1:*`. A URL that matches none is refused, public or not; so without patterns
  every URL is.
- Addresses that are not public (loopback, private, link-local, metadata servers, and so on) are
  refused unless a pattern names the address, or a range that holds it, with the port.
- A pattern with a name admits public addresses only: whoever owns a name may point it anywhere. A
  name inside needs two patterns of the same scheme, one for the name and one for its address or
  range.
- The exception is `localhost`, and a name below it, where a pattern names just that: it may have
  loopback addresses.
- An IPv4 address in an IPv6 one (`::ffff:a.b.c.d`) is judged as itself.
- Dot segments in a path are refused always. Encoded slashes and backslashes are refused where the
  pattern restricts the path, which is compared as it is sent, without the query.
- As everywhere (`targets.py`), the text of a URL is checked first, and each address when it is
  connected to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address

from holdfast.errors import OutboundRefusedError
from holdfast.net.addresses import Address, Kind, kind_of, parse_address
from holdfast.net.patterns import Pattern, has_dot_segments, parse_pattern
from holdfast.net.targets import Target, is_localhost, parse_target, path_of


class Allowlist:
    """A policy for URLs that strangers choose."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [parse_pattern(text, paths=True) for text in patterns]

    def check_url(self, url: str) -> Target:
        """The URL's target, or OutboundRefusedError. Names are not resolved here."""
        target = parse_target(url)
        path = path_of(url)
        if has_dot_segments(path):
            raise OutboundRefusedError("The URL's path has dot segments (. or ..). Resolve them.")
        if not self._patterns:
            raise OutboundRefusedError(
                "The allowlist is empty, so no upstream may be called. Have the operator fill it."
            )
        meant = [
            each for each in self._naming(target.host, target.port) if each.scheme == target.scheme
        ]
        if not meant:
            raise _not_named(str(target))
        if not any(each.names_path(path) for each in meant):
            raise OutboundRefusedError(
                f"The allowlist names {target}, but not this path of it; encoded slashes it never "
                "names. Have the operator add a pattern for the path."
            )
        return target

    def check_address(self, host: str, port: int, address: str) -> None:
        """Raise OutboundRefusedError if `address` must not be connected to on behalf of `host`."""
        found = parse_address(address)
        host = host.lower().removesuffix(".")
        if found is None:
            raise OutboundRefusedError(f"{host}:{port} has an address that is none.")
        naming = list(self._naming(host, port))
        if not naming:
            raise _not_named(f"{host}:{port}")
        kind = kind_of(found)
        schemes = {each.scheme for each in naming}
        if kind is Kind.PUBLIC or any(
            each.scheme in schemes and _names(each, found, port) for each in self._patterns
        ):
            return
        is_here = is_localhost(host) and any(each.name == host for each in naming)
        if is_here and kind is Kind.LOOPBACK:
            return
        raise OutboundRefusedError(
            f"{host}:{port} has a {kind.value} address, and a pattern with a name admits public "
            "ones only. Have the operator add the address or its range to the allowlist."
        )

    def _naming(self, host: str, port: int) -> Iterator[Pattern]:
        """The patterns that name a host, as a URL spells it."""
        address = parse_address(host)
        for each in self._patterns:
            if address is None:
                if each.names_host(host, port):
                    yield each
            elif _names(each, address, port):
                yield each


def _names(pattern: Pattern, address: Address, port: int) -> bool:
    if pattern.names_address(address, port):
        return True
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return inner is not None and pattern.names_address(inner, port)


def _not_named(what: str) -> OutboundRefusedError:
    return OutboundRefusedError(
        f"{what} is not in the allowlist. Have the operator add a pattern for it."
    )
