"""Which IP addresses belong to the public internet, and what the others are.

The standard library's `is_global` follows a registry that changes between Python versions, and
counts multicast, 6to4 and NAT64 as global. So the ranges that matter are written out here, an IPv6
address must lie in the one block that is routed, and an address that embeds an IPv4 address is
classified by that one.
"""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AddressKind(Enum):
    """The values are words for error messages."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    CARRIER_NAT = "carrier NAT"
    LINK_LOCAL = "link-local"
    MULTICAST = "multicast"
    UNSPECIFIED = "unspecified"
    RESERVED = "reserved"


# Where a name may lead inside an organisation. The other kinds are never intended: link-local is
# where clouds keep their metadata and its credentials.
INSIDE: Final = frozenset({AddressKind.LOOPBACK, AddressKind.PRIVATE, AddressKind.CARRIER_NAT})

_RANGES_4: Final = [
    (IPv4Network(text), kind)
    for text, kind in (
        ("0.0.0.0/8", AddressKind.UNSPECIFIED),
        ("10.0.0.0/8", AddressKind.PRIVATE),
        ("100.64.0.0/10", AddressKind.CARRIER_NAT),
        ("127.0.0.0/8", AddressKind.LOOPBACK),
        ("169.254.0.0/16", AddressKind.LINK_LOCAL),
        ("172.16.0.0/12", AddressKind.PRIVATE),
        ("192.0.0.0/24", AddressKind.RESERVED),
        ("192.0.2.0/24", AddressKind.RESERVED),
        ("192.88.99.0/24", AddressKind.RESERVED),
        ("192.168.0.0/16", AddressKind.PRIVATE),
        ("198.18.0.0/15", AddressKind.RESERVED),
        ("198.51.100.0/24", AddressKind.RESERVED),
        ("203.0.113.0/24", AddressKind.RESERVED),
        ("224.0.0.0/4", AddressKind.MULTICAST),
        ("240.0.0.0/4", AddressKind.RESERVED),
        # Metadata servers of two clouds in unusual places.
        ("168.63.129.16/32", AddressKind.LINK_LOCAL),
        ("100.100.100.200/32", AddressKind.LINK_LOCAL),
    )
]
_RANGES_6: Final = [
    (IPv6Network(text), kind)
    for text, kind in (
        ("::/128", AddressKind.UNSPECIFIED),
        ("::1/128", AddressKind.LOOPBACK),
        ("fc00::/7", AddressKind.PRIVATE),
        ("fe80::/10", AddressKind.LINK_LOCAL),
        ("fec0::/10", AddressKind.PRIVATE),
        ("ff00::/8", AddressKind.MULTICAST),
        # The metadata server of one cloud, in the middle of the private range.
        ("fd00:ec2::/32", AddressKind.LINK_LOCAL),
        ("2001::/23", AddressKind.RESERVED),
        ("2001:db8::/32", AddressKind.RESERVED),
        ("3fff::/20", AddressKind.RESERVED),
    )
]
_ROUTED_6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")


def parse_address(text: str) -> Address | None:
    """The address in a host, or None if it is a name. A zone (`%eth0`) is dropped."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def kind_of(address: Address) -> AddressKind:
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


def _kind_4(address: IPv4Address) -> AddressKind:
    # The narrowest range decides: single addresses may differ from their surroundings.
    ranges = [(net.prefixlen, kind) for net, kind in _RANGES_4 if address in net]
    if ranges:
        return max(ranges, key=lambda each: each[0])[1]
    return AddressKind.PUBLIC if address.is_global else AddressKind.RESERVED


def _kind_6(address: IPv6Address) -> AddressKind:
    ranges = [(net.prefixlen, kind) for net, kind in _RANGES_6 if address in net]
    if ranges:
        return max(ranges, key=lambda each: each[0])[1]
    return (
        AddressKind.PUBLIC if address in _ROUTED_6 and address.is_global else AddressKind.RESERVED
    )
