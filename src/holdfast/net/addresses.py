"""Which IP addresses belong to the public internet, and what the others are.

The standard library's `is_global` follows a registry that changes between Python versions, and
counts multicast, 6to4 and NAT64 as global. So the ranges that matter are written out here, an IPv6
address must lie in the one block that is routed, and an address that carries an IPv4 address in it
is judged by that one.
"""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Kind(Enum):
    """What an address is for; the values are words for error messages."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    CARRIER_NAT = "carrier NAT"
    LINK_LOCAL = "link-local"
    MULTICAST = "multicast"
    UNSPECIFIED = "unspecified"
    RESERVED = "reserved"


# What a name may stand for inside an organisation. The other kinds are never a server somebody
# meant by a name: link-local is where clouds keep their metadata and its credentials.
INSIDE: Final = frozenset({Kind.LOOPBACK, Kind.PRIVATE, Kind.CARRIER_NAT})

_RANGES_4: Final = [
    (IPv4Network(text), kind)
    for text, kind in (
        ("0.0.0.0/8", Kind.UNSPECIFIED),
        ("10.0.0.0/8", Kind.PRIVATE),
        ("100.64.0.0/10", Kind.CARRIER_NAT),
        ("127.0.0.0/8", Kind.LOOPBACK),
        ("169.254.0.0/16", Kind.LINK_LOCAL),
        ("172.16.0.0/12", Kind.PRIVATE),
        ("192.0.0.0/24", Kind.RESERVED),
        ("192.0.2.0/24", Kind.RESERVED),
        ("192.88.99.0/24", Kind.RESERVED),
        ("192.168.0.0/16", Kind.PRIVATE),
        ("198.18.0.0/15", Kind.RESERVED),
        ("198.51.100.0/24", Kind.RESERVED),
        ("203.0.113.0/24", Kind.RESERVED),
        ("224.0.0.0/4", Kind.MULTICAST),
        ("240.0.0.0/4", Kind.RESERVED),
        # Metadata servers of two clouds that are not where one would look for them.
        ("168.63.129.16/32", Kind.LINK_LOCAL),
        ("100.100.100.200/32", Kind.LINK_LOCAL),
    )
]
_RANGES_6: Final = [
    (IPv6Network(text), kind)
    for text, kind in (
        ("::/128", Kind.UNSPECIFIED),
        ("::1/128", Kind.LOOPBACK),
        ("fc00::/7", Kind.PRIVATE),
        ("fe80::/10", Kind.LINK_LOCAL),
        ("fec0::/10", Kind.PRIVATE),
        ("ff00::/8", Kind.MULTICAST),
        # The metadata server of one cloud, in the middle of the private range.
        ("fd00:ec2::/32", Kind.LINK_LOCAL),
        ("2001::/23", Kind.RESERVED),
        ("2001:db8::/32", Kind.RESERVED),
        ("3fff::/20", Kind.RESERVED),
    )
]
_ROUTED_6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")


def parse_address(text: str) -> Address | None:
    """The address that a host spells, or None if it is a name. A zone (`%eth0`) is dropped."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def kind_of(address: Address) -> Kind:
    """What an address is for; one that carries an IPv4 address is what that one is."""
    if isinstance(address, IPv6Address):
        inner = embedded_ipv4(address)
        return _kind_6(address) if inner is None else _kind_4(inner)
    return _kind_4(address)


def embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that packets to this one end up at: mapped, 6to4 and NAT64."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


def _kind_4(address: IPv4Address) -> Kind:
    # The narrowest range decides: some single addresses are worse than what surrounds them.
    found = [(net.prefixlen, kind) for net, kind in _RANGES_4 if address in net]
    if found:
        return max(found, key=lambda each: each[0])[1]
    return Kind.PUBLIC if address.is_global else Kind.RESERVED


def _kind_6(address: IPv6Address) -> Kind:
    found = [(net.prefixlen, kind) for net, kind in _RANGES_6 if address in net]
    if found:
        return max(found, key=lambda each: each[0])[1]
    return Kind.PUBLIC if address in _ROUTED_6 and address.is_global else Kind.RESERVED
