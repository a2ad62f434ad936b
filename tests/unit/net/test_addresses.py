"""Which addresses are public: a table of those that are not, and of those dressed as others."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.net.addresses import AddressKind, kind_of, parse_address
from tests.thorough import for_each

ADDRESSES = [
    ("8.8.8.8", AddressKind.PUBLIC),
    ("1.1.1.1", AddressKind.PUBLIC),
    ("2606:4700:4700::1111", AddressKind.PUBLIC),
    ("127.0.0.1", AddressKind.LOOPBACK),
    ("127.255.255.255", AddressKind.LOOPBACK),
    ("::1", AddressKind.LOOPBACK),
    ("10.0.0.1", AddressKind.PRIVATE),
    ("172.16.0.1", AddressKind.PRIVATE),
    ("172.31.255.255", AddressKind.PRIVATE),
    ("172.32.0.1", AddressKind.PUBLIC),
    ("192.168.1.1", AddressKind.PRIVATE),
    ("fc00::1", AddressKind.PRIVATE),
    ("fdff::1", AddressKind.PRIVATE),
    ("fec0::1", AddressKind.PRIVATE),
    ("100.64.0.1", AddressKind.CARRIER_NAT),
    ("100.127.255.255", AddressKind.CARRIER_NAT),
    ("100.128.0.1", AddressKind.PUBLIC),
    ("169.254.169.254", AddressKind.LINK_LOCAL),
    ("169.254.170.2", AddressKind.LINK_LOCAL),
    ("fe80::1", AddressKind.LINK_LOCAL),
    ("fe80::1%eth0", AddressKind.LINK_LOCAL),
    ("fd00:ec2::254", AddressKind.LINK_LOCAL),
    ("168.63.129.16", AddressKind.LINK_LOCAL),
    ("100.100.100.200", AddressKind.LINK_LOCAL),
    ("224.0.0.1", AddressKind.MULTICAST),
    ("239.255.255.255", AddressKind.MULTICAST),
    ("ff02::1", AddressKind.MULTICAST),
    ("0.0.0.0", AddressKind.UNSPECIFIED),
    ("0.1.2.3", AddressKind.UNSPECIFIED),
    ("::", AddressKind.UNSPECIFIED),
    ("240.0.0.1", AddressKind.RESERVED),
    ("255.255.255.255", AddressKind.RESERVED),
    ("192.0.0.9", AddressKind.RESERVED),
    ("192.0.2.1", AddressKind.RESERVED),
    ("192.88.99.1", AddressKind.RESERVED),
    ("198.18.0.1", AddressKind.RESERVED),
    ("198.51.100.1", AddressKind.RESERVED),
    ("203.0.113.1", AddressKind.RESERVED),
    ("2001:db8::1", AddressKind.RESERVED),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", AddressKind.RESERVED),
    ("3fff::1", AddressKind.RESERVED),
    ("100::1", AddressKind.RESERVED),
    ("5f00::1", AddressKind.RESERVED),
    ("64:ff9b:1::a00:1", AddressKind.RESERVED),
    ("::7f00:1", AddressKind.RESERVED),
    ("4000::1", AddressKind.RESERVED),
    # Those that carry another address are what that one is.
    ("::ffff:8.8.8.8", AddressKind.PUBLIC),
    ("::ffff:127.0.0.1", AddressKind.LOOPBACK),
    ("::ffff:169.254.169.254", AddressKind.LINK_LOCAL),
    ("64:ff9b::808:808", AddressKind.PUBLIC),
    ("64:ff9b::a00:1", AddressKind.PRIVATE),
    ("64:ff9b::a9fe:a9fe", AddressKind.LINK_LOCAL),
    ("2002:808:808::1", AddressKind.PUBLIC),
    ("2002:7f00:1::1", AddressKind.LOOPBACK),
    ("2002:c0a8:101::1", AddressKind.PRIVATE),
]


@for_each(("text", "kind"), ADDRESSES)
def test_every_address_has_its_kind(text, kind):
    address = parse_address(text)
    assert address is not None
    assert kind_of(address) is kind


@pytest.mark.parametrize("text", ["", "example.com", "127.1", "2130706433", "0x7f.0.0.1", "[::1]"])
def test_what_is_not_spelt_as_an_address_is_none(text):
    assert parse_address(text) is None


@given(st.ip_addresses(v=4))
def test_what_the_library_calls_private_is_never_public(address):
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert kind_of(address) is not AddressKind.PUBLIC


@given(st.ip_addresses(v=6))
def test_only_the_routed_block_is_public(address):
    inner = address.ipv4_mapped or address.sixtofour
    if kind_of(address) is AddressKind.PUBLIC and inner is None:
        assert str(address).startswith(("2", "3", "64:ff9b::"))
        assert not address.is_private


@given(st.ip_addresses(v=4))
def test_disguises_change_nothing(address):
    value = int(address)
    kind = kind_of(IPv4Address(value))
    assert kind_of(IPv6Address((0xFFFF << 32) | value)) is kind
    assert kind_of(IPv6Address((0x64FF9B << 96) | value)) is kind
    assert kind_of(IPv6Address((0x2002 << 112) | (value << 80))) is kind
